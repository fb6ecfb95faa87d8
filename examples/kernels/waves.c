#include "waves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

static const double pi = 3.14159265358979323846;

/* Periods along each axis, and phases, such that no plane of points is all zero. */
static const struct {
    int periods[PLACE_AXES];
    double phase[PLACE_AXES];
} shapes[WAVES] = {
    {{1, 1, 1}, {0.3, 0.7, 1.1}},
    {{1, 0, 1}, {0.9, 0.0, 0.2}},
    {{0, 2, 1}, {0.0, 0.5, 1.3}},
};

/* Of the wave under the laplacian, and under the seven-point formula with `n` points along each axis. */
static double eigenvalue(int wave) {
    double sum = 0.0;
    for (int axis = 0; axis < PLACE_AXES; axis++) sum -= pow(2 * pi * shapes[wave].periods[axis], 2);
    return sum;
}

static double discrete_eigenvalue(int wave, int n) {
    double sum = 0.0;
    for (int axis = 0; axis < PLACE_AXES; axis++) sum -= pow(2.0 * n * sin(pi * shapes[wave].periods[axis] / n), 2);
    return sum;
}

static void fill(struct waves *waves) {
    for (int wave = 0; wave < WAVES; wave++) {
        waves->source[wave] = eigenvalue(wave);
        waves->discrete[wave] = eigenvalue(wave) / discrete_eigenvalue(wave, waves->n);
        for (int axis = 0; axis < PLACE_AXES; axis++)
            for (int g = 0; g < waves->n; g++)
                waves->factor[wave][axis][g] =
                    cos(2 * pi * shapes[wave].periods[axis] * g / waves->n + shapes[wave].phase[axis]);
    }
}

bool waves_create(struct waves *waves, MPI_Comm comm, int n) {
    memset(waves, 0, sizeof *waves);
    waves->n = n;
    waves->memory = calloc((size_t)n, WAVES * PLACE_AXES * sizeof *waves->memory);
    if (!kernel_everywhere(comm, waves->memory != NULL)) return false;
    for (int wave = 0; wave < WAVES; wave++)
        for (int axis = 0; axis < PLACE_AXES; axis++)
            waves->factor[wave][axis] = waves->memory + (size_t)(wave * PLACE_AXES + axis) * (size_t)n;
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    if (rank == 0) fill(waves);
    MPI_Bcast(waves->memory, WAVES * PLACE_AXES * n, MPI_DOUBLE, 0, comm);
    MPI_Bcast(waves->source, WAVES, MPI_DOUBLE, 0, comm);
    MPI_Bcast(waves->discrete, WAVES, MPI_DOUBLE, 0, comm);
    return true;
}

void waves_free(struct waves *waves) { free(waves->memory); }
