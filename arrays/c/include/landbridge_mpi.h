/* Moves arrays from one layout to another, inside one MPI job. It fits any MPI library: the program compiles it.
 *
 *     lb_plan *plan;
 *     if (lb_plan_create(source, target, "f8", MPI_COMM_WORLD, NULL, &plan)) { fputs(lb_error(), stderr); ... }
 *     lb_plan_run(plan, a, b);
 *     lb_plan_free(&plan);
 *
 * Link with liblandbridge. Functions return the codes of landbridge.h. */
#ifndef LANDBRIDGE_MPI_H
#define LANDBRIDGE_MPI_H

#include "landbridge_ranks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A redistribution that all ranks of a communicator have agreed on, to be run many times. */
typedef struct lb_plan lb_plan;

/* A run in flight. */
typedef struct lb_run lb_run;

/* Options of lb_plan_create; NULLs are the defaults. Set all fields to 0 first. */
typedef struct lb_options {
    const int32_t *src_ranks;   /* the ranks that are the processes of the source; by default the first ones */
    const int32_t *dst_ranks;   /* the ranks that are the processes of the target */
    const lb_select *select;    /* the elements to move and their places; by default all, in order */
    const int64_t *src_strides; /* of this rank's part of the source, in bytes; by default it has no gaps */
    const int64_t *dst_strides; /* of this rank's part of the target */
    int64_t budget;             /* bytes of packed elements that lb_plan_run has in memory at a time; 0: 16 MiB */
} lb_options;

/* Collective. `dtype`: that of the elements, as NumPy writes it: "f8", "i4", "c16", or "V24" for 24 bytes of any kind.
 * If any rank cannot take part, all ranks return the same error. */
static inline int lb_plan_create(const lb_layout *src, const lb_layout *dst, const char *dtype, MPI_Comm comm,
                                 const lb_options *options, lb_plan **plan);

/* Collective: fills `into`, this rank's part of the target, from `a`, its part of the source; NULL if it has no part.
 * The arrays may overlap. Places that receive no element keep their values.
 *
 * A rank whose arguments are wrong returns an error. So does each rank that should have received elements from it. */
static inline int lb_plan_run(lb_plan *plan, const void *a, void *into);

/* Starts a run. Until it is over, `a` must not be changed and `into` must not be used. Several runs may be in flight;
 * all ranks must start them in the same order. Packs all elements at once, regardless of the budget, so that MPI can
 * send them even while this rank waits for something else. The plan keeps the memory for its next runs. */
static inline int lb_plan_start(lb_plan *plan, const void *a, void *into, lb_run **run);

/* Sets `over` to 1 once the run is over, so that lb_run_wait returns at once. Moves data, as all MPI calls do. */
static inline int lb_run_test(lb_run *run, int *over);

/* Waits until the run is over, and frees it. */
static inline int lb_run_wait(lb_run **run);

/* Bytes that this rank sends to each rank, and receives from each: arrays with one number for each rank. */
static inline void lb_plan_traffic(const lb_plan *plan, int64_t *sends, int64_t *receives);

/* Collective. All runs must be over. */
static inline void lb_plan_free(lb_plan **plan);

/* ---- implementation -------------------------------------------------------------------------------------------- */

/* The messages that this rank sends, or receives. */
typedef struct lb_mpi_side {
    lb_end *end; /* NULL: this rank has no part */
    const lb_message *messages;
    int64_t count;
    int64_t cut;         /* number of messages that go in pieces */
    MPI_Datatype *types; /* of straight messages; MPI_BYTE: the elements are contiguous */
    int64_t low, high;
} lb_mpi_side;

struct lb_plan {
    MPI_Comm comm;
    lb_transfer *transfer;
    lb_mpi_side sides[2]; /* sends, receives */
    int64_t budget;
    /* The arrays of the last run. */
    const void *a;
    void *into;
    /* Persistent requests for these arrays, if nothing has to be packed. */
    MPI_Request *ready;
    MPI_Status *statuses;
    int ready_count, ready_busy;
};

struct lb_run {
    lb_plan *plan;
    void *into;
    MPI_Request *requests;
    MPI_Status *statuses;
    int count;
    int over;
    int is_ready; /* the requests are the plan's `ready` */
    int code;     /* this rank's own error */
    char *text;
    void **arrived; /* for each received message: its buffer, or NULL */
    void **packed;
    int *at;    /* for each received message: its request, or -1 */
    int absent; /* a rank whose messages are empty, or -1 */
    lb_pieces *pieces;
    int slots;
    /* For each slot. */
    MPI_Request *moving;
    lb_piece *piece;
    /* Results of MPI_Testsome. */
    int *which;
    MPI_Status *moved;
};

