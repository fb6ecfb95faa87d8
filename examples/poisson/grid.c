#include "grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float omega = 0.8f; /* relaxation factor of the benchmark */

/* Balanced factors from MPI_Dims_create, the largest along the longest axis: less surface, fewer halo bytes. */
static void choose_decomposition(int ranks, const int size[AXES], int ranks_along[AXES]) {
    int factors[AXES] = {0, 0, 0}; /* MPI returns them in decreasing order */
    MPI_Dims_create(ranks, AXES, factors);
    bool taken[AXES] = {false, false, false};
    for (int n = 0; n < AXES; n++) {
        int longest = -1;
        for (int axis = 0; axis < AXES; axis++)
            if (!taken[axis] && (longest < 0 || size[axis] > size[longest])) longest = axis;
        taken[longest] = true;
        ranks_along[longest] = factors[n];
    }
}

static void make_face_types(struct grid *grid) {
    int whole[AXES];
    for (int axis = 0; axis < AXES; axis++) whole[axis] = grid->owned[axis] + 2;
    for (int axis = 0; axis < AXES; axis++) {
        int part[AXES], start[AXES];
        int64_t bytes = sizeof(float);
        for (int other = 0; other < AXES; other++) {
            bool with_ghosts = other < axis;
            part[other] = other == axis ? 1 : with_ghosts ? whole[other] : grid->owned[other];
            start[other] = with_ghosts ? 0 : 1;
            bytes *= part[other];
        }
        grid->face_bytes[axis] = bytes;
        int out_at[2] = {1, grid->owned[axis]}, in_at[2] = {0, grid->owned[axis] + 1};
        for (int side = 0; side < 2; side++) {
            start[axis] = out_at[side];
            MPI_Type_create_subarray(AXES, whole, part, start, MPI_ORDER_C, MPI_FLOAT, &grid->face_out[axis][side]);
            MPI_Type_commit(&grid->face_out[axis][side]);
            start[axis] = in_at[side];
            MPI_Type_create_subarray(AXES, whole, part, start, MPI_ORDER_C, MPI_FLOAT, &grid->face_in[axis][side]);
            MPI_Type_commit(&grid->face_in[axis][side]);
        }
    }
}

/* True on every rank only if it was true on every rank. */
static bool everywhere(MPI_Comm comm, bool here) {
    int mine = here, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, comm);
    return all != 0;
}

bool grid_create(struct grid *grid, const struct options *options, char *error, size_t error_size) {
    memset(grid, 0, sizeof *grid);
    MPI_Comm_size(MPI_COMM_WORLD, &grid->ranks);
    memcpy(grid->size, options->size, sizeof grid->size);
    memcpy(grid->ranks_along, options->decompose, sizeof grid->ranks_along);
    if (grid->ranks_along[0] == 0) choose_decomposition(grid->ranks, grid->size, grid->ranks_along);

    const int *r = grid->ranks_along, *s = grid->size;
    if ((long double)r[0] * r[1] * r[2] != grid->ranks) {
        snprintf(error, error_size, "--decompose %dx%dx%d is for %.0Lf ranks, but %d are running", r[0], r[1], r[2],
                 (long double)r[0] * r[1] * r[2], grid->ranks);
        return false;
    }
    for (int axis = 0; axis < AXES; axis++)
        if (r[axis] > s[axis]) {
            snprintf(error, error_size, "%d ranks along axis %c, but the grid %dx%dx%d has only %d points there",
                     r[axis], "IJK"[axis], s[0], s[1], s[2], s[axis]);
            return false;
        }

    int open_ends[AXES] = {0, 0, 0};
    MPI_Cart_create(MPI_COMM_WORLD, AXES, grid->ranks_along, open_ends, 0, &grid->comm);
    MPI_Comm_rank(grid->comm, &grid->rank);
    MPI_Cart_coords(grid->comm, grid->rank, AXES, grid->coords);
    for (int axis = 0; axis < AXES; axis++) {
        int share = s[axis] / r[axis], left_over = s[axis] % r[axis], at = grid->coords[axis];
        grid->owned[axis] = share + (at < left_over);
        grid->first[axis] = at * share + (at < left_over ? at : left_over);
        MPI_Cart_shift(grid->comm, axis, 1, &grid->neighbour[axis][0], &grid->neighbour[axis][1]);
    }
    grid->stride[2] = 1;
    grid->stride[1] = (size_t)grid->owned[2] + 2;
    grid->stride[0] = grid->stride[1] * ((size_t)grid->owned[1] + 2);
    grid->points = grid->stride[0] * ((size_t)grid->owned[0] + 2);

    enum { ARRAYS = 1 + 4 + 3 + 3 + 3 };
    /* calloc: a size that overflows is an error of its, not ours */
    grid->memory = calloc(grid->points, ARRAYS * sizeof *grid->memory);
    if (!everywhere(grid->comm, grid->memory != NULL)) {
        snprintf(error, error_size, "a rank could not allocate its block of the %dx%dx%d grid (about %.1f GiB)", s[0],
                 s[1], s[2], (double)grid->points * ARRAYS * sizeof(float) / 1073741824.0);
        return false;
    }
    float *next = grid->memory;
    float **const arrays[ARRAYS] = {&grid->p,    &grid->a[0], &grid->a[1], &grid->a[2], &grid->a[3],
                                    &grid->b[0], &grid->b[1], &grid->b[2], &grid->c[0], &grid->c[1],
                                    &grid->c[2], &grid->bnd,  &grid->wrk1, &grid->wrk2};
    for (int n = 0; n < ARRAYS; n++, next += grid->points) *arrays[n] = next;
    make_face_types(grid);
    return true;
}

