/* Times of collective operations, with MPI's plain calls only, so that any MPI of the same ABI runs it.
 *
 *   collectives OPERATION QUIET SECONDS ROOT SIZE...
 *
 * OPERATION: see `operations` below; QUIET: seconds to sleep first, so that gateways find time to measure their trunks;
 * SECONDS: spent on each size, with the time between operations.
 *
 * SIZE is in bytes: of the message (bcast), of each rank's contribution (all others). Rank 0 prints one JSON object for
 * each size. The time of one operation is from the moment at which all ranks begin until the last rank has returned.
 * Ranks agree on that moment by CLOCK_MONOTONIC and sleep until then, so all of them must run on one machine (a lab).
 * Every result is checked, outside the timed part.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAG = 11, MOST_SAMPLES = 10000, LEAST_SAMPLES = 3 };
/* From rank 0's word until all begin: longer than any one-way delay here. */
static const double LEAD_S = 0.15;
/* A turn in which a rank begins this late, and this part of the turn, does not count, and this many such turns are too
 * many. The others include a delay: 32 ranks that wake together on two cores are 3 ms late. */
static const double LATE_S = 0.001, LATE_OF_TURN = 0.3;
enum { MOST_LATE = 1000 };

static int rank, ranks, root;

static void fail(const char *what, const char *value) {
    fprintf(stderr, "collectives: rank %d: %s: %s\n", rank, what, value);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void sleep_until(double at_s) {
    struct timespec t = {(time_t)at_s, (long)((at_s - (double)(time_t)at_s) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {
    }
}

static void *memory_of(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes ? bytes : 1)) fail("out of memory", "a buffer");
    memset(memory, 0, bytes ? bytes : 1);
    return memory;
}

static uint32_t word(size_t at, int from, int round) {
    return (uint32_t)at * 2654435761u + (uint32_t)from * 40503u + (uint32_t)round * 97u + 1u;
}

static void fill(uint32_t *words, size_t count, int from, int round) {
    for (size_t i = 0; i < count; i++) words[i] = word(i, from, round);
}

static void expect(const uint32_t *words, size_t count, int from, int round, const char *what) {
    for (size_t i = 0; i < count; i++)
        if (words[i] != word(i, from, round)) fail("wrong data arrived", what);
}

/* Small whole numbers: exact in any order of addition. */
static double number(size_t at, int from, int round) { return (double)((at + (size_t)from + (size_t)round) % 1000); }

static void expect_sums(const double *sums, size_t count, int round, const char *what) {
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int from = 0; from < ranks; from++) sum += number(i, from, round);
        if (sums[i] != sum) fail("wrong sums arrived", what);
    }
}

/* Buffers of an operation. */
struct work {
    size_t bytes;
    int round;
    char *out, *in;
};

static int words_of(const struct work *work) { return (int)(work->bytes / sizeof(uint32_t)); }
static int numbers_of(const struct work *work) { return (int)(work->bytes / sizeof(double)); }

static void contribute(struct work *work) { fill((uint32_t *)work->out, (size_t)words_of(work), rank, work->round); }

static void contribute_to_each(struct work *work) {
    for (int to = 0; to < ranks; to++)
        fill((uint32_t *)(work->out + (size_t)to * work->bytes), (size_t)words_of(work), rank * ranks + to,
             work->round);
}

static void contribute_numbers(struct work *work) {
    double *out = (double *)work->out;
    for (size_t i = 0; i < (size_t)numbers_of(work); i++) out[i] = number(i, rank, work->round);
}

static void prepare_nothing(struct work *work) { (void)work; }
static void expect_nothing(struct work *work) { (void)work; }

static void prepare_bcast(struct work *work) {
    memset(work->in, 0, work->bytes);
    if (rank == root) fill((uint32_t *)work->in, (size_t)words_of(work), root, work->round);
}
static void bcast(struct work *work) { MPI_Bcast(work->in, (int)work->bytes, MPI_BYTE, root, MPI_COMM_WORLD); }
static void expect_bcast(struct work *work) {
    expect((uint32_t *)work->in, (size_t)words_of(work), root, work->round, "by MPI_Bcast");
}