/* Derives a datatype from another one. */
static inline int lb_mpi_type(const lb_step *step, MPI_Datatype of, MPI_Datatype *made) {
    int count = (int)step->count, length = (int)step->length, status;
    int *lengths = NULL;
    MPI_Aint *places;
    if (step->kind == LB_HVECTOR)
        return lb_mpi_check(MPI_Type_create_hvector(count, length, (MPI_Aint)step->stride, of, made),
                            "MPI_Type_create_hvector");
    places = (MPI_Aint *)malloc((size_t)(count + 1) * sizeof *places);
    lengths = (int *)malloc((size_t)(count + 1) * sizeof *lengths);
    if (!places || !lengths) {
        free(places);
        free(lengths);
        return lb_fail(LB_MEMORY, "no memory for a datatype");
    }
    for (int each = 0; each < count; each++) {
        places[each] = (MPI_Aint)step->places[each];
        lengths[each] = step->lengths ? (int)step->lengths[each] : length;
    }
    status = step->kind == LB_HINDEXED_BLOCK ? MPI_Type_create_hindexed_block(count, length, places, of, made)
                                             : MPI_Type_create_hindexed(count, lengths, places, of, made);
    free(places);
    free(lengths);
    return lb_mpi_check(status, "MPI_Type_create_hindexed");
}

/* Makes the datatype of a message, step by step, and commits it. */
static inline int lb_mpi_types(const lb_message *message, MPI_Datatype *type) {
    int code = LB_OK;
    for (int64_t number = 0; !code && number < message->step_count; number++) {
        MPI_Datatype of = *type, made = MPI_DATATYPE_NULL;
        code = lb_mpi_type(&message->steps[number], of, &made);
        if (number > 0) MPI_Type_free(&of);
        *type = code ? MPI_BYTE : made;
    }
    if (!code && *type != MPI_BYTE) code = lb_mpi_check(MPI_Type_commit(type), "MPI_Type_commit");
    return code;
}

/* Finds the messages of a side, and makes their datatypes. */
static inline int lb_mpi_bind(lb_mpi_side *side, const lb_transfer *transfer, int sends, int rank,
                              const int64_t *strides, const char *library) {
    int code = lb_end_create(transfer, sends, rank, strides, library, &side->end);
    if (code) return code;
    side->count = lb_end_messages(side->end, &side->messages);
    lb_end_bounds(side->end, &side->low, &side->high);
    side->types = (MPI_Datatype *)malloc((size_t)(side->count + 1) * sizeof *side->types);
    if (!side->types) return lb_fail(LB_MEMORY, "no memory for datatypes");
    for (int64_t at = 0; at < side->count; at++) side->types[at] = MPI_BYTE;
    for (int64_t at = 0; !code && at < side->count; at++) {
        const lb_message *message = &side->messages[at];
        side->cut += message->kind == LB_GO_PIECES;
        if (message->kind == LB_GO_STRAIGHT) code = lb_mpi_types(message, &side->types[at]);
    }
    return code;
}

