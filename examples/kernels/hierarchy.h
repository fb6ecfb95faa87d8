/* Multigrid for the three-dimensional Poisson problem, laplacian(u) = f on the periodic unit cube, with the seven-point
 * formula on every level.
 *
 * V-cycles after A. Brandt, "Multi-level adaptive solutions to boundary-value problems", Mathematics of Computation 31
 * (1977): red-black Gauss-Seidel sweeps, full weighting of the residual (27 points), trilinear interpolation of the
 * correction. Every point is computed by the same roundings on any number of ranks: the solution is the same bit for
 * bit. */
#ifndef KERNELS_HIERARCHY_H
#define KERNELS_HIERARCHY_H

#include <mpi.h>
#include <stdbool.h>

#include "level.h"
#include "place.h"
#include "traffic.h"

enum { MOST_LEVELS = 24, COARSEST_MOST = 7 };

struct hierarchy {
    struct place place;
    int count;
    struct level levels[MOST_LEVELS]; /* finest first; the coarsest is always replicated */
    struct traffic traffic;
};

/* Whether halving `n` ends at a level of at most COARSEST_MOST points an axis, which sweeps alone solve. */
bool hierarchy_can_have(int n);

/* Collective. `n` points along each axis of the finest level. False on every rank if memory is short on one; to be
 * freed all the same. */
bool hierarchy_create(struct hierarchy *hierarchy, MPI_Comm comm, int n);

/* One V-cycle on the finest level's `u` and `f`. */
void hierarchy_cycle(struct hierarchy *hierarchy);

/* The root mean square of the residual of the finest level. */
double hierarchy_residual(struct hierarchy *hierarchy);

/* A sum over the finest level's points, of which `mine` is over those that this rank keeps. */
double hierarchy_sum(struct hierarchy *hierarchy, double mine);

void hierarchy_free(struct hierarchy *hierarchy);

#endif
