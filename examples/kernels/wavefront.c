/* Pipelined lower and upper triangular sweeps over a grid of ranks: many small messages, each waited for.
 *
 * The kind of problem is that of LU in the NAS Parallel Benchmarks (Bailey et al., RNR-94-007), with a linear system in
 * place of the Navier-Stokes equations; system and verification are our own. See README.md in this folder. */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "block.h"
#include "kernel.h"
#include "mix.h"
#include "sweep.h"
#include "system.h"

struct solver {
    struct system system;
    struct block block;
    double error_at_start; /* as `error` */
    struct traffic traffic;
};

/* The solution by which the right-hand side is made: triangular waves between 0.5 and 1.5, from whole
 * numbers. Their mean converges slowly. */
static double solution(int i, int j, int k, int unknown) {
    int phase = (7 * i + 11 * j + 13 * k + 17 * unknown) % 64;
    return (phase < 32 ? phase : 64 - phase) / 32.0 + 0.5;
}

static void solution_at(const struct solver *s, int i, int j, int k, double out[UNKNOWNS]) {
    const int n = s->block.n;
    bool inside = i >= 0 && i < n && j >= 0 && j < n && k >= 0 && k < n;
    for (int unknown = 0; unknown < UNKNOWNS; unknown++) out[unknown] = inside ? solution(i, j, k, unknown) : 0.0;
}

/* f = K * solution at one point of the cube. */
static void source_at(const struct solver *s, int i, int j, int k, double out[UNKNOWNS]) {
    double there[UNKNOWNS];
    solution_at(s, i, j, k, there);
    memset(out, 0, sizeof there);
    system_add(out, s->system.centre, there);
    for (int axis = 0; axis < SYSTEM_AXES; axis++)
        for (int side = 0; side < 2; side++) {
            int step = side == 0 ? -1 : 1;
            solution_at(s, i + (axis == 0) * step, j + (axis == 1) * step, k + (axis == 2) * step, there);
            system_add(out, s->system.side[axis][side], there);
        }
}

/* The largest component of u - solution. NaN if there is one. */
static double error(const struct solver *s) {
    const struct block *b = &s->block;
    double mine = 0.0, all = 0.0, wanted[UNKNOWNS];
    bool finite = true;
    for (int k = 1; k <= b->n; k++)
        for (int i = 1; i <= b->owned[0]; i++)
            for (int j = 1; j <= b->owned[1]; j++) {
                const double *u = b->u + block_at(b, i, j, k);
                solution_at(s, b->first[0] + i - 1, b->first[1] + j - 1, k - 1, wanted);
                for (int n = 0; n < UNKNOWNS; n++) {
                    finite = finite && isfinite(u[n]);
                    mine = fmax(mine, fabs(u[n] - wanted[n]));
                }
            }
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, b->place.comm);
    return kernel_everywhere(b->place.comm, finite) ? all : NAN;
}

static uint64_t checksum(const struct solver *s) {
    const struct block *b = &s->block;
    uint64_t mine = 0, all = 0, n = (uint64_t)b->n;
    for (int k = 1; k <= b->n; k++)
        for (int i = 1; i <= b->owned[0]; i++)
            for (int j = 1; j <= b->owned[1]; j++) {
                const double *u = b->u + block_at(b, i, j, k);
                uint64_t gi = (uint64_t)(b->first[0] + i - 1), gj = (uint64_t)(b->first[1] + j - 1),
                         gk = (uint64_t)k - 1;
                for (uint64_t unknown = 0; unknown < UNKNOWNS; unknown++)
                    mine += mix_value(u[unknown], ((gi * n + gj) * n + gk) * UNKNOWNS + unknown);
            }
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, b->place.comm);
    return all;
}

static void start(struct solver *s) {
    const struct block *b = &s->block;
    memset(b->memory, 0, 3 * b->values * sizeof *b->memory);
    for (int k = 1; k <= b->n; k++)
        for (int i = 1; i <= b->owned[0]; i++)
            for (int j = 1; j <= b->owned[1]; j++)
                source_at(s, b->first[0] + i - 1, b->first[1] + j - 1, k - 1, b->f + block_at(b, i, j, k));
    s->error_at_start = error(s);
    s->traffic = (struct traffic){0};
}