static inline int lb_plan_create(const lb_layout *src, const lb_layout *dst, const char *dtype, MPI_Comm comm,
                                 const lb_options *options, lb_plan **plan) {
    lb_options all;
    lb_plan *made = (lb_plan *)calloc(1, sizeof *made);
    MPI_Comm own;
    char library[MPI_MAX_LIBRARY_VERSION_STRING], wrong[LB_MPI_TEXT];
    int rank, size, length, code;
    memset(&all, 0, sizeof all);
    if (options) all = *options;
    /* Collective, so every rank calls it before it checks anything. */
    code = lb_mpi_dup(comm, &own, &rank, &size);
    if (code) {
        free(made);
        return code;
    }
    MPI_Get_library_version(library, &length);
    if (!made || !plan) code = made ? lb_fail(LB_INVALID, "plan is NULL") : lb_fail(LB_MEMORY, "no memory for a plan");
    if (!code && all.budget < 0) {
        snprintf(wrong, sizeof wrong, "budget is %lld: it cannot be negative", (long long)all.budget);
        code = lb_fail(LB_INVALID, wrong);
    }
    if (!code) {
        made->comm = own;
        made->budget = all.budget;
        code = lb_transfer_create(src, dst, dtype, all.select, size, all.src_ranks, all.dst_ranks, &made->transfer);
    }
    code = lb_mpi_agree(own, code, made ? lb_transfer_hash(made->transfer) : 0);
    if (!code) code = lb_mpi_ask(made->transfer, own, rank, size);
    if (!code) {
        code = lb_mpi_bind(&made->sides[0], made->transfer, 1, rank, all.src_strides, library);
        if (!code) code = lb_mpi_bind(&made->sides[1], made->transfer, 0, rank, all.dst_strides, library);
        code = lb_mpi_agree(own, code, 0);
    }
    if (!code) code = lb_mpi_lend(made->transfer, made->sides[0].end, made->sides[1].end, own, rank);
    if (code) {
        char *text = lb_mpi_copy(lb_error());
        if (made) {
            made->comm = own;
            lb_plan_free(&made);
        } else {
            MPI_Comm_free(&own);
        }
        code = lb_fail(code, text);
        free(text);
        return code;
    }
    *plan = made;
    return LB_OK;
}

/* Allocates memory filled with 0; aborts the job if there is none. */
static inline void *lb_mpi_room(lb_plan *plan, int64_t bytes) {
    void *room = calloc(bytes > 0 ? (size_t)bytes : 1, 1);
    if (!room) {
        /* Other ranks wait for this one, which can neither send nor receive. */
        fprintf(stderr, "landbridge: no memory for the %lld bytes of a message\n", (long long)bytes);
        MPI_Abort(plan->comm, 1);
    }
    return room;
}

/* Number of items of a straight message: contiguous bytes, or one datatype. */
static inline int lb_mpi_items(const lb_mpi_side *side, int64_t at) {
    return side->types[at] == MPI_BYTE ? (int)side->messages[at].block : 1;
}

static inline void lb_mpi_forget(lb_plan *plan) {
    for (int each = 0; plan->ready && each < plan->ready_count; each++) MPI_Request_free(&plan->ready[each]);
    free(plan->ready);
    free(plan->statuses);
    plan->ready = NULL;
    plan->statuses = NULL;
}

/* Prepares persistent requests, if the arrays are those of the last run. Returns 1 if the plan has such requests. */
static inline int lb_mpi_prepare(lb_plan *plan, const void *a, void *into) {
    int at = 0, again = plan->a == a && plan->into == into;
    if (again && plan->ready) return 1;
    lb_mpi_forget(plan);
    plan->a = a;
    plan->into = into;
    if (!again) return 0;
    for (int side = 0; side < 2; side++)
        for (int64_t each = 0; each < plan->sides[side].count; each++)
            if (plan->sides[side].messages[each].kind != LB_GO_STRAIGHT) return 0;
    plan->ready_count = (int)(plan->sides[0].count + plan->sides[1].count);
    plan->ready = (MPI_Request *)malloc((size_t)(plan->ready_count + 1) * sizeof *plan->ready);
    plan->statuses = (MPI_Status *)malloc((size_t)(plan->ready_count + 1) * sizeof *plan->statuses);
    if (!plan->ready || !plan->statuses) {
        plan->ready_count = 0;
        lb_mpi_forget(plan);
        return 0;
    }
    for (int side = 1; side >= 0; side--) {
        const lb_mpi_side *of = &plan->sides[side];
        for (int64_t each = 0; each < of->count; each++) {
            char *place = (side ? (char *)into : (char *)a) + of->messages[each].offset;
            int items = lb_mpi_items(of, each), rank = of->messages[each].rank;
            if (side)
                MPI_Recv_init(place, items, of->types[each], rank, LB_MPI_TAG, plan->comm, &plan->ready[at++]);
            else
                MPI_Send_init(place, items, of->types[each], rank, LB_MPI_TAG, plan->comm, &plan->ready[at++]);
        }
    }
    return 1;
}

/* Returns an error if this rank cannot take part with these arrays. */
static inline int lb_mpi_fits(const lb_plan *plan, const void *a, const void *into) {
    if (a && !plan->sides[0].end)
        return lb_fail(LB_INVALID, "a is given, but this rank is no process of src: it must be NULL");
    if (into && !plan->sides[1].end)
        return lb_fail(LB_INVALID, "into is given, but this rank is no process of dst: it must be NULL");
    if (!a && plan->sides[0].high > 0) return lb_fail(LB_INVALID, "a is NULL, but this rank is a process of src");
    if (!into && plan->sides[1].high > 0) return lb_fail(LB_INVALID, "into is NULL, but this rank is a process of dst");
    return LB_OK;
}

