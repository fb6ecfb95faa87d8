/* One rank's block of the grid: its place, its arrays, its neighbours.
 *
 * Every rank owns a box of grid points and keeps one layer of ghost points around it. The two outermost layers of the
 * whole grid are its boundary: owned like any other point, never updated. */
#ifndef POISSON_GRID_H
#define POISSON_GRID_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

struct grid {
    MPI_Comm comm; /* Cartesian, no periods, ranks in the order of MPI_COMM_WORLD */
    int rank, ranks;
    int ranks_along[AXES];
    int coords[AXES];
    int size[AXES];  /* the whole grid */
    int first[AXES]; /* global index of the first owned point */
    int owned[AXES];
    size_t stride[AXES];    /* in floats; stride[2] == 1 */
    size_t points;          /* with ghosts */
    int neighbour[AXES][2]; /* lower, upper; MPI_PROC_NULL at the edge of the grid */
    MPI_Datatype face_out[AXES][2], face_in[AXES][2];
    int64_t face_bytes[AXES];
    int64_t bytes_sent; /* payload of the halo exchanges so far */

    float *memory;             /* the one allocation behind the arrays */
    float *p;                  /* pressure */
    float *a[4], *b[3], *c[3]; /* coefficients, named as in the benchmark */
    float *bnd;                /* 1 inside, 0 on obstacles */
    float *wrk1;               /* source term */
    float *wrk2;               /* next pressure */
};

/* Chooses the decomposition where `options` leaves it open and lays out this rank's block.
 * Collective. On failure every rank returns false, and `error` holds the same line on every rank. */
bool grid_create(struct grid *grid, const struct options *options, char *error, size_t error_size);

/* Sets pressure and coefficients to the benchmark's start. Ghost pressure becomes NaN: a halo point that is used
 * before it was received poisons the result instead of looking right. */
void grid_start(struct grid *grid, bool varied);

/* Brings the ghost pressure up to date. Axis after axis, each including the ghosts of the axes before, so that
 * the 19-point stencil's diagonal neighbours arrive without messages of their own. */
void grid_exchange(struct grid *grid);

/* One Jacobi sweep over this rank's interior points, then wrk2 becomes the pressure.
 * Returns this rank's share of the residual (the sum of squared corrections). */
double grid_sweep(struct grid *grid);

void grid_free(struct grid *grid);

static inline size_t grid_at(const struct grid *grid, int i, int j, int k) {
    return (size_t)i * grid->stride[0] + (size_t)j * grid->stride[1] + (size_t)k;
}

#endif