static void barrier(struct work *work) {
    (void)work;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void reduce(struct work *work) {
    MPI_Reduce(work->out, work->in, numbers_of(work), MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
}
static void expect_reduce(struct work *work) {
    if (rank == root) expect_sums((double *)work->in, (size_t)numbers_of(work), work->round, "by MPI_Reduce");
}

static void allreduce(struct work *work) {
    MPI_Allreduce(work->out, work->in, numbers_of(work), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}
static void expect_allreduce(struct work *work) {
    expect_sums((double *)work->in, (size_t)numbers_of(work), work->round, "by MPI_Allreduce");
}

static void allgather(struct work *work) {
    MPI_Allgather(work->out, (int)work->bytes, MPI_BYTE, work->in, (int)work->bytes, MPI_BYTE, MPI_COMM_WORLD);
}
static void expect_of_all(struct work *work) {
    for (int from = 0; from < ranks; from++) {
        const char *part = work->in + (size_t)from * work->bytes;
        expect((const uint32_t *)part, (size_t)words_of(work), from, work->round, "from every rank");
    }
}

static void gather(struct work *work) {
    MPI_Gather(work->out, (int)work->bytes, MPI_BYTE, work->in, (int)work->bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}
static void expect_gather(struct work *work) {
    if (rank == root) expect_of_all(work);
}

static void scatter(struct work *work) {
    MPI_Scatter(work->out, (int)work->bytes, MPI_BYTE, work->in, (int)work->bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}
static void expect_scatter(struct work *work) {
    expect((uint32_t *)work->in, (size_t)words_of(work), root * ranks + rank, work->round, "by MPI_Scatter");
}

static void alltoall(struct work *work) {
    MPI_Alltoall(work->out, (int)work->bytes, MPI_BYTE, work->in, (int)work->bytes, MPI_BYTE, MPI_COMM_WORLD);
}
static void expect_alltoall(struct work *work) {
    for (int from = 0; from < ranks; from++) {
        const char *part = work->in + (size_t)from * work->bytes;
        expect((const uint32_t *)part, (size_t)words_of(work), from * ranks + rank, work->round, "by MPI_Alltoall");
    }
}

static const struct operation {
    const char *name;
    /* How many times SIZE the buffers hold, for each rank of the communicator or once. */
    int out_each, in_each;
    void (*prepare)(struct work *), (*run)(struct work *), (*check)(struct work *);
} operations[] = {
    {"bcast", 0, 0, prepare_bcast, bcast, expect_bcast},
    {"barrier", 0, 0, prepare_nothing, barrier, expect_nothing},
    {"reduce", 0, 0, contribute_numbers, reduce, expect_reduce},
    {"allreduce", 0, 0, contribute_numbers, allreduce, expect_allreduce},
    {"allgather", 0, 1, contribute, allgather, expect_of_all},
    {"gather", 0, 1, contribute, gather, expect_gather},
    {"scatter", 1, 0, contribute_to_each, scatter, expect_scatter},
    {"alltoall", 1, 1, contribute_to_each, alltoall, expect_alltoall},
};

static const struct operation *operation_named(const char *name) {
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (!strcmp(operations[i].name, name)) return &operations[i];
    fail("no such operation", name);
    return NULL;
}

/* All ranks return at the same moment, `at_s`, and know whether rank 0 wants another turn. Messages of our own: the
 * MPI's barrier may be what is measured. */
static int begin_together(int again, double *at_s) {
    struct {
        double at_s;
        int again;
    } go = {0, again};
    if (rank == 0) {
        for (int from = 1; from < ranks; from++)
            MPI_Recv(NULL, 0, MPI_BYTE, from, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        go.at_s = now_s() + LEAD_S;
        for (int to = 1; to < ranks; to++) MPI_Send(&go, sizeof go, MPI_BYTE, to, TAG, MPI_COMM_WORLD);
    } else {
        MPI_Send(NULL, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        MPI_Recv(&go, sizeof go, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    *at_s = go.at_s;
    if (go.again) sleep_until(go.at_s);
    return go.again;
}

/* The last rank's start and end, at rank 0. */
static void last_of_all(double last_s[2]) {
    if (rank != 0) {
        MPI_Send(last_s, 2, MPI_DOUBLE, 0, TAG + 1, MPI_COMM_WORLD);
        return;
    }
    for (int from = 1; from < ranks; from++) {
        double other[2];
        MPI_Recv(other, 2, MPI_DOUBLE, from, TAG + 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < 2; i++)
            if (other[i] > last_s[i]) last_s[i] = other[i];
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct operation *operation, size_t bytes, double seconds) {
    struct work work = {.bytes = bytes};
    work.out = memory_of(bytes * (size_t)(operation->out_each ? ranks : 1));
    work.in = memory_of(bytes * (size_t)(operation->in_each ? ranks : 1));
    double *samples_s = memory_of(sizeof *samples_s * MOST_SAMPLES), begun_s = now_s();
    int count = 0, late = 0;
    /* The first turn is a warm-up: connections, communicators' plans. */
    for (work.round = 0;; work.round++) {
        operation->prepare(&work);
        int wanted = count < LEAST_SAMPLES || (now_s() - begun_s < seconds && count < MOST_SAMPLES);
        double at_s;
        if (!begin_together(wanted, &at_s)) break;
        double last_s[2] = {now_s(), 0};
        operation->run(&work);
        last_s[1] = now_s();
        last_of_all(last_s);
        operation->check(&work);
        double late_s = last_s[0] - at_s;
        if (late_s > LATE_S && late_s > LATE_OF_TURN * (last_s[1] - at_s)) {
            if (++late > MOST_LATE) fail("ranks begin too late again and again", "the machine is too busy");
        } else if (work.round > 0) {
            samples_s[count++] = last_s[1] - at_s;
        }
    }
    if (rank == 0) {
        qsort(samples_s, (size_t)count, sizeof *samples_s, ascending);
        printf("{\"operation\": \"%s\", \"size\": %zu, \"ranks\": %d, \"count\": %d, \"turns\": %d, \"min_ms\": %.4f, "
               "\"ms\": %.4f, \"max_ms\": %.4f, \"late\": %d}\n",
               operation->name, bytes, ranks, count, work.round, samples_s[0] * 1e3, samples_s[count / 2] * 1e3,
               samples_s[count - 1] * 1e3, late);
        fflush(stdout);
    }
    free(work.out);
    free(work.in);
    free(samples_s);
}

int main(int argc, char **argv) {
    if (argc > 2) sleep((unsigned)atoi(argv[2]));
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 6) fail("usage", "collectives OPERATION QUIET SECONDS ROOT SIZE...");
    const struct operation *operation = operation_named(argv[1]);
    double seconds = atof(argv[3]);
    root = atoi(argv[4]);
    if (root < 0 || root >= ranks) fail("no such root", argv[4]);
    for (int i = 5; i < argc; i++) {
        size_t bytes = strtoull(argv[i], NULL, 10);
        if (bytes % sizeof(double)) fail("not a multiple of 8", argv[i]);
        measure(operation, bytes, seconds);
    }
    MPI_Finalize();
    return 0;
}