/* Sends, receives and copies pieces of a run until it would have to wait: see lb_runs_advance. */
static inline int lb_mpi_advance(void *of, int *moved, int *over) {
    lb_run *run = (lb_run *)of;
    MPI_Comm comm = run->plan->comm;
    int code = MPI_SUCCESS, again = 1;
    while (again && run->pieces && code == MPI_SUCCESS) {
        lb_piece next;
        int count = 0;
        again = 0;
        while (code == MPI_SUCCESS && lb_pieces_next(run->pieces, &next)) {
            MPI_Request *request = &run->moving[next.slot];
            run->piece[next.slot] = next;
            if (next.sends)
                code = MPI_Isend(next.at, (int)next.bytes, MPI_BYTE, next.rank, LB_MPI_TAG, comm, request);
            else
                code = MPI_Irecv(next.at, (int)next.bytes, MPI_BYTE, next.rank, LB_MPI_TAG, comm, request);
            again = 1;
        }
        if (code == MPI_SUCCESS) code = MPI_Testsome(run->slots, run->moving, &count, run->which, run->moved);
        for (int at = 0; code == MPI_SUCCESS && count != MPI_UNDEFINED && at < count; at++) {
            const lb_piece *piece = &run->piece[run->which[at]];
            int bytes = 1;
            if (!piece->sends) code = MPI_Get_count(&run->moved[at], MPI_BYTE, &bytes);
            if (bytes == 0) run->absent = piece->rank;
            lb_pieces_over(run->pieces, piece->slot, bytes);
            again = 1;
        }
        if (!again) again = lb_pieces_copy_own(run->pieces);
        *moved |= again;
    }
    *over = (int)lb_pieces_are_over(run->pieces);
    return lb_mpi_check(code, "moving a piece");
}

/* Begins the messages that go in pieces, if there are any. `all`: packs them all at once. */
static inline int lb_mpi_cut(lb_run *run, const void *a, void *into, int hold, int all) {
    lb_plan *plan = run->plan;
    const lb_mpi_side *sends = &plan->sides[0], *receives = &plan->sides[1];
    int64_t slots;
    int rank, moved = 0;
    if (sends->cut + receives->cut == 0) return LB_OK;
    MPI_Comm_rank(plan->comm, &rank);
    if (lb_pieces_create(plan->transfer, sends->end, receives->end, rank, a, into, hold, all ? -1 : plan->budget,
                         &run->pieces)) {
        /* Other ranks wait for this one. */
        fprintf(stderr, "landbridge: %s\n", lb_error());
        MPI_Abort(plan->comm, 1);
    }
    run->slots = (int)lb_pieces_slots(run->pieces);
    slots = (int64_t)run->slots + 1;
    run->moving = (MPI_Request *)lb_mpi_room(plan, slots * (int64_t)sizeof *run->moving);
    run->piece = (lb_piece *)lb_mpi_room(plan, slots * (int64_t)sizeof *run->piece);
    run->which = (int *)lb_mpi_room(plan, slots * (int64_t)sizeof *run->which);
    run->moved = (MPI_Status *)lb_mpi_room(plan, slots * (int64_t)sizeof *run->moved);
    for (int slot = 0; slot < run->slots; slot++) run->moving[slot] = MPI_REQUEST_NULL;
    lb_runs_enter(run);
    return lb_runs_advance(lb_mpi_advance, &moved);
}

