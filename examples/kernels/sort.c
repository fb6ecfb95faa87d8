/* Integer bucket sort: few messages, large, from everybody to everybody.
 *
 * The kind of problem is that of IS in the NAS Parallel Benchmarks (Bailey et al., RNR-94-007), written from its
 * description; keys, generator and verification are our own. See README.md in this folder. */
#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "buckets.h"
#include "kernel.h"
#include "keys.h"
#include "mix.h"
#include "place.h"

enum { SMALLEST_RANGE = 1024, KEYS_PER_VALUE = 16 };

struct input {
    uint32_t *keys;
    int count;
    uint64_t first; /* this rank's first key's number */
    uint32_t range;
};

/* A power of two: keys repeat about KEYS_PER_VALUE times, as in NPB's larger classes. */
static uint32_t range_for(int keys) {
    uint32_t range = SMALLEST_RANGE;
    while ((int64_t)range * 2 * KEYS_PER_VALUE <= keys) range *= 2;
    return range;
}

static void fill(struct input *input, long set) {
    for (int n = 0; n < input->count; n++)
        input->keys[n] = key_make((uint64_t)set, input->first + (uint64_t)n, input->range);
}

static struct digest digest_everywhere(struct digest mine) {
    struct digest all;
    MPI_Allreduce(&mine.count, &all.count, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&mine.sum, &all.sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&mine.xor, &all.xor, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
    return all;
}

/* In order inside each rank, and from rank to rank: ranks without keys pass on the last key before them. */
static bool in_order(const struct buckets *b) {
    uint32_t mine = b->in_count > 0 ? b->in[b->in_count - 1] : 0, before = 0;
    MPI_Exscan(&mine, &before, 1, MPI_UINT32_T, MPI_MAX, b->comm);
    uint32_t last = b->rank > 0 ? before : 0; /* MPI_Exscan leaves it undefined on rank 0 */
    bool good = true;
    for (int n = 0; n < b->in_count; n++) {
        good = good && b->in[n] >= last;
        last = b->in[n];
    }
    return kernel_everywhere(b->comm, good);
}

/* The sorted keys' places and values: equal for equal sequences however they are dealt out. */
static uint64_t checksum_of(const struct buckets *b) {
    uint64_t count = (uint64_t)b->in_count, first = 0, mine = 0, all = 0;
    MPI_Exscan(&count, &first, 1, MPI_UINT64_T, MPI_SUM, b->comm);
    if (b->rank == 0) first = 0;
    for (uint64_t n = 0; n < count; n++) mine += mix(mix(first + n) ^ b->in[n]);
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, b->comm);
    return all;
}

static bool verify(const struct buckets *b, struct digest wanted, long iteration, char *problem, size_t problem_size) {
    struct digest found = digest_everywhere(digest_of(b->in, b->in_count));
    bool order = in_order(b), strayed = !kernel_everywhere(b->comm, !b->strayed);
    if (strayed)
        snprintf(problem, problem_size,
                 "wrong result: in iteration %ld a rank received a key of another rank's buckets", iteration);
    else if (found.count != wanted.count)
        snprintf(problem, problem_size, "wrong result: %" PRIu64 " of %" PRIu64 " keys are left after iteration %ld",
                 found.count, wanted.count, iteration);
    else if (found.sum != wanted.sum || found.xor != wanted.xor)
        snprintf(problem, problem_size,
                 "wrong result: the keys of iteration %ld are not those that went in (sum %016" PRIx64
                 ", not %016" PRIx64 "; xor %016" PRIx64 ", not %016" PRIx64 ")",
                 iteration, found.sum, wanted.sum, found.xor, wanted.xor);
    else if (!order)
        snprintf(problem, problem_size, "wrong result: the keys of iteration %ld are not in order", iteration);
    else
        return true;
    return false;
}

/* New keys, sorted and verified; only the sorting is timed. */
static bool iterate(struct buckets *b, struct input *input, long iteration, struct outcome *outcome) {
    fill(input, iteration);
    struct digest wanted = digest_everywhere(digest_of(input->keys, input->count));
    MPI_Barrier(b->comm);
    double begin = MPI_Wtime();
    bool good = buckets_sort(b, input->keys, input->count, &outcome->traffic);
    outcome->seconds += MPI_Wtime() - begin;
    if (!good) snprintf(outcome->problem, sizeof outcome->problem, "out of memory for the keys that a rank received");
    return good && verify(b, wanted, iteration, outcome->problem, sizeof outcome->problem);
}

static bool iterate_all(struct buckets *b, struct input *input, const struct options *options,
                        struct outcome *outcome) {
    long iterations = options->iterations;
    if (iterations == 0) {
        if (!iterate(b, input, 0, outcome)) return false;
        iterations = kernel_iterations_for(options->seconds, outcome->seconds, 1);
        outcome->seconds = 0.0;
        outcome->traffic = (struct traffic){0};
    }
    for (long n = 1; n <= iterations; n++) {
        outcome->traffic.spoil = n == iterations && kernel_spoils(options);
        if (!iterate(b, input, n, outcome)) return false;
        outcome->iterations = n;
    }
    if (!kernel_everywhere(b->comm, !outcome->traffic.spoil)) {
        snprintf(outcome->problem, sizeof outcome->problem, "--spoil: the last rank received no key from another");
        return false;
    }
    return true;
}

static enum ending run(const struct options *options, struct outcome *outcome) {
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int first = place_first(options->size, ranks, rank);
    struct input input = {.first = (uint64_t)first,
                          .count = place_first(options->size, ranks, rank + 1) - first,
                          .range = range_for(options->size)};
    input.keys = malloc(((size_t)input.count + 1) * sizeof *input.keys);

    struct buckets buckets;
    enum ending ending = REFUSED;
    bool ready = buckets_create(&buckets, MPI_COMM_WORLD, input.range, input.count);
    if (!kernel_everywhere(MPI_COMM_WORLD, ready && input.keys != NULL)) {
        snprintf(outcome->problem, sizeof outcome->problem, "--size %s: out of memory for %d keys on %d ranks",
                 options->size_name, options->size, ranks);
    } else {
        ending = iterate_all(&buckets, &input, options, outcome) ? DONE : WRONG;
        outcome->work = (double)options->size * (double)outcome->iterations;
        outcome->checksum = ending == DONE ? checksum_of(&buckets) : 0;
    }
    buckets_free(&buckets);
    free(input.keys);
    return ending;
}

int main(int argc, char **argv) {
    static const struct named_size sizes[] = {{"S", 1 << 16}, {"W", 1 << 20}, {"A", 1 << 23},
                                              {"B", 1 << 25}, {"C", 1 << 27}, {NULL, 0}};
    static const struct kernel sort = {
        .name = "sort",
        .summary = "Sort integers by buckets, with an exchange of every rank with every other.",
        .size_meaning = "keys",
        .iteration_meaning = "sets of keys",
        .unit = "keys",
        .sizes = sizes,
        .smallest = 1,
        .largest = INT_MAX,
        .iterations = 10,
        .run = run,
    };
    return kernel_main(&sort, argc, argv);
}
