#include "hierarchy.h"

#include <math.h>
#include <string.h>

#include "kernel.h"

enum { SWEEPS_BEFORE = 2, SWEEPS_AFTER = 2, SWEEPS_COARSEST = 40 };
enum { COARSEST_LEAST = 4 };

static bool goes_on(int n) { return n % 2 == 0 && n > COARSEST_LEAST; }

bool hierarchy_can_have(int n) {
    while (goes_on(n)) n /= 2;
    return n <= COARSEST_MOST;
}

bool hierarchy_create(struct hierarchy *h, MPI_Comm comm, int n) {
    memset(h, 0, sizeof *h);
    place_create(&h->place, comm, AXES, true);
    bool good = level_create_finest(&h->levels[0], &h->place, n);
    h->count = 1;
    while (kernel_everywhere(h->place.comm, good) && goes_on(h->levels[h->count - 1].n)) {
        const struct level *finer = &h->levels[h->count - 1];
        good = level_create_coarser(&h->levels[h->count], &h->place, finer, !goes_on(finer->n / 2));
        h->count++;
    }
    return kernel_everywhere(h->place.comm, good);
}

/* One colour of a red-black Gauss-Seidel sweep: its points have neighbours of the other colour only. (On a coarsest
 * level with an odd number of points some meet across the cube's edge; it converges all the same.) */
static void sweep_colour(const struct level *level, int colour) {
    const double hh = 1.0 / ((double)level->n * level->n);
    const size_t si = level->stride[0], sj = level->stride[1];
    for (int i = 1; i <= level->owned[0]; i++)
        for (int j = 1; j <= level->owned[1]; j++) {
            int odd = (level->first[0] + i + level->first[1] + j + level->first[2] + colour) % 2; /* of point k = 1 */
            size_t row = level_at(level, i, j, 0);
            double *u = level->u + row;
            const double *f = level->f + row;
            for (size_t k = odd == 1 ? 1 : 2; k <= (size_t)level->owned[2]; k += 2)
                u[k] =
                    (u[k + si] + *(u + k - si) + (u[k + sj] + *(u + k - sj)) + (u[k + 1] + u[k - 1]) - hh * f[k]) / 6.0;
        }
}

static void sweep(struct hierarchy *h, const struct level *level, int times) {
    for (int n = 0; n < 2 * times; n++) {
        level_exchange(level, &h->place, level->u, &h->traffic);
        sweep_colour(level, n % 2);
    }
}

static void compute_residual(struct hierarchy *h, const struct level *level) {
    const double per_hh = (double)level->n * level->n;
    const size_t si = level->stride[0], sj = level->stride[1];
    level_exchange(level, &h->place, level->u, &h->traffic);
    for (int i = 1; i <= level->owned[0]; i++)
        for (int j = 1; j <= level->owned[1]; j++) {
            size_t row = level_at(level, i, j, 0);
            const double *restrict u = level->u + row, *restrict f = level->f + row;
            double *restrict r = level->r + row;
            for (size_t k = 1; k <= (size_t)level->owned[2]; k++) {
                double around = u[k + si] + *(u + k - si) + (u[k + sj] + *(u + k - sj)) + (u[k + 1] + u[k - 1]);
                r[k] = f[k] - (around - 6.0 * u[k]) * per_hh;
            }
        }
}

/* Full weighting of the fine residual into this rank's box of the coarse right-hand side. */
static void restrict_residual(const struct level *fine, const struct level *coarse) {
    static const double weights[4] = {8.0 / 64, 4.0 / 64, 2.0 / 64, 1.0 / 64}; /* by how many axes the point is off */
    for (int i = coarse->box[0][0]; i < coarse->box[0][1]; i++)
        for (int j = coarse->box[1][0]; j < coarse->box[1][1]; j++)
            for (int k = coarse->box[2][0]; k < coarse->box[2][1]; k++) {
                const double *r = fine->r + level_at(fine, 2 * i - fine->first[0] + 1, 2 * j - fine->first[1] + 1,
                                                     2 * k - fine->first[2] + 1);
                double sum = 0.0;
                for (int di = -1; di <= 1; di++)
                    for (int dj = -1; dj <= 1; dj++) {
                        const double *row = r + di * (ptrdiff_t)fine->stride[0] + dj * (ptrdiff_t)fine->stride[1];
                        int off = (di != 0) + (dj != 0);
                        sum += weights[off] * row[0] + weights[off + 1] * (*(row - 1) + row[1]);
                    }
                const int *first = coarse->first;
                coarse->f[level_at(coarse, i - first[0] + 1, j - first[1] + 1, k - first[2] + 1)] = sum;
            }
}

