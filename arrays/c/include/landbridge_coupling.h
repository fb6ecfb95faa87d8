/* Arrays between two parallel programs, with any launchers and at any sites.
 *
 *     lb_coupling *coupling;
 *     lb_join("ocean@lyon", MPI_COMM_WORLD, NULL, &coupling);                        in the ocean model
 *     lb_export(coupling, "sst", step, layout, "f8", sst, NULL);
 *     lb_close(&coupling, -1);
 *
 *     lb_join("ocean@lyon", MPI_COMM_WORLD, NULL, &coupling);                        in the atmosphere
 *     lb_fetch(coupling, "sst", step, layout, "f8", sst, NULL);
 *     lb_close(&coupling, -1);
 *
 * All functions are collective over the communicator, except lb_leave, and return the same error on all ranks. Times
 * are in seconds. */
#ifndef LANDBRIDGE_COUPLING_H
#define LANDBRIDGE_COUPLING_H

#include "landbridge_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One side of a coupling. */
typedef struct lb_coupling lb_coupling;

/* A fetch in flight. */
typedef struct lb_fetching lb_fetching;

typedef struct lb_join_options {
    double timeout;   /* limit of the wait for the other program; 0: 300 s; negative: forever */
    int64_t budget;   /* bytes of exported versions that each rank holds until they are fetched; 0: 1 GiB */
    const char *site; /* the site where this program was started, if there are keys of several sites here */
} lb_join_options;

typedef struct lb_transfer_options {
    const int64_t *strides;  /* of this rank's part, in bytes; by default it has no gaps */
    const lb_select *select; /* lb_fetch: the elements to move and their places; by default all, in order */
    double timeout;          /* 0, or negative: as long as the other side is there */
} lb_transfer_options;

/* Couples this program with another one that joins under the same name, such as "ocean@lyon": any name, and the site at
 * whose gateway both programs meet. MPI_COMM_NULL: this process alone. */
static inline int lb_join(const char *name, MPI_Comm comm, const lb_join_options *options, lb_coupling **coupling);

/* The other side's description, for messages. */
static inline const char *lb_other(const lb_coupling *coupling);

/* Offers a version of a variable to the other side; the processes of `layout` are the first ranks. `a` is copied, so it
 * may be changed afterwards. Waits only while the budget is exceeded. Versions of a name must increase; its layout and
 * dtype stay the same. */
static inline int lb_export(lb_coupling *coupling, const char *name, uint64_t version, const lb_layout *layout,
                            const char *dtype, const void *a, const lb_transfer_options *options);

enum { LB_DTYPE = 64 };

/* Waits until the other side exports the variable. Writes its dtype, in LB_DTYPE bytes, and its layout there, which the
 * caller frees. `timeout`, here and below: negative: as long as the other side is there. */
static inline int lb_variable(lb_coupling *coupling, const char *name, double timeout, char *dtype, lb_layout **layout);

/* Waits until a version of the other side's variable is exported, and fills `into`, this rank's part of it in `layout`.
 * Afterwards, older versions can no longer be fetched. After LB_TIMEOUT the same fetch may be repeated, into the same
 * memory. */
static inline int lb_fetch(lb_coupling *coupling, const char *name, uint64_t version, const lb_layout *layout,
                           const char *dtype, void *into, const lb_transfer_options *options);

/* Begins a fetch, so that elements arrive while the program computes. Waits until the other side has exported a version
 * of the variable. One fetch may be in flight at a time. */
static inline int lb_fetch_start(lb_coupling *coupling, const char *name, uint64_t version, const lb_layout *layout,
                                 const char *dtype, void *into, const lb_transfer_options *options,
                                 lb_fetching **fetching);

/* Waits until all ranks have their parts, and frees the fetch. After LB_TIMEOUT it may be called again. */
static inline int lb_fetch_wait(lb_fetching **fetching, double timeout);

/* Ends the coupling once the other side has fetched all exported versions; frees it in any case. */
static inline int lb_close(lb_coupling **coupling, double timeout);

/* Ends the coupling at once, and sends this reason to the other side; not collective. */
static inline void lb_leave(lb_coupling **coupling, const char *reason);

/* ---- implementation -------------------------------------------------------------------------------------------- */

struct lb_coupling {
    MPI_Comm comm; /* MPI_COMM_NULL: this process alone */
    lb_side *side;
    int64_t budget;
    lb_fetching *fetching;
    lb_fetching *late; /* fetches that have timed out, one for each name: no version is requested twice */
};

struct lb_fetching {
    lb_coupling *coupling;
    char *name;
    uint64_t version;
    void *into;
    lb_side_fetch *fetch;
    int code; /* this rank's error of beginning the fetch */
    char *text;
    lb_fetching *next; /* next late fetch */
};

