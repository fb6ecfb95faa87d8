/* Distributed arrays: layouts over processes, the messages of a redistribution, and couplings of two programs that
 * exchange arrays.
 *
 * This header needs no MPI. landbridge_mpi.h, which includes it, moves elements between ranks.
 *
 * Functions that return int return LB_OK, or another LB_ code; lb_error() then describes the error. A function
 * lb_..._free frees an object of that name; it also accepts NULL, and sets the caller's variable to NULL. Shapes,
 * indices and counts are in elements, strides in bytes. Only one thread at a time may use an object. */
#ifndef LANDBRIDGE_H
#define LANDBRIDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LB_OK = 0,
    LB_INVALID = 1,  /* an argument is wrong, or the ranks' arguments do not fit together */
    LB_OVER = 2,     /* there is no coupling, or it has ended */
    LB_TIMEOUT = 3,  /* the timeout has passed */
    LB_MEMORY = 4,   /* out of memory */
    LB_INTERNAL = 5, /* a bug in Landbridge */
    LB_MPI = 6       /* an MPI function has failed */
};

/* The error of the last failed call on this thread, in English; valid until the next call that fails. */
const char *lb_error(void);

/* The version, such as "0.1.0". */
const char *lb_version(void);

/* ---- layouts ---------------------------------------------------------------------------------------------------- */

enum { LB_C = 0, LB_FORTRAN = 1 };

enum { LB_WHOLE = 0, LB_BLOCK = 1, LB_CYCLIC = 2, LB_LISTS = 3 };

/* Distribution of an axis's indices over the processes along it; made by the functions below. */
typedef struct lb_axis {
    int32_t kind;
    int32_t over;           /* processes along the axis */
    int64_t block;          /* cyclic: indices per block */
    int32_t first;          /* cyclic: the process with the first block */
    int32_t periodic;       /* true if the first index follows the last one, for halos */
    int64_t before, after;  /* halo: copies of neighbouring indices, which are filled but never sent */
    const int64_t *sizes;   /* number of indices of each process; block: or NULL */
    const int64_t *indices; /* lists: those of process 0, then those of process 1, and so on */
} lb_axis;

/* One process, which has all indices. */
static inline lb_axis lb_whole(void) {
    lb_axis axis = {LB_WHOLE, 1, 0, 0, 0, 0, 0, NULL, NULL};
    return axis;
}

/* Consecutive indices for each of `over` processes: ceil(n / over) for all but the last ones. */
static inline lb_axis lb_block(int32_t over) {
    lb_axis axis = {LB_BLOCK, over, 0, 0, 0, 0, 0, NULL, NULL};
    return axis;
}

/* The same, with the number of indices of each process in `sizes`; read when the layout is made. */
static inline lb_axis lb_block_sizes(int32_t over, const int64_t *sizes) {
    lb_axis axis = {LB_BLOCK, over, 0, 0, 0, 0, 0, sizes, NULL};
    return axis;
}

/* Blocks of `block` indices, dealt out in turn, the first to process `first`. A process stores its blocks one after the
 * other, as in ScaLAPACK. */
static inline lb_axis lb_cyclic(int32_t over, int64_t block, int32_t first) {
    lb_axis axis = {LB_CYCLIC, over, block, first, 0, 0, 0, NULL, NULL};
    return axis;
}

/* The indices that each process has, in the order in which it stores them; read when the layout is made. */
static inline lb_axis lb_lists(int32_t over, const int64_t *sizes, const int64_t *indices) {
    lb_axis axis = {LB_LISTS, over, 0, 0, 0, 0, 0, sizes, indices};
    return axis;
}

/* For a whole or block axis: each process also keeps copies of this many indices before and after its own. */
static inline lb_axis lb_with_halo(lb_axis axis, int64_t before, int64_t after, int periodic) {
    axis.before = before;
    axis.after = after;
    axis.periodic = periodic != 0;
    return axis;
}

typedef struct lb_layout lb_layout;

/* A layout of an array of `axes` axes. `shape`, `along`: extent and distribution of each axis. Processes are numbered
 * row-major over a grid with one dimension for each axis. `order`: memory order of local elements. */
