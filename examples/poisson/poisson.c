/* The three-dimensional Poisson problem of the Himeno benchmark, on MPI.
 *
 * Written from the published algorithm (R. Himeno, RIKEN): Jacobi iteration with a 19-point stencil and general
 * coefficients, single precision, 34 floating point operations a point. See README.md in this folder. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "grid.h"
#include "options.h"
#include "report.h"

enum { EXIT_USAGE = 2 };

static struct outcome iterate(struct grid *grid, long iterations) {
    struct outcome outcome = {.iterations = iterations};
    MPI_Barrier(grid->comm);
    const double start = MPI_Wtime();
    for (long n = 0; n < iterations; n++) {
        double begin = MPI_Wtime();
        grid_exchange(grid);
        double exchanged = MPI_Wtime();
        double mine = grid_sweep(grid);
        double swept = MPI_Wtime();
        MPI_Allreduce(&mine, &outcome.residual, 1, MPI_DOUBLE, MPI_SUM, grid->comm);
        double end = MPI_Wtime();
        outcome.seconds_computing += swept - exchanged;
        outcome.seconds_communicating += exchanged - begin + (end - swept);
    }
    double mine = MPI_Wtime() - start;
    MPI_Allreduce(&mine, &outcome.seconds, 1, MPI_DOUBLE, MPI_MAX, grid->comm);
    return outcome;
}

/* As the benchmark does: three iterations to learn the speed, then as many as fit. The same number on all ranks. */
static long iterations_for(struct grid *grid, double seconds) {
    struct outcome trial = iterate(grid, 3);
    double fit = trial.seconds > 0 ? seconds * 3 / trial.seconds : 1e9;
    return fit < 3 ? 3 : fit > 1e9 ? 1000000000L : (long)fit;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank = 0, status = EXIT_SUCCESS;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);

    char error[512] = "";
    struct options options;
    struct grid grid;
    if (!options_parse(&options, argc, argv, error, sizeof error)) {
        status = EXIT_USAGE;
    } else if (options.help) {
        if (rank == 0) fputs(options_usage(), stdout);
    } else if (!grid_create(&grid, &options, error, sizeof error)) {
        status = EXIT_USAGE;
    } else {
        grid_start(&grid, options.varied);
        if (options.iterations == 0) {
            options.iterations = iterations_for(&grid, options.seconds);
            grid_start(&grid, options.varied);
        }
        struct outcome outcome = iterate(&grid, options.iterations);
        bool good = report_write(&grid, &options, &outcome, error, sizeof error);
        if (good && options.field != NULL) good = report_field(&grid, options.field, error, sizeof error);
        if (good && !isfinite(outcome.residual)) {
            snprintf(error, sizeof error, "the residual is not a finite number after %ld iterations",
                     options.iterations);
            good = false;
        }
        status = good ? EXIT_SUCCESS : EXIT_FAILURE;
        grid_free(&grid);
    }
    if (status != EXIT_SUCCESS && rank == 0) fprintf(stderr, "poisson: %s\n", error);
    MPI_Finalize();
    return status;
}