static inline int lb_mpi_broadcast(void *context, void *bytes, int64_t length) {
    MPI_Request request;
    int code = lb_mpi_check(MPI_Ibcast(bytes, (int)length, MPI_BYTE, 0, *(MPI_Comm *)context, &request), "MPI_Ibcast");
    return code ? code : lb_mpi_wait(&request);
}

static inline int lb_mpi_gather(void *context, const void *own, int64_t length, void *all) {
    MPI_Request request;
    int code = MPI_Iallgather(own, (int)length, MPI_BYTE, all, (int)length, MPI_BYTE, *(MPI_Comm *)context, &request);
    code = lb_mpi_check(code, "MPI_Iallgather");
    return code ? code : lb_mpi_wait(&request);
}

static inline int lb_join(const char *name, MPI_Comm comm, const lb_join_options *options, lb_coupling **coupling) {
    lb_coupling *made = (lb_coupling *)calloc(1, sizeof *made);
    MPI_Comm own = MPI_COMM_NULL;
    lb_ranks ranks;
    double timeout = options && options->timeout != 0 ? options->timeout : 300;
    int code = LB_OK;
    if (comm != MPI_COMM_NULL) {
        int rank, size;
        code = lb_mpi_dup(comm, &own, &rank, &size);
        if (code) {
            free(made);
            return code;
        }
        ranks.rank = rank;
        ranks.size = size;
        ranks.context = &own;
        ranks.broadcast = lb_mpi_broadcast;
        ranks.gather = lb_mpi_gather;
    }
    if (!made || !coupling)
        code = made ? lb_fail(LB_INVALID, "coupling is NULL") : lb_fail(LB_MEMORY, "no memory for a coupling");
    code = lb_mpi_agree(own, code, 0);
    if (!code)
        code = lb_side_join(own == MPI_COMM_NULL ? NULL : &ranks, name, options ? options->site : NULL, timeout,
                            &made->side);
    if (code) {
        if (own != MPI_COMM_NULL) MPI_Comm_free(&own);
        free(made);
        return code;
    }
    made->comm = own;
    made->budget = options && options->budget ? options->budget : (int64_t)1 << 30;
    *coupling = made;
    return LB_OK;
}

static inline const char *lb_other(const lb_coupling *coupling) { return lb_side_other(coupling->side); }

static inline double lb_mpi_timeout(const lb_transfer_options *options) {
    return options && options->timeout != 0 ? options->timeout : -1;
}

static inline int lb_export(lb_coupling *coupling, const char *name, uint64_t version, const lb_layout *layout,
                            const char *dtype, const void *a, const lb_transfer_options *options) {
    int code;
    if (!coupling) return lb_fail(LB_INVALID, "coupling is NULL");
    code = lb_side_room(coupling->side, layout, dtype, a, coupling->budget, lb_mpi_timeout(options));
    code = lb_mpi_agree(coupling->comm, code, lb_export_hash(name, version, layout, dtype));
    if (code) return code;
    /* An error from here on is the same on all ranks. */
    return lb_side_export(coupling->side, name, version, layout, dtype, a, options ? options->strides : NULL);
}

static inline int lb_variable(lb_coupling *coupling, const char *name, double timeout, char *dtype,
                              lb_layout **layout) {
    int code;
    if (!coupling) return lb_fail(LB_INVALID, "coupling is NULL");
    code = lb_side_variable(coupling->side, name, timeout, dtype, LB_DTYPE, layout);
    return lb_mpi_agree(coupling->comm, code, 0);
}

static inline void lb_mpi_fetched(lb_fetching **fetching) {
    if ((*fetching)->coupling->fetching == *fetching) (*fetching)->coupling->fetching = NULL;
    free((*fetching)->name);
    lb_side_fetch_free(&(*fetching)->fetch);
    free((*fetching)->text);
    free(*fetching);
    *fetching = NULL;
}

/* The link to the late fetch of this name, or the end of the list. */
static inline lb_fetching **lb_mpi_late(lb_coupling *coupling, const char *name) {
    lb_fetching **late = &coupling->late;
    while (*late && (!name || strcmp((*late)->name, name))) late = &(*late)->next;
    return late;
}

/* Removes a late fetch from the list. */
static inline lb_fetching *lb_mpi_take_late(lb_fetching **late) {
    lb_fetching *taken = *late;
    if (taken) *late = taken->next;
    return taken;
}

