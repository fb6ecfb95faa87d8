/* Distributed arrays: how they are spread over processes, which elements go from whom to whom, and two programs that
 * exchange them.
 *
 * This header needs no MPI. landbridge_mpi.h, which includes it, moves elements between ranks.
 *
 * Functions that return int return LB_OK, or another LB_ code; lb_error() then says what was wrong. Objects are freed
 * by the function named after them, which takes NULL too and makes the caller's variable NULL. Shapes, indices and
 * counts are in elements, strides in bytes. An object may be used by one thread at a time. */
#ifndef LANDBRIDGE_H
#define LANDBRIDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LB_OK = 0,
    LB_INVALID = 1,  /* an argument, or what ranks pass does not fit together */
    LB_OVER = 2,     /* there is no coupling, or it has ended */
    LB_TIMEOUT = 3,  /* it takes longer than the caller wants to wait */
    LB_MEMORY = 4,   /* there is not enough */
    LB_INTERNAL = 5, /* a fault of Landbridge */
    LB_MPI = 6       /* a function of MPI has failed */
};

/* What went wrong in the last call that failed on this thread, in English; valid until the next one that fails. */
const char *lb_error(void);

/* Such as "0.1.0". */
const char *lb_version(void);

/* ---- layouts ---------------------------------------------------------------------------------------------------- */

enum { LB_C = 0, LB_FORTRAN = 1 };

enum { LB_WHOLE = 0, LB_BLOCK = 1, LB_CYCLIC = 2, LB_LISTS = 3 };

