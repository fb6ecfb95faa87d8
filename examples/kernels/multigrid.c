/* Multigrid V-cycles for a three-dimensional Poisson problem: messages of every size, from the faces of the finest
 * level to a few numbers.
 *
 * The kind of problem is that of MG in the NAS Parallel Benchmarks (Bailey et al., RNR-94-007); operators, problem and
 * verification are our own. See README.md in this folder. */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "hierarchy.h"
#include "kernel.h"
#include "mix.h"
#include "waves.h"

enum { MOST_CYCLES = 15 }; /* the verification goes on until the solution has converged, no further than this */
static const double converged_to = 0.01;   /* of the discretisation error */
static const double least_reduction = 6.0; /* of the residual, by every cycle */
static const double least_ratio = 3.5,
                    most_ratio = 5.0; /* error with half as many points / error; of second order: 4 */

struct solver {
    struct hierarchy hierarchy;
    struct waves waves;
    long cycles;
    double residual, floor, worst; /* worst: of all cycles' reductions until the residual was at the floor */
    uint64_t checksum;
};

typedef double (*solution)(const struct waves *waves, int i, int j, int k);

/* Calls for every point that this rank keeps: `at` in memory, i, j, k in the cube. */
#define FOR_POINTS(level, at, i, j, k)                                                                                 \
    for (int i = (level)->first[0]; i < (level)->first[0] + (level)->owned[0]; i++)                                    \
        for (int j = (level)->first[1]; j < (level)->first[1] + (level)->owned[1]; j++)                                \
            for (size_t k = 0, at = level_at(level, i - (level)->first[0] + 1, j - (level)->first[1] + 1, 1);          \
                 k < (size_t)(level)->owned[2]; k++, at++)

static void start(struct solver *s) {
    const struct level *finest = &s->hierarchy.levels[0];
    memset(finest->u, 0, finest->points * sizeof *finest->u);
    FOR_POINTS(finest, at, i, j, k)
    finest->f[at] = waves_source(&s->waves, i, j, finest->first[2] + (int)k);
    s->cycles = 0;
    s->residual = hierarchy_residual(&s->hierarchy);
    s->worst = INFINITY;
    /* the error by rounding: a few units in the last place of the terms of a residual, 6 u / h^2 */
    s->floor = 16 * 2.2e-16 * 6 * pow(finest->n, 2);
    s->hierarchy.traffic = (struct traffic){0};
}

static void cycle(struct solver *s, bool spoil) {
    s->hierarchy.traffic.spoil = spoil;
    hierarchy_cycle(&s->hierarchy);
    double before = s->residual;
    s->residual = hierarchy_residual(&s->hierarchy);
    s->cycles++;
    double reduction = isnan(s->residual) ? 0.0 : before / s->residual;
    if (!(s->residual <= s->floor) && reduction < s->worst) s->worst = reduction;
}

static double cycle_for(struct solver *s, long cycles, bool spoil) {
    MPI_Barrier(s->hierarchy.place.comm);
    double begin = MPI_Wtime();
    for (long n = 1; n <= cycles; n++) cycle(s, spoil && n == cycles);
    return MPI_Wtime() - begin;
}

/* The root mean square of u - wanted, where u, which the problem leaves open by a constant, has the mean 0 that
 * `wanted` has. */
static double distance(struct solver *s, solution wanted) {
    const struct level *finest = &s->hierarchy.levels[0];
    double points = pow(finest->n, 3), sum = 0.0, squares = 0.0;
    FOR_POINTS(finest, at, i, j, k)
    sum += finest->u[at];
    double mean = hierarchy_sum(&s->hierarchy, sum) / points;
    FOR_POINTS(finest, at, i, j, k)
    squares += pow(finest->u[at] - mean - wanted(&s->waves, i, j, finest->first[2] + (int)k), 2);
    return sqrt(hierarchy_sum(&s->hierarchy, squares) / points);
}

static uint64_t checksum(struct solver *s) {
    const struct level *finest = &s->hierarchy.levels[0];
    uint64_t mine = 0, all = 0, n = (uint64_t)finest->n;
    FOR_POINTS(finest, at, i, j, k)
    mine += mix_value(finest->u[at], ((uint64_t)i * n + (uint64_t)j) * n + (uint64_t)finest->first[2] + k);
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, s->hierarchy.place.comm);
    return all;
}

static bool create(struct solver *s, MPI_Comm comm, int n) {
    memset(s, 0, sizeof *s);
    bool good = hierarchy_create(&s->hierarchy, comm, n);
    good = waves_create(&s->waves, comm, n) && good;
    if (good) start(s);
    return good;
}

static void release(struct solver *s) {
    hierarchy_free(&s->hierarchy);
    waves_free(&s->waves);
}