static bool create(struct solver *s, MPI_Comm comm, int n) {
    memset(s, 0, sizeof *s);
    system_create(&s->system);
    bool good = block_create(&s->block, comm, n);
    if (good) start(s);
    return good;
}

static double iterate(struct solver *s, long iterations, bool spoil) {
    MPI_Barrier(s->block.place.comm);
    double begin = MPI_Wtime();
    for (long n = 1; n <= iterations; n++) {
        s->traffic.spoil = spoil && n == iterations;
        sweep_iterate(&s->block, &s->system, &s->traffic);
    }
    return MPI_Wtime() - begin;
}

/* Each iteration is two Gauss-Seidel sweeps, each of which shrinks the error at least by the system's contraction. */
static bool verify_quickly(const struct solver *s, long iterations, struct outcome *outcome) {
    const double roundings = 1e-13;
    double found = error(s), factor = pow(s->system.contraction, 2.0 * (double)iterations);
    double bound = s->error_at_start * factor + roundings;
    outcome_add(outcome, "error_at_start", s->error_at_start);
    outcome_add(outcome, "error", found);
    outcome_add(outcome, "error_bound", bound);
    if (found <= bound) return true;
    snprintf(outcome->problem, sizeof outcome->problem,
             "wrong result: the error is %.3g after %ld iterations, at most %.3g is possible", found, iterations,
             bound);
    return false;
}

/* Rank 0 does the recurrence alone. */
static bool verify_fully(int n, struct outcome *outcome) {
    int rank = 0;
    bool had_memory = false;
    uint64_t found = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
        struct solver alone;
        had_memory = create(&alone, MPI_COMM_SELF, n);
        if (had_memory) {
            iterate(&alone, outcome->iterations, false);
            found = checksum(&alone);
        }
        block_free(&alone.block);
    }
    return kernel_same_as_alone(had_memory, found, outcome);
}

static void solve(struct solver *s, const struct options *options, struct outcome *outcome) {
    long iterations = options->iterations;
    if (iterations == 0) {
        iterations = kernel_iterations_for(options->seconds, iterate(s, 2, false), 2);
        start(s);
    }
    outcome->seconds = iterate(s, iterations, kernel_spoils(options));
    outcome->traffic = s->traffic;
    outcome->iterations = iterations;
    outcome->work = pow(options->size, 3) * (double)iterations;
    outcome->checksum = checksum(s);
}

static enum ending run(const struct options *options, struct outcome *outcome) {
    struct solver solver;
    const int n = options->size;
    bool ready = create(&solver, MPI_COMM_WORLD, n);
    const struct place *place = &solver.block.place;
    enum ending ending = REFUSED;
    if (!ready) {
        snprintf(outcome->problem, sizeof outcome->problem, "--size %d: out of memory on a rank", n);
    } else if (!block_fits(&solver.block, n)) {
        snprintf(outcome->problem, sizeof outcome->problem,
                 "--size %d: fewer points than ranks along an axis: %d ranks as %d x %d", n, place->ranks,
                 place->along[0], place->along[1]);
    } else {
        solve(&solver, options, outcome);
        bool good = !options->full || verify_fully(n, outcome);
        ending = good && verify_quickly(&solver, outcome->iterations, outcome) ? DONE : WRONG;
    }
    block_free(&solver.block);
    return ending;
}

int main(int argc, char **argv) {
    static const struct named_size sizes[] = {{"S", 12}, {"W", 33}, {"A", 64}, {"B", 102}, {"C", 162}, {NULL, 0}};
    static const struct kernel wavefront = {
        .name = "wavefront",
        .summary = "Solve a block seven-point system by triangular sweeps, pipelined over a grid of ranks.",
        .size_meaning = "points along each axis",
        .iteration_meaning = "iterations, a lower and an upper sweep each,",
        .unit = "points",
        .sizes = sizes,
        .smallest = 1,
        .largest = 1024,
        .iterations = 50,
        .has_full = true,
        .run = run,
    };
    return kernel_main(&wavefront, argc, argv);
}