/* How the indices of an axis are spread over the processes along it; made by the functions below. */
typedef struct lb_axis {
    int32_t kind;
    int32_t over;           /* processes along it */
    int64_t block;          /* cyclic: indices of a block */
    int32_t first;          /* cyclic: the process that has the first block */
    int32_t periodic;       /* whether the first index follows the last one, for halos */
    int64_t before, after;  /* halo: copies of neighbouring indices, which are filled but never sent */
    const int64_t *sizes;   /* block: how many indices each process has, or NULL; lists: the same */
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

/* The same, but `sizes` says how many each has; read when the layout is made. */
static inline lb_axis lb_block_sizes(int32_t over, const int64_t *sizes) {
    lb_axis axis = {LB_BLOCK, over, 0, 0, 0, 0, 0, sizes, NULL};
    return axis;
}

/* Blocks of `block` indices dealt out in turn, the first to process `first`. A process keeps its blocks one after the
 * other, as ScaLAPACK does. */
static inline lb_axis lb_cyclic(int32_t over, int64_t block, int32_t first) {
    lb_axis axis = {LB_CYCLIC, over, block, first, 0, 0, 0, NULL, NULL};
    return axis;
}

/* The indices that each process has, in the order in which it keeps them; read when the layout is made. */
static inline lb_axis lb_lists(int32_t over, const int64_t *sizes, const int64_t *indices) {
    lb_axis axis = {LB_LISTS, over, 0, 0, 0, 0, 0, sizes, indices};
    return axis;
}

/* Of a whole or block axis: each process also keeps this many indices before and after its own. */
static inline lb_axis lb_with_halo(lb_axis axis, int64_t before, int64_t after, int periodic) {
    axis.before = before;
    axis.after = after;
    axis.periodic = periodic != 0;
    return axis;
}

typedef struct lb_layout lb_layout;

/* An array of `axes` axes. `shape`, `along`: for each axis its extent, and how it is spread. Processes are numbered
 * row-major over a grid that has a dimension for each axis. `order`: of local elements in memory. */
int lb_layout_create(int32_t axes, const int64_t *shape, const lb_axis *along, int32_t order, lb_layout **layout);

/* The same on a grid of `dimensions` dimensions, slowest first. `processes`: how many there are along each; `axis`: the
 * axis that runs along it, or -1: processes along it hold copies of the same. */
int lb_layout_create_on_grid(int32_t axes, const int64_t *shape, const lb_axis *along, int32_t order,
                             int32_t dimensions, const int32_t *processes, const int32_t *axis, lb_layout **layout);

/* Consecutive elements: the number of the first one, row-major over the array, and how many. */
typedef struct lb_run_of {
    int64_t first, count;
} lb_run_of;

/* A layout for `size` processes, each of which knows its own part alone: these runs of elements, one after the other in
 * a local array of one axis. Read when the layout is made. For plans; the other layout of a plan may be of any kind,
 * but nothing can be selected. A coupling takes the array in blocks: move it there by a plan. */
int lb_layout_create_runs(int32_t axes, const int64_t *shape, int32_t size, int64_t count, const lb_run_of *runs,
                          lb_layout **layout);

void lb_layout_free(lb_layout **layout);

/* How many processes it is for. */
int32_t lb_layout_size(const lb_layout *layout);

/* How many axes the array has, and its shape: one number for each axis. */
int32_t lb_layout_axes(const lb_layout *layout);
int lb_layout_shape(const lb_layout *layout, int64_t *shape);

/* The shape of a process's local part, halos included: one number for each axis. Where a process has no index of an
 * axis, that one is 0, and the others are what they are for its neighbours. */
int lb_layout_local_shape(const lb_layout *layout, int32_t process, int64_t *shape);

/* The process that owns the element at an index of the array, the first of its copies. */
int lb_layout_owner(const lb_layout *layout, const int64_t *index, int32_t *owner);

/* ---- which elements --------------------------------------------------------------------------------------------- */

/* The indices start, start + step, ...: `count` of them. A negative count: the index `start` alone; then what is
 * selected does not have the axis. */
typedef struct lb_slice {
    int64_t start, step, count;
} lb_slice;

/* Which elements of the source go to which of the target: parts of both, of the same shape. A NULL means all, in order.
 * `source`, `target`: one slice for each axis of the array. `axes`: for each axis of the target's part, which axis of
 * the source's part it is: {1, 0} transposes. `shift`: for each axis of the source's part, which position comes first;
 * those before it come last. */
typedef struct lb_select {
    const lb_slice *source, *target;
    const int32_t *axes;
    const int64_t *shift;
} lb_select;

/* ---- what landbridge_mpi.h is made of ----------------------------------------------------------------------------
 *
 * Programs that move bytes by other means than MPI may use it as well. */

/* Which elements go where, and which rank each process is. */
typedef struct lb_transfer lb_transfer;

/* `dtype`: see landbridge_mpi.h. `size`: how many ranks there are. `src_ranks`, `dst_ranks`: the ranks that are the
 * processes of each layout; NULL: the first ones. */
int lb_transfer_create(const lb_layout *src, const lb_layout *dst, const char *dtype, const lb_select *select,
                       int32_t size, const int32_t *src_ranks, const int32_t *dst_ranks, lb_transfer **transfer);

/* Whether ranks have to ask each other who has what, because a layout is of runs. Then each rank begins with
 * `lb_transfer_ask`, and twice all write each other letters: `lb_transfer_letter` returns the length of the one to a
 * rank, and `lb_transfer_read` takes those of all ranks, one after the other, and their lengths. */
int32_t lb_transfer_asks(const lb_transfer *transfer);
int lb_transfer_ask(lb_transfer *transfer, int32_t rank);
int64_t lb_transfer_letter(const lb_transfer *transfer, int32_t to, const void **letter);
int lb_transfer_read(lb_transfer *transfer, const void *letters, const int64_t *lengths);

/* Ranks of a node may read pieces where another rank has packed them. A rank that sends tells its address, if it has
 * one (else this returns 0); the one that receives opens it, which returns 0 if it cannot; then the first one allows
 * that. */
enum { LB_ADDRESS = 48 };
int32_t lb_transfer_address(const lb_transfer *transfer, unsigned char address[LB_ADDRESS]);
int32_t lb_transfer_open(const lb_transfer *transfer, int32_t rank, const unsigned char address[LB_ADDRESS]);
void lb_transfer_allow(const lb_transfer *transfer, int32_t rank);

/* The same number for the same layouts, selection, dtype and ranks. */
uint64_t lb_transfer_hash(const lb_transfer *transfer);

void lb_transfer_free(lb_transfer **transfer);

/* How a datatype of MPI is made of another one: the first step of MPI_BYTE, each other one of what the step before it
 * has made. Places and strides are in bytes. */
enum { LB_HVECTOR = 0, LB_HINDEXED_BLOCK = 1, LB_HINDEXED = 2 };

typedef struct lb_step {
    int32_t kind;
    int64_t count;
    int64_t length; /* of each block, unless they are in `lengths` */
    int64_t stride;
    const int64_t *places;
    const int64_t *lengths;
} lb_step;

/* How a message goes: MPI moves its elements; or they are packed, in pieces; or they are packed here alone, and sent at
 * once, because at the other end MPI moves them. */
enum { LB_GO_STRAIGHT = 0, LB_GO_PIECES = 1, LB_GO_WHOLE = 2 };

/* What goes to, or comes from, a rank. */
typedef struct lb_message {
    int32_t rank;
    int32_t kind;   /* unless it is LB_GO_STRAIGHT, what follows `bytes` means nothing */
    int64_t bytes;
    int64_t offset; /* where they begin, in bytes from the local array's first element */
    int64_t block;  /* if there are no steps: bytes that follow each other there */
    const lb_step *steps;
    int64_t step_count;
} lb_message;

/* What a rank sends, or receives. */
typedef struct lb_end lb_end;

/* Of the source, if `sends`, else of the target; *end is NULL if the rank is none of its processes. `strides`: of the
 * local array; NULL: there are no gaps. `library`: what MPI_Get_library_version says, or "". */
int lb_end_create(const lb_transfer *transfer, int32_t sends, int32_t rank, const int64_t *strides,
                  const char *library, lb_end **end);

/* Returns how many there are, in the order of their steps; valid as long as `end`. */
int64_t lb_end_messages(const lb_end *end, const lb_message **messages);

/* Whether it is worth lending memory for this message. */
int32_t lb_end_may_lend(const lb_end *end, int64_t message);

/* The bytes of the local array, from and to, counted from its first element. */
void lb_end_bounds(const lb_end *end, int64_t *low, int64_t *high);

/* Copies the elements of a message between the array and a buffer of `bytes` bytes. */
void lb_end_pack(const lb_end *end, int64_t message, const void *array, void *buffer);
void lb_end_unpack(const lb_end *end, int64_t message, const void *buffer, void *array);

void lb_end_free(lb_end **end);

/* The messages of a run that are packed, in pieces, of which no more are in memory at a time than `budget` bytes have
 * room for; 0: 16 MiB; negative: all at once. `a` NULL: they are empty; `into` NULL: what comes is not kept. `hold`:
 * all that is sent is packed at once, as where the arrays share memory. */
typedef struct lb_pieces lb_pieces;

/* A piece that is to be sent to, or received from, a rank. */
typedef struct lb_piece {
    int32_t slot; /* at most as many are in flight as there are slots */
    int32_t sends;
    int32_t rank;
    void *at;
    int64_t bytes;
} lb_piece;

int lb_pieces_create(const lb_transfer *transfer, const lb_end *sends, const lb_end *receives, int32_t rank,
                     const void *a, void *into, int32_t hold, int64_t budget, lb_pieces **pieces);
int32_t lb_pieces_slots(const lb_pieces *pieces);

/* The next one; returns 0 if there is none before others are over. */
int32_t lb_pieces_next(lb_pieces *pieces, lb_piece *piece);

/* The piece in this slot has been sent, or has come with this many bytes. */
void lb_pieces_over(lb_pieces *pieces, int32_t slot, int64_t bytes);

/* Copies some of what stays in this process; returns 0 if there is nothing more. */
int32_t lb_pieces_copy_own(lb_pieces *pieces);
int32_t lb_pieces_are_over(const lb_pieces *pieces);
void lb_pieces_free(lb_pieces **pieces);

/* How the ranks of a side of a coupling tell each other something. Both functions are collective, move `length` bytes
 * of each rank, and return 0. */
typedef struct lb_ranks {
    int32_t rank, size;
    void *context;
    int (*broadcast)(void *context, void *bytes, int64_t length); /* the first rank's, to all */
    int (*gather)(void *context, const void *own, int64_t length, void *all);
} lb_ranks;

/* A rank's part in a coupling, and something that it fetches: see landbridge_coupling.h. Only
 * lb_side_join is collective: callers make sure that all ranks do the same. `ranks` NULL: one process, without MPI.
 * `timeout`: in seconds; negative: endless. */
typedef struct lb_side lb_side;
typedef struct lb_side_fetch lb_side_fetch;

int lb_side_join(const lb_ranks *ranks, const char *name, const char *site, double timeout, lb_side **side);
const char *lb_side_other(const lb_side *side);

/* Waits until there is room for this rank's part. */
int lb_side_room(const lb_side *side, const lb_layout *layout, const char *dtype, const void *a, int64_t budget,
                 double timeout);
int lb_side_export(const lb_side *side, const char *name, uint64_t version, const lb_layout *layout, const char *dtype,
                   const void *a, const int64_t *strides);
int lb_side_variable(const lb_side *side, const char *name, double timeout, char *dtype, int64_t length,
                     lb_layout **layout);

/* Waits until the variable is known, and checks; lb_side_fetch_begin asks for the elements, and lb_side_fetch_take
 * waits for them. */
int lb_side_fetch_create(const lb_side *side, const char *name, uint64_t version, const lb_layout *layout,
                         const char *dtype, const lb_select *select, void *into, const int64_t *strides,
                         double timeout, lb_side_fetch **fetch);
/* The same number for the same name, version, layout, dtype and selection. */
uint64_t lb_side_fetch_hash(const lb_side_fetch *fetch);
uint64_t lb_export_hash(const char *name, uint64_t version, const lb_layout *layout, const char *dtype);
int lb_side_fetch_begin(const lb_side *side, lb_side_fetch *fetch);
int lb_side_fetch_take(const lb_side *side, lb_side_fetch *fetch, double timeout);
void lb_side_fetch_free(lb_side_fetch **fetch);

/* Waits until the other side has everything that was exported. */
int lb_side_finish(const lb_side *side, double timeout);

/* Ends this rank's part, and if it is the first one's, or `failed`, the coupling, for this reason. */
void lb_side_end(lb_side **side, const char *reason, int32_t failed);

/* Sleeps; 0: lets others run. */
void lb_nap(int64_t microseconds);

/* Makes `text` what lb_error() returns, and returns `code`. */
int lb_fail(int code, const char *text);

#ifdef __cplusplus
}
#endif
#endif