int lb_layout_create(int32_t axes, const int64_t *shape, const lb_axis *along, int32_t order, lb_layout **layout);

/* The same on a grid of `dimensions` dimensions, slowest first. `processes`: number of processes along each dimension.
 * `axis`: the axis that runs along it, or -1 if the processes along it hold copies of the same elements. */
int lb_layout_create_on_grid(int32_t axes, const int64_t *shape, const lb_axis *along, int32_t order,
                             int32_t dimensions, const int32_t *processes, const int32_t *axis, lb_layout **layout);

/* A run of consecutive elements: the row-major number of the first one in the array, and their count. */
typedef struct lb_run_of {
    int64_t first, count;
} lb_run_of;

/* A layout for `size` processes, each of which knows only its own part: these runs, stored one after the other in a
 * local array of one axis. Read when the layout is made. Only plans take such a layout. The other layout of the plan
 * may be of any kind, but the plan can have no selection. A coupling takes the array in blocks: move it there by a
 * plan. */
int lb_layout_create_runs(int32_t axes, const int64_t *shape, int32_t size, int64_t count, const lb_run_of *runs,
                          lb_layout **layout);

void lb_layout_free(lb_layout **layout);

/* Number of processes. */
int32_t lb_layout_size(const lb_layout *layout);

/* Number of axes of the array, and its shape: one number for each axis. */
int32_t lb_layout_axes(const lb_layout *layout);
int lb_layout_shape(const lb_layout *layout, int64_t *shape);

/* The shape of a process's local part, halos included: one number for each axis. If a process has no index along an
 * axis, that number is 0 and the others stay, as in an empty slice. */
int lb_layout_local_shape(const lb_layout *layout, int32_t process, int64_t *shape);

/* The process that owns the element at an index of the array, the first of its copies. */
int lb_layout_owner(const lb_layout *layout, const int64_t *index, int32_t *owner);

/* ---- which elements --------------------------------------------------------------------------------------------- */

/* The indices start, start + step, ...: `count` of them. A negative count selects only the index `start`, and the
 * selection does not have the axis. */
typedef struct lb_slice {
    int64_t start, step, count;
} lb_slice;

/* The elements of the source that are moved, and their places in the target: parts of both arrays, of the same shape. A
 * NULL means all, in order. `source`, `target`: one slice for each axis of the array. `axes`: for each axis of the
 * target's part, the matching axis of the source's part: {1, 0} transposes. `shift`: for each axis of the source's
 * part, the position that comes first; those before it come last. */
typedef struct lb_select {
    const lb_slice *source, *target;
    const int32_t *axes;
    const int64_t *shift;
} lb_select;

/* ---- building blocks of landbridge_mpi.h --------------------------------------------------------------------------
 *
 * Programs that move bytes by other means than MPI may use them as well. */

/* The messages of a redistribution, and the rank of each process. */
typedef struct lb_transfer lb_transfer;

/* `dtype`: see landbridge_mpi.h. `size`: number of ranks. `src_ranks`, `dst_ranks`: the ranks that are the processes of
 * each layout; NULL: the first ones. */
int lb_transfer_create(const lb_layout *src, const lb_layout *dst, const char *dtype, const lb_select *select,
                       int32_t size, const int32_t *src_ranks, const int32_t *dst_ranks, lb_transfer **transfer);

/* Returns 1 if ranks must ask each other for their parts, because a layout is of runs. In that case each rank first
 * calls `lb_transfer_ask`. Then all ranks exchange letters, twice: `lb_transfer_letter` returns the length of the
 * letter to a rank, and `lb_transfer_read` takes the letters of all ranks, one after the other, and their lengths. */
int32_t lb_transfer_asks(const lb_transfer *transfer);
int lb_transfer_ask(lb_transfer *transfer, int32_t rank);
int64_t lb_transfer_letter(const lb_transfer *transfer, int32_t to, const void **letter);
int lb_transfer_read(lb_transfer *transfer, const void *letters, const int64_t *lengths);