/* A smooth value in [low, high] that no two axes share; from integers, so the same on every decomposition. */
static float wave(int i, int j, int k, int seed, float low, float high) {
    int phase = (7 * i + 11 * j + 13 * k + 17 * seed) % 64;
    return low + (high - low) * (float)(phase < 32 ? phase : 64 - phase) / 32.0f;
}

void grid_start(struct grid *grid, bool varied) {
    const float top = (float)(grid->size[0] - 1) * (float)(grid->size[0] - 1);
    grid->bytes_sent = 0;
    for (size_t at = 0; at < grid->points; at++) grid->p[at] = NAN;
    for (int i = 1; i <= grid->owned[0]; i++)
        for (int j = 1; j <= grid->owned[1]; j++)
            for (int k = 1; k <= grid->owned[2]; k++) {
                size_t at = grid_at(grid, i, j, k);
                int gi = grid->first[0] + i - 1, gj = grid->first[1] + j - 1, gk = grid->first[2] + k - 1;
                grid->p[at] = (float)gi * (float)gi / top;
                for (int n = 0; n < 3; n++) {
                    grid->a[n][at] = varied ? wave(gi, gj, gk, n, 0.9f, 1.1f) : 1.0f;
                    grid->b[n][at] = varied ? wave(gi, gj, gk, 3 + n, -0.05f, 0.05f) : 0.0f;
                    grid->c[n][at] = varied ? wave(gi, gj, gk, 6 + n, 0.9f, 1.1f) : 1.0f;
                }
                grid->a[3][at] = varied ? wave(gi, gj, gk, 9, 0.15f, 0.16f) : 1.0f / 6.0f;
                grid->bnd[at] = 1.0f;
                grid->wrk1[at] = varied ? wave(gi, gj, gk, 10, -0.01f, 0.01f) : 0.0f;
                grid->wrk2[at] = 0.0f;
            }
}

void grid_exchange(struct grid *grid) {
    for (int axis = 0; axis < AXES; axis++) {
        MPI_Request requests[4];
        for (int side = 0; side < 2; side++) {
            /* the tag names the direction of travel: two messages between one pair of ranks never swap */
            MPI_Irecv(grid->p, 1, grid->face_in[axis][side], grid->neighbour[axis][side], 2 * axis + (1 - side),
                      grid->comm, &requests[side]);
        }
        for (int side = 0; side < 2; side++) {
            MPI_Isend(grid->p, 1, grid->face_out[axis][side], grid->neighbour[axis][side], 2 * axis + side, grid->comm,
                      &requests[2 + side]);
            if (grid->neighbour[axis][side] != MPI_PROC_NULL) grid->bytes_sent += grid->face_bytes[axis];
        }
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    }
}

