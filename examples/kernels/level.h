/* One level of the multigrid hierarchy: a periodic cube of points, and this rank's part of it.
 *
 * A *dealt* level is spread over the ranks, each with a box and one layer of ghost points around it. A *replicated*
 * level is whole on every rank, and every rank does the same work on it: so coarse that there are too few points to
 * deal out, where messages would cost more than the arithmetic they save. */
#ifndef KERNELS_LEVEL_H
#define KERNELS_LEVEL_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "place.h"
#include "traffic.h"

enum { AXES = PLACE_AXES }; /* I, J, K: slowest to fastest in memory */

struct level {
    int n; /* points along each axis of the unit cube; point g lies at g / n */
    bool replicated;
    int *bounds[AXES]; /* where each rank's box begins, by coordinate along the axis; one more for the end */
    int box[AXES][2];  /* this rank's box: from, to (exclusive); of a replicated level, the part that it restricts to */
    int first[AXES];   /* global index of the first point kept: the box's, or 0 on a replicated level */
    int owned[AXES];   /* points kept, without ghosts */
    size_t stride[AXES];                    /* in doubles; stride[2] == 1 */
    size_t points;                          /* with ghosts */
    double *memory;                         /* the one allocation behind the fields */
    double *u, *f, *r;                      /* solution or correction, right-hand side, residual */
    int *part, *part_at;                    /* a replicated level below a dealt one: points of each rank's box,
                       and where they lie packed */
    MPI_Datatype out[AXES][2], in[AXES][2]; /* of a field: faces and ghosts */
    int64_t face_bytes[AXES];
};

/* Whether dealing out `n` points an axis leaves every rank at least two of them. */
bool level_can_be_dealt(const struct place *place, int n);

/* The finest level: dealt if it can be. False on this rank if memory is short; then it is to be freed all the same. */
bool level_create_finest(struct level *level, const struct place *place, int n);

/* Half as many points along each axis. A coarse point belongs to the owner of the fine point that it coincides with.
 * Replicated if `replicate`, or where a rank's box would have an edge of fewer than two points. */
bool level_create_coarser(struct level *level, const struct place *place, const struct level *finer, bool replicate);

/* Brings the ghosts of a field up to date: axis after axis, each including the ghosts of the axes before, so that edges
 * and corners arrive without messages of their own. */
void level_exchange(const struct level *level, const struct place *place, double *field, struct traffic *traffic);

/* On a replicated level below a dealt one: `f` from every rank's box to all ranks. Overwrites `u` and `r`. */
void level_gather(const struct level *level, const struct place *place, struct traffic *traffic);

void level_free(struct level *level);

static inline size_t level_at(const struct level *level, int i, int j, int k) {
    return (size_t)i * level->stride[0] + (size_t)j * level->stride[1] + (size_t)k;
}

#endif