/* Ranks of a node may read pieces where another rank has packed them. The sender sends its address, if it has one (else
 * lb_transfer_address returns 0). The receiver opens the address (lb_transfer_open returns 0 if it cannot) and answers;
 * on success the sender allows the receiver to read. */
enum { LB_ADDRESS = 48 };
int32_t lb_transfer_address(const lb_transfer *transfer, unsigned char address[LB_ADDRESS]);
int32_t lb_transfer_open(const lb_transfer *transfer, int32_t rank, const unsigned char address[LB_ADDRESS]);
void lb_transfer_allow(const lb_transfer *transfer, int32_t rank);

/* A hash that is the same for the same layouts, selection, dtype and ranks. */
uint64_t lb_transfer_hash(const lb_transfer *transfer);

void lb_transfer_free(lb_transfer **transfer);

/* A step that derives an MPI datatype: the first from MPI_BYTE, each later one from the datatype of the step before.
 * Places and strides are in bytes. */
enum { LB_HVECTOR = 0, LB_HINDEXED_BLOCK = 1, LB_HINDEXED = 2 };

typedef struct lb_step {
    int32_t kind;
    int64_t count;
    int64_t length; /* of each block, unless `lengths` is set */
    int64_t stride;
    const int64_t *places;
    const int64_t *lengths;
} lb_step;

/* The ways a message may go: MPI moves its elements; or it is packed, in pieces; or only this end packs it, and sends
 * it whole, because MPI moves its elements at the other end. */
enum { LB_GO_STRAIGHT = 0, LB_GO_PIECES = 1, LB_GO_WHOLE = 2 };

/* A message to, or from, a rank. */
typedef struct lb_message {
    int32_t rank;
    int32_t kind; /* unless it is LB_GO_STRAIGHT, the fields after `bytes` have no meaning */
    int64_t bytes;
    int64_t offset; /* start of the elements, in bytes from the local array's first element */
    int64_t block;  /* if there are no steps: number of contiguous bytes there */
    const lb_step *steps;
    int64_t step_count;
} lb_message;

/* The messages that a rank sends, or receives. */
typedef struct lb_end lb_end;

/* The messages of a rank of the source, if `sends`, else of the target; *end is NULL if the rank is none of its
 * processes. `strides`: those of the local array; NULL: it has no gaps. `library`: the text of MPI_Get_library_version,
 * or "". */
int lb_end_create(const lb_transfer *transfer, int32_t sends, int32_t rank, const int64_t *strides, const char *library,
                  lb_end **end);

/* Returns the number of messages. They are in the order of their steps, and valid as long as `end`. */
int64_t lb_end_messages(const lb_end *end, const lb_message **messages);

/* Returns 1 if the message goes in pieces and is long enough for lending memory. */
int32_t lb_end_may_lend(const lb_end *end, int64_t message);

/* The range of bytes that the local array covers, counted from its first element. */
void lb_end_bounds(const lb_end *end, int64_t *low, int64_t *high);

/* Copies the elements of a message between the array and a buffer of `bytes` bytes. */
void lb_end_pack(const lb_end *end, int64_t message, const void *array, void *buffer);
void lb_end_unpack(const lb_end *end, int64_t message, const void *buffer, void *array);

void lb_end_free(lb_end **end);

/* The packed messages of a run, in pieces. `budget`: maximum bytes of pieces in memory; 0: 16 MiB; negative: all of
 * them at once. `a` NULL: sent messages are empty. `into` NULL: received elements are discarded. `hold`: packs all sent
 * messages at once, as needed if the arrays share memory. */
typedef struct lb_pieces lb_pieces;

/* A piece to be sent to, or received from, a rank. */
typedef struct lb_piece {
    int32_t slot; /* each slot has at most one piece in flight */
    int32_t sends;
    int32_t rank;
    void *at;
    int64_t bytes;
} lb_piece;

int lb_pieces_create(const lb_transfer *transfer, const lb_end *sends, const lb_end *receives, int32_t rank,
                     const void *a, void *into, int32_t hold, int64_t budget, lb_pieces **pieces);
int32_t lb_pieces_slots(const lb_pieces *pieces);

/* The next piece to be sent or received; returns 0 if none can begin before others are over. */
int32_t lb_pieces_next(lb_pieces *pieces, lb_piece *piece);