/* The two coarse points around a fine one along an axis, as local indices; one point twice where they coincide. */
static void around(const struct level *fine, const struct level *coarse, int axis, int at, int out[2]) {
    int global = fine->first[axis] + at - 1;
    out[0] = global / 2 - coarse->first[axis] + 1;
    out[1] = out[0] + global % 2;
}

/* Adds the coarse correction, interpolated. */
static void add_correction(const struct level *fine, const struct level *coarse) {
    for (int i = 1; i <= fine->owned[0]; i++)
        for (int j = 1; j <= fine->owned[1]; j++) {
            int ci[2], cj[2], ck[2];
            around(fine, coarse, 0, i, ci);
            around(fine, coarse, 1, j, cj);
            const double *rows[4];
            for (int n = 0; n < 4; n++) rows[n] = coarse->u + level_at(coarse, ci[n / 2], cj[n % 2], 0);
            double *u = fine->u + level_at(fine, i, j, 0);
            for (int k = 1; k <= fine->owned[2]; k++) {
                around(fine, coarse, 2, k, ck);
                double low = (rows[0][ck[0]] + rows[1][ck[0]]) + (rows[2][ck[0]] + rows[3][ck[0]]);
                double high = (rows[0][ck[1]] + rows[1][ck[1]]) + (rows[2][ck[1]] + rows[3][ck[1]]);
                u[k] += 0.125 * (low + high);
            }
        }
}

/* The periodic problem has a solution only if its right-hand side sums to zero, which roundings spoil a little. */
static void remove_mean(const struct level *level) {
    double sum = 0.0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 1; i <= level->owned[0]; i++)
            for (int j = 1; j <= level->owned[1]; j++)
                for (int k = 1; k <= level->owned[2]; k++) {
                    double *f = &level->f[level_at(level, i, j, k)];
                    if (pass == 0)
                        sum += *f;
                    else
                        *f -= sum / ((double)level->n * level->n * level->n);
                }
}

static void cycle(struct hierarchy *h, int at) {
    const struct level *fine = &h->levels[at], *coarse = fine + 1;
    if (at == h->count - 1) {
        remove_mean(fine);
        sweep(h, fine, SWEEPS_COARSEST);
        return;
    }
    sweep(h, fine, SWEEPS_BEFORE);
    compute_residual(h, fine);
    level_exchange(fine, &h->place, fine->r, &h->traffic);
    restrict_residual(fine, coarse);
    if (coarse->replicated && !fine->replicated) level_gather(coarse, &h->place, &h->traffic);
    memset(coarse->u, 0, coarse->points * sizeof *coarse->u);
    cycle(h, at + 1);
    level_exchange(coarse, &h->place, coarse->u, &h->traffic);
    add_correction(fine, coarse);
    sweep(h, fine, SWEEPS_AFTER);
}

void hierarchy_cycle(struct hierarchy *h) { cycle(h, 0); }

double hierarchy_sum(struct hierarchy *h, double mine) {
    double all = mine, begin = MPI_Wtime();
    if (!h->levels[0].replicated) MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, h->place.comm);
    h->traffic.seconds += MPI_Wtime() - begin;
    h->traffic.bytes += h->place.ranks > 1 ? (int64_t)sizeof mine : 0;
    return all;
}

double hierarchy_residual(struct hierarchy *h) {
    const struct level *finest = &h->levels[0];
    compute_residual(h, finest);
    double sum = 0.0;
    for (int i = 1; i <= finest->owned[0]; i++)
        for (int j = 1; j <= finest->owned[1]; j++) {
            const double *r = finest->r + level_at(finest, i, j, 0);
            for (int k = 1; k <= finest->owned[2]; k++) sum += r[k] * r[k];
        }
    return sqrt(hierarchy_sum(h, sum) / ((double)finest->n * finest->n * finest->n));
}

void hierarchy_free(struct hierarchy *h) {
    for (int n = 0; n < h->count; n++) level_free(&h->levels[n]);
    place_free(&h->place);
}