static inline int lb_fetch_start(lb_coupling *coupling, const char *name, uint64_t version, const lb_layout *layout,
                                 const char *dtype, void *into, const lb_transfer_options *options,
                                 lb_fetching **fetching) {
    lb_fetching *begun, *late, **place;
    int code = LB_OK, again;
    if (!coupling) return lb_fail(LB_INVALID, "coupling is NULL");
    place = lb_mpi_late(coupling, name);
    late = *place;
    again = late && late->version >= version;
    begun = (lb_fetching *)calloc(1, sizeof *begun);
    if (!fetching) code = lb_fail(LB_INVALID, "fetching is NULL");
    if (!begun) code = lb_fail(LB_MEMORY, "no memory for a fetch");
    if (!code && coupling->fetching) code = lb_fail(LB_INVALID, "another fetch is in flight: wait for that first");
    if (!code)
        code = lb_side_fetch_create(coupling->side, name, version, layout, dtype, options ? options->select : NULL,
                                    into, options ? options->strides : NULL, lb_mpi_timeout(options), &begun->fetch);
    if (!code && !(begun->name = lb_mpi_copy(name))) code = lb_fail(LB_MEMORY, "no memory for a fetch");
    if (!code && again && (late->into != into || lb_side_fetch_hash(late->fetch) != lb_side_fetch_hash(begun->fetch)))
        code = lb_fail(LB_INVALID, "another fetch of it has taken too long: ask for the same, into the same memory");
    /* Begin on all ranks or on none: a rank never requests a version twice. */
    code = lb_mpi_agree(coupling->comm, code, code ? 0 : lb_side_fetch_hash(begun->fetch));
    if (code) {
        if (begun) {
            free(begun->name);
            lb_side_fetch_free(&begun->fetch);
        }
        free(begun);
        return code;
    }
    begun->coupling = coupling;
    if (late) lb_mpi_take_late(place);
    if (again) {
        lb_mpi_fetched(&begun);
        *fetching = coupling->fetching = late;
        return LB_OK;
    }
    if (late) lb_mpi_fetched(&late);
    begun->version = version;
    begun->into = into;
    begun->code = lb_side_fetch_begin(coupling->side, begun->fetch);
    if (begun->code) begun->text = lb_mpi_copy(lb_error());
    *fetching = coupling->fetching = begun;
    return LB_OK;
}

static inline int lb_fetch_wait(lb_fetching **fetching, double timeout) {
    int code;
    if (!fetching || !*fetching) return lb_fail(LB_INVALID, "fetching is NULL");
    code = (*fetching)->code;
    if (code)
        lb_fail(code, (*fetching)->text);
    else
        code = lb_side_fetch_take((*fetching)->coupling->side, (*fetching)->fetch, timeout);
    code = lb_mpi_agree((*fetching)->coupling->comm, code, 0);
    if (code != LB_TIMEOUT) lb_mpi_fetched(fetching);
    return code;
}

static inline int lb_fetch(lb_coupling *coupling, const char *name, uint64_t version, const lb_layout *layout,
                           const char *dtype, void *into, const lb_transfer_options *options) {
    lb_fetching *fetching = NULL;
    int code = lb_fetch_start(coupling, name, version, layout, dtype, into, options, &fetching);
    if (code) return code;
    code = lb_fetch_wait(&fetching, lb_mpi_timeout(options));
    if (fetching) {
        /* The same fetch may be repeated later. */
        fetching->next = coupling->late;
        coupling->late = fetching;
        coupling->fetching = NULL;
    }
    return code;
}

static inline void lb_mpi_end(lb_coupling **coupling, const char *reason, int failed) {
    lb_coupling *old = *coupling;
    if (old->fetching) lb_mpi_fetched(&old->fetching);
    while (old->late) {
        lb_fetching *late = lb_mpi_take_late(&old->late);
        lb_mpi_fetched(&late);
    }
    lb_side_end(&old->side, reason, failed);
    /* Freeing a communicator is collective. After a failure, other ranks may be elsewhere: leave it to MPI_Finalize. */
    if (old->comm != MPI_COMM_NULL && !failed) MPI_Comm_free(&old->comm);
    free(old);
    *coupling = NULL;
}

static inline int lb_close(lb_coupling **coupling, double timeout) {
    char *text = NULL;
    int code;
    if (!coupling || !*coupling) return LB_OK;
    code = lb_mpi_agree((*coupling)->comm, lb_side_finish((*coupling)->side, timeout), 0);
    if (code) text = lb_mpi_copy(lb_error());
    lb_mpi_end(coupling, code && text ? text : "it is done", 0);
    if (code) lb_fail(code, text);
    free(text);
    return code;
}

static inline void lb_leave(lb_coupling **coupling, const char *reason) {
    if (coupling && *coupling) lb_mpi_end(coupling, reason, 1);
}

#ifdef __cplusplus
}
#endif
#endif