/* Reports that the piece in this slot has been sent, or has arrived with this many bytes. */
void lb_pieces_over(lb_pieces *pieces, int32_t slot, int64_t bytes);

/* Copies a piece of the elements that stay in this process; returns 0 if none are left. */
int32_t lb_pieces_copy_own(lb_pieces *pieces);

/* The run goes on without the pieces that other ranks have not given back. For a run that has waited for long. */
void lb_pieces_expect_nothing_back(lb_pieces *pieces);
int32_t lb_pieces_are_over(const lb_pieces *pieces);
void lb_pieces_free(lb_pieces **pieces);

/* The runs of this process whose pieces are not over. A wait for any of them moves the pieces of all: other ranks may
 * need those of an earlier run before they begin this one. `run`: of the caller's own type. */
void lb_runs_enter(void *run);
void lb_runs_leave(void *run);
int64_t lb_runs_count(void);

/* Calls `advance` for each run; one thread at a time. It must not block, sets `moved` to 1 if it has moved a piece and
 * `over` to 1 if all are over, which removes the run, and returns a code. Returns the first code that is not 0. */
int lb_runs_advance(int (*advance)(void *run, int *moved, int *over), int *moved);

/* Communication between the ranks of a coupling's side. Both functions are collective, move `length` bytes of each
 * rank, and return 0, or another number on failure. */
typedef struct lb_ranks {
    int32_t rank, size;
    void *context;
    int (*broadcast)(void *context, void *bytes, int64_t length); /* sends the first rank's bytes to all */
    int (*gather)(void *context, const void *own, int64_t length, void *all);
} lb_ranks;

/* A rank's part in a coupling, and a fetch: see landbridge_coupling.h. Only lb_side_join is collective, and callers
 * make sure that all ranks make the same calls. `ranks` NULL: one process, without MPI. `timeout`: in seconds;
 * negative: no limit. */
typedef struct lb_side lb_side;
typedef struct lb_side_fetch lb_side_fetch;

int lb_side_join(const lb_ranks *ranks, const char *name, const char *site, double timeout, lb_side **side);
const char *lb_side_other(const lb_side *side);

/* Waits until the budget has room for this rank's part. */
int lb_side_room(const lb_side *side, const lb_layout *layout, const char *dtype, const void *a, int64_t budget,
                 double timeout);
int lb_side_export(const lb_side *side, const char *name, uint64_t version, const lb_layout *layout, const char *dtype,
                   const void *a, const int64_t *strides);
int lb_side_variable(const lb_side *side, const char *name, double timeout, char *dtype, int64_t length,
                     lb_layout **layout);

/* Waits until the variable is known, and checks the arguments. lb_side_fetch_begin then requests the elements, and
 * lb_side_fetch_take waits for them. */
int lb_side_fetch_create(const lb_side *side, const char *name, uint64_t version, const lb_layout *layout,
                         const char *dtype, const lb_select *select, void *into, const int64_t *strides, double timeout,
                         lb_side_fetch **fetch);
/* A hash that is the same for the same name, version, layout, dtype and selection. */
uint64_t lb_side_fetch_hash(const lb_side_fetch *fetch);
uint64_t lb_export_hash(const char *name, uint64_t version, const lb_layout *layout, const char *dtype);
int lb_side_fetch_begin(const lb_side *side, lb_side_fetch *fetch);
int lb_side_fetch_take(const lb_side *side, lb_side_fetch *fetch, double timeout);
void lb_side_fetch_free(lb_side_fetch **fetch);

/* Waits until the other side has fetched all exported versions. */
int lb_side_finish(const lb_side *side, double timeout);

/* Ends this rank's part and frees it. On the first rank, or if `failed`, also ends the coupling for this reason. */
void lb_side_end(lb_side **side, const char *reason, int32_t failed);

/* Sleeps; 0: yields the core. */
void lb_nap(int64_t microseconds);

/* Sets the text that lb_error() returns, and returns `code`. */
int lb_fail(int code, const char *text);

#ifdef __cplusplus
}
#endif
#endif