/* One row along K. Every point is computed by the same sequence of roundings for any length of the row, so the
 * field does not depend on the decomposition (built with -ffp-contract=off, never with -ffast-math). */
static double sweep_row(struct grid *grid, size_t row, int first_k, int last_k) {
    const size_t si = grid->stride[0], sj = grid->stride[1];
    const float *restrict p = grid->p + row, *restrict bnd = grid->bnd + row, *restrict wrk1 = grid->wrk1 + row;
    const float *restrict a0 = grid->a[0] + row, *restrict a1 = grid->a[1] + row, *restrict a2 = grid->a[2] + row;
    const float *restrict a3 = grid->a[3] + row, *restrict b0 = grid->b[0] + row, *restrict b1 = grid->b[1] + row;
    const float *restrict b2 = grid->b[2] + row, *restrict c0 = grid->c[0] + row, *restrict c1 = grid->c[1] + row;
    const float *restrict c2 = grid->c[2] + row;
    float *restrict wrk2 = grid->wrk2 + row;

    enum { PIECE = 256 }; /* corrections are kept aside so that the sum does not stop the vectoriser */
    float correction[PIECE];
    double residual = 0.0;
    for (int start = first_k; start <= last_k; start += PIECE) {
        int length = last_k - start + 1 < PIECE ? last_k - start + 1 : PIECE;
        for (int n = 0; n < length; n++) {
            const int k = start + n;
            const float *q = p + k;
            float s0 = a0[k] * q[si] + a1[k] * q[sj] + a2[k] * q[1] +
                       b0[k] * (q[si + sj] - *(q + si - sj) - *(q - si + sj) + *(q - si - sj)) +
                       b1[k] * (q[sj + 1] - *(q - sj + 1) - q[sj - 1] + *(q - sj - 1)) +
                       b2[k] * (q[si + 1] - *(q - si + 1) - q[si - 1] + *(q - si - 1)) + c0[k] * *(q - si) +
                       c1[k] * *(q - sj) + c2[k] * *(q - 1) + wrk1[k];
            float ss = (s0 * a3[k] - *q) * bnd[k];
            correction[n] = ss;
            wrk2[k] = *q + omega * ss;
        }
        for (int n = 0; n < length; n++) residual += (double)correction[n] * correction[n];
    }
    return residual;
}

double grid_sweep(struct grid *grid) {
    int from[AXES], to[AXES]; /* local indices of the points that are not boundary */
    for (int axis = 0; axis < AXES; axis++) {
        from[axis] = grid->neighbour[axis][0] == MPI_PROC_NULL ? 2 : 1;
        to[axis] = grid->owned[axis] - (grid->neighbour[axis][1] == MPI_PROC_NULL ? 1 : 0);
    }
    double residual = 0.0;
    for (int i = from[0]; i <= to[0]; i++)
        for (int j = from[1]; j <= to[1]; j++) residual += sweep_row(grid, grid_at(grid, i, j, 0), from[2], to[2]);
    for (int i = from[0]; i <= to[0]; i++)
        for (int j = from[1]; j <= to[1]; j++)
            if (to[2] >= from[2]) {
                size_t at = grid_at(grid, i, j, from[2]);
                memcpy(grid->p + at, grid->wrk2 + at, (size_t)(to[2] - from[2] + 1) * sizeof(float));
            }
    return residual;
}

void grid_free(struct grid *grid) {
    for (int axis = 0; axis < AXES; axis++)
        for (int side = 0; side < 2; side++) {
            MPI_Type_free(&grid->face_out[axis][side]);
            MPI_Type_free(&grid->face_in[axis][side]);
        }
    MPI_Comm_free(&grid->comm);
    free(grid->memory);
}