/* Begins a run. `all`: packs all messages at once, so that MPI alone can complete it. */
static inline int lb_mpi_begin(lb_plan *plan, const void *a, void *into, int all, lb_run **run) {
    lb_run *begun;
    const lb_mpi_side *sends, *receives;
    int code, overlap, at = 0, rank;
    int64_t most;
    if (!plan || !run) return lb_fail(LB_INVALID, plan ? "run is NULL" : "plan is NULL");
    sends = &plan->sides[0];
    receives = &plan->sides[1];
    begun = (lb_run *)lb_mpi_room(plan, (int64_t)sizeof *begun);
    begun->plan = plan;
    begun->into = into;
    begun->absent = -1;
    code = lb_mpi_fits(plan, a, into);
    begun->code = code;
    if (code) {
        char text[LB_MPI_TEXT];
        MPI_Comm_rank(plan->comm, &rank);
        snprintf(text, sizeof text, "rank %d: %.960s", rank, lb_error());
        begun->text = lb_mpi_copy(text);
    }
    begun->at = (int *)lb_mpi_room(plan, (receives->count + 1) * (int64_t)sizeof *begun->at);
    overlap = !code && a && into && (const char *)a + sends->low < (const char *)into + receives->high &&
              (const char *)into + receives->low < (const char *)a + sends->high;
    if (!code && !overlap && !plan->ready_busy && lb_mpi_prepare(plan, a, into)) {
        plan->ready_busy = begun->is_ready = 1;
        begun->requests = plan->ready;
        begun->statuses = plan->statuses;
        begun->count = plan->ready_count;
        for (int64_t each = 0; each < receives->count; each++) begun->at[each] = (int)each;
        *run = begun;
        return lb_mpi_check(MPI_Startall(begun->count, begun->requests), "MPI_Startall");
    }
    most = receives->count + sends->count + 1;
    begun->requests = (MPI_Request *)lb_mpi_room(plan, most * (int64_t)sizeof *begun->requests);
    begun->statuses = (MPI_Status *)lb_mpi_room(plan, most * (int64_t)sizeof *begun->statuses);
    begun->arrived = (void **)lb_mpi_room(plan, (receives->count + 1) * (int64_t)sizeof *begun->arrived);
    begun->packed = (void **)lb_mpi_room(plan, (sends->count + 1) * (int64_t)sizeof *begun->packed);
    for (int64_t each = 0; each < receives->count; each++) {
        const lb_message *message = &receives->messages[each];
        begun->at[each] = -1;
        if (message->kind == LB_GO_PIECES) continue;
        begun->at[each] = at;
        if (!code && !overlap && message->kind == LB_GO_STRAIGHT) {
            MPI_Irecv((char *)into + message->offset, lb_mpi_items(receives, each), receives->types[each],
                      message->rank, LB_MPI_TAG, plan->comm, &begun->requests[at++]);
            continue;
        }
        begun->arrived[each] = lb_mpi_room(plan, message->bytes);
        MPI_Irecv(begun->arrived[each], (int)message->bytes, MPI_BYTE, message->rank, LB_MPI_TAG, plan->comm,
                  &begun->requests[at++]);
    }
    for (int64_t each = 0; each < sends->count; each++) {
        const lb_message *message = &sends->messages[each];
        if (message->kind == LB_GO_PIECES) continue;
        if (!code && !overlap && message->kind == LB_GO_STRAIGHT) {
            MPI_Isend((char *)a + message->offset, lb_mpi_items(sends, each), sends->types[each], message->rank,
                      LB_MPI_TAG, plan->comm, &begun->requests[at++]);
            continue;
        }
        begun->packed[each] = lb_mpi_room(plan, code ? 1 : message->bytes);
        if (!code) lb_end_pack(sends->end, each, a, begun->packed[each]);
        MPI_Isend(begun->packed[each], code ? 0 : (int)message->bytes, MPI_BYTE, message->rank, LB_MPI_TAG, plan->comm,
                  &begun->requests[at++]);
    }
    begun->count = at;
    *run = begun;
    return lb_mpi_cut(begun, code ? NULL : a, code ? NULL : into, overlap, all);
}

static inline int lb_plan_start(lb_plan *plan, const void *a, void *into, lb_run **run) {
    return lb_mpi_begin(plan, a, into, 1, run);
}

/* Moves pieces of all runs. Sets `over` to 1 once this one is over, and `moved` to 1 if any piece has moved. */
static inline int lb_mpi_test(lb_run *run, int *over, int *moved) {
    int code = lb_runs_advance(lb_mpi_advance, moved);
    *over = 0;
    if (code || (run->pieces && !lb_pieces_are_over(run->pieces))) return code;
    if (!run->over)
        code = lb_mpi_check(MPI_Testall(run->count, run->requests, &run->over, run->statuses), "MPI_Testall");
    *over = run->over;
    return code;
}

static inline int lb_run_test(lb_run *run, int *over) {
    int moved = 0;
    if (!run || !over) return lb_fail(LB_INVALID, run ? "over is NULL" : "run is NULL");
    return lb_mpi_test(run, over, &moved);
}

