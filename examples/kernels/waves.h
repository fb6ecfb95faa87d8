/* A problem whose solution is known: laplacian(u) = f on the periodic unit cube, for u a sum of a few plane waves.
 *
 * Such waves are eigenfunctions of the seven-point formula too, so not only the solution of the differential equation
 * is known but also that of the discrete one, at every point. */
#ifndef KERNELS_WAVES_H
#define KERNELS_WAVES_H

#include <mpi.h>
#include <stdbool.h>

#include "place.h"

enum { WAVES = 3 };

struct waves {
    int n;                             /* points along each axis */
    double *factor[WAVES][PLACE_AXES]; /* each wave is the product of three, by index along the axis */
    double *memory;
    double source[WAVES];   /* laplacian of the wave = source * wave */
    double discrete[WAVES]; /* discrete solution = discrete * wave */
};

/* Collective: rank 0 computes the cosines for all, since two machines' mathematical libraries may differ in a last bit.
 * False on every rank if memory is short on one; to be freed all the same. */
bool waves_create(struct waves *waves, MPI_Comm comm, int n);

void waves_free(struct waves *waves);

static inline double waves_at(const struct waves *waves, int wave, int i, int j, int k) {
    return waves->factor[wave][0][i] * waves->factor[wave][1][j] * waves->factor[wave][2][k];
}

/* The solution of the differential equation, its right-hand side, and the solution of the discrete equation. */
static inline double waves_solution(const struct waves *waves, int i, int j, int k) {
    double sum = 0.0;
    for (int wave = 0; wave < WAVES; wave++) sum += waves_at(waves, wave, i, j, k);
    return sum;
}

static inline double waves_source(const struct waves *waves, int i, int j, int k) {
    double sum = 0.0;
    for (int wave = 0; wave < WAVES; wave++) sum += waves->source[wave] * waves_at(waves, wave, i, j, k);
    return sum;
}

static inline double waves_discrete(const struct waves *waves, int i, int j, int k) {
    double sum = 0.0;
    for (int wave = 0; wave < WAVES; wave++) sum += waves->discrete[wave] * waves_at(waves, wave, i, j, k);
    return sum;
}

#endif