/* How far the solution can be from the discrete one: its residual over the smallest eigenvalue but 0. */
static double bound(const struct solver *s) {
    const int n = s->hierarchy.levels[0].n;
    return (s->residual + s->floor) / pow(2.0 * n * sin(3.14159265358979323846 / n), 2);
}

/* Goes on until the error is that of the discretisation. Returns the error. */
static double converge(struct solver *s) {
    double error = distance(s, waves_solution);
    while (!(bound(s) <= converged_to * error) && s->cycles < MOST_CYCLES) {
        cycle(s, false);
        error = distance(s, waves_solution);
    }
    return error;
}

/* The error with half as many points along each axis; 0 if memory is short. */
static double coarser_error(int n) {
    struct solver half;
    double error = create(&half, MPI_COMM_WORLD, n / 2) ? converge(&half) : 0.0;
    release(&half);
    return error;
}

static bool verify_quickly(struct solver *s, struct outcome *outcome) {
    char *problem = outcome->problem;
    const size_t size = sizeof outcome->problem;
    double error = converge(s), off = distance(s, waves_discrete);
    double ratio = coarser_error(s->hierarchy.levels[0].n) / error;
    outcome_add(outcome, "residual", s->residual);
    outcome_add(outcome, "reduction", s->worst);
    outcome_add(outcome, "error", error);
    outcome_add(outcome, "error_ratio", ratio);
    if (!(s->worst >= least_reduction))
        snprintf(problem, size, "wrong result: a V-cycle divided the residual by %.3g, at least %.3g is expected",
                 s->worst, least_reduction);
    else if (!(off <= bound(s)))
        snprintf(problem, size, "wrong result: the solution is off the discrete one by %.3g, its residual allows %.3g",
                 off, bound(s));
    else if (!(ratio >= least_ratio && ratio <= most_ratio))
        snprintf(problem, size, "wrong result: twice as many points divide the error by %.3g, %.3g to %.3g is expected",
                 ratio, least_ratio, most_ratio);
    else
        return true;
    return false;
}

/* Rank 0 does the timed cycles once more, alone. */
static bool verify_fully(int n, struct outcome *outcome) {
    int rank = 0;
    bool had_memory = false;
    uint64_t found = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
        struct solver alone;
        had_memory = create(&alone, MPI_COMM_SELF, n);
        if (had_memory) {
            cycle_for(&alone, outcome->iterations, false);
            found = checksum(&alone);
        }
        release(&alone);
    }
    return kernel_same_as_alone(had_memory, found, outcome);
}

static void solve(struct solver *s, const struct options *options, struct outcome *outcome) {
    long cycles = options->iterations;
    if (cycles == 0) {
        cycles = kernel_iterations_for(options->seconds, cycle_for(s, 2, false), 2);
        start(s);
    }
    outcome->seconds = cycle_for(s, cycles, kernel_spoils(options));
    outcome->traffic = s->hierarchy.traffic;
    outcome->iterations = cycles;
    outcome->work = pow(options->size, 3) * (double)cycles;
    outcome->checksum = checksum(s);
}

static enum ending run(const struct options *options, struct outcome *outcome) {
    struct solver solver;
    const int n = options->size;
    if (!hierarchy_can_have(n)) {
        snprintf(outcome->problem, sizeof outcome->problem,
                 "--size %d: expected 1, 3, 5 or 7 times a power of two, which can be halved down to a few points", n);
        return REFUSED;
    }
    bool ready = create(&solver, MPI_COMM_WORLD, n);
    const int *along = solver.hierarchy.place.along;
    enum ending ending = REFUSED;
    if (!ready) {
        snprintf(outcome->problem, sizeof outcome->problem, "--size %d: out of memory on a rank", n);
    } else if (!level_can_be_dealt(&solver.hierarchy.place, n)) {
        snprintf(outcome->problem, sizeof outcome->problem,
                 "--size %d: too small for %d ranks as %d x %d x %d, each of which needs 2 points along every axis", n,
                 solver.hierarchy.place.ranks, along[0], along[1], along[2]);
    } else {
        solve(&solver, options, outcome);
        bool good = !options->full || verify_fully(n, outcome);
        ending = good && verify_quickly(&solver, outcome) ? DONE : WRONG;
    }
    release(&solver);
    return ending;
}

int main(int argc, char **argv) {
    static const struct named_size sizes[] = {{"S", 32}, {"W", 128}, {"A", 256}, {"C", 512}, {NULL, 0}};
    static const struct kernel multigrid = {
        .name = "multigrid",
        .summary = "Solve a three-dimensional periodic Poisson problem by multigrid V-cycles.",
        .size_meaning = "points along each axis",
        .iteration_meaning = "V-cycles",
        .unit = "points",
        .sizes = sizes,
        .smallest = 16,
        .largest = 2048,
        .iterations = 10,
        .has_full = true,
        .run = run,
    };
    return kernel_main(&multigrid, argc, argv);
}