/* Waits until all messages of a run have been sent and received. */
static inline int lb_mpi_finish(lb_run *run) {
    int64_t nap = 0;
    int code = LB_OK, over = 0;
    double begun = MPI_Wtime();
    while (!code && !over && lb_runs_count() > 0) {
        int moved = 0;
        code = lb_mpi_test(run, &over, &moved);
        if (moved) {
            begun = MPI_Wtime();
            nap = 0;
        } else if (!over) {
            /* Others may compute on this core: at first this rank yields it between polls, later it sleeps. */
            double waited = MPI_Wtime() - begun;
            if (waited > 3e-4) nap = nap < 250 ? 2 * nap + 10 : 250;
            if (waited > 0.05) lb_pieces_expect_nothing_back(run->pieces);
            lb_nap(nap);
        }
    }
    if (!code && !run->over) code = lb_mpi_check(MPI_Waitall(run->count, run->requests, run->statuses), "MPI_Waitall");
    return code;
}

static inline int lb_run_wait(lb_run **run) {
    lb_run *over;
    const lb_mpi_side *receives;
    int code, finished;
    if (!run || !*run) return lb_fail(LB_INVALID, "run is NULL");
    over = *run;
    receives = &over->plan->sides[1];
    code = lb_mpi_finish(over);
    lb_runs_leave(over);
    finished = code == LB_OK;
    for (int64_t each = 0; !code && each < receives->count; each++) {
        int count = 0;
        const lb_message *message = &receives->messages[each];
        if (over->at[each] < 0) continue;
        MPI_Get_count(&over->statuses[over->at[each]], MPI_BYTE, &count);
        /* A rank that cannot take part sends empty messages. */
        if (count == 0 && message->bytes > 0)
            over->absent = (int)message->rank;
        else if (count > 0 && !over->code && !over->is_ready && over->arrived[each])
            lb_end_unpack(receives->end, each, over->arrived[each], over->into);
    }
    if (over->absent >= 0 && !over->code) {
        char text[LB_MPI_TEXT];
        snprintf(text, sizeof text, "rank %d did not take part: its own error gives the reason", over->absent);
        over->code = LB_INVALID;
        over->text = lb_mpi_copy(text);
    }
    if (!code && over->code) code = lb_fail(over->code, over->text ? over->text : "no memory to say what is wrong");
    if (over->is_ready) {
        over->plan->ready_busy = 0;
    } else {
        for (int64_t each = 0; each < receives->count; each++) free(over->arrived[each]);
        for (int64_t each = 0; each < over->plan->sides[0].count; each++) free(over->packed[each]);
        free(over->arrived);
        free(over->packed);
        free(over->requests);
        free(over->statuses);
    }
    /* If MPI has failed, it may still use the pieces. */
    if (finished) lb_pieces_free(&over->pieces);
    free(over->moving);
    free(over->piece);
    free(over->which);
    free(over->moved);
    free(over->at);
    free(over->text);
    free(over);
    *run = NULL;
    return code;
}

static inline int lb_plan_run(lb_plan *plan, const void *a, void *into) {
    lb_run *run = NULL;
    int code = lb_mpi_begin(plan, a, into, 0, &run);
    return code ? code : lb_run_wait(&run);
}

static inline void lb_plan_traffic(const lb_plan *plan, int64_t *sends, int64_t *receives) {
    int size;
    MPI_Comm_size(plan->comm, &size);
    for (int side = 0; side < 2; side++) {
        int64_t *bytes = side ? receives : sends;
        memset(bytes, 0, (size_t)size * sizeof *bytes);
        for (int64_t at = 0; at < plan->sides[side].count; at++) {
            const lb_message *message = &plan->sides[side].messages[at];
            bytes[message->rank] += message->bytes;
        }
    }
}

static inline void lb_plan_free(lb_plan **plan) {
    lb_plan *old;
    if (!plan || !*plan) return;
    old = *plan;
    lb_mpi_forget(old);
    for (int side = 0; side < 2; side++) {
        for (int64_t at = 0; old->sides[side].types && at < old->sides[side].count; at++)
            if (old->sides[side].types[at] != MPI_BYTE) MPI_Type_free(&old->sides[side].types[at]);
        free(old->sides[side].types);
        lb_end_free(&old->sides[side].end);
    }
    lb_transfer_free(&old->transfer);
    MPI_Comm_free(&old->comm);
    free(old);
    *plan = NULL;
}

#ifdef __cplusplus
}
#endif
#endif
