/* A program whose use of the processor, the memory, the network and the disk is set by its options, after MPbench of
 * Reid and Stumm, "Overlapping Data Transfer With Application Execution on Clusters": what does a transfer that runs
 * beside it cost, and which use suffers most?
 *
 * Every rank repeats: compute (pass over an array), wait, communicate. Rank 0 prints the mean time of each phase. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum access { READS, WRITES };
enum pattern { NONE, RING, BROADCAST, ALLREDUCE };

static struct {
    long iterations;
    size_t memory; /* bytes of the array that a rank passes over */
    size_t stride; /* bytes between two accesses: 8 hits the cache, 64 and more misses it */
    long passes;   /* over the array in each iteration */
    enum access access;
    enum pattern pattern;
    size_t message; /* bytes */
    double block;   /* seconds in which a rank waits for nothing that is here */
    size_t disk;    /* bytes that a rank writes in each iteration */
    const char *folder;
    int announce; /* whether rank 0 prints each phase when it begins */
} options = {100, 64 << 10, 8, 1000, READS, ALLREDUCE, 8, 0.0, 0, ".", 0};

static const char *USAGE =
    "usage: mpbench [--iterations N] [--memory BYTES] [--stride BYTES] [--passes N] [--access reads|writes]\n"
    "               [--pattern none|ring|broadcast|allreduce] [--message BYTES] [--block SECONDS]\n"
    "               [--disk BYTES] [--folder PATH] [--announce]\n";

static double now(void) { return MPI_Wtime(); }

static void fail(const char *what) {
    fprintf(stderr, "mpbench: %s\n%s", what, USAGE);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static size_t bytes(const char *name, const char *text) {
    char *end, message[200];
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = *end == 'k' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    end += shift > 0;
    if (errno || end == text || *end || *text == '-' || value > (SIZE_MAX >> shift)) {
        snprintf(message, sizeof message, "--%s %s is no number of bytes, such as 4096, 64k or 8M", name, text);
        fail(message);
    }
    return (size_t)value << shift;
}

static int choice(const char *name, const char *text, const char *const *words) {
    char message[200];
    for (int at = 0; words[at]; at++)
        if (!strcmp(text, words[at])) return at;
    snprintf(message, sizeof message, "--%s %s is unknown", name, text);
    fail(message);
    return 0;
}

static void parse(int argc, char **argv) {
    static const char *const accesses[] = {"reads", "writes", NULL};
    static const char *const patterns[] = {"none", "ring", "broadcast", "allreduce", NULL};
    static const struct option known[] = {
        {"iterations", 1, NULL, 'i'}, {"memory", 1, NULL, 'm'},  {"stride", 1, NULL, 's'},   {"passes", 1, NULL, 'p'},
        {"access", 1, NULL, 'a'},     {"pattern", 1, NULL, 'c'}, {"message", 1, NULL, 'l'},  {"block", 1, NULL, 'b'},
        {"disk", 1, NULL, 'd'},       {"folder", 1, NULL, 'f'},  {"announce", 0, NULL, 'v'}, {NULL, 0, NULL, 0}};
    int found;
    char *end;
    opterr = 0;
    while ((found = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (found) {
        case 'i': options.iterations = (long)bytes("iterations", optarg); break;
        case 'm': options.memory = bytes("memory", optarg); break;
        case 's': options.stride = bytes("stride", optarg); break;
        case 'p': options.passes = (long)bytes("passes", optarg); break;
        case 'a': options.access = (enum access)choice("access", optarg, accesses); break;
        case 'c': options.pattern = (enum pattern)choice("pattern", optarg, patterns); break;
        case 'l': options.message = bytes("message", optarg); break;
        case 'b':
            options.block = strtod(optarg, &end);
            if (end == optarg || *end || !(options.block >= 0)) fail("--block needs seconds, such as 0.01");
            break;
        case 'd': options.disk = bytes("disk", optarg); break;
        case 'f': options.folder = optarg; break;
        case 'v': options.announce = 1; break;
        default: fail("unknown option, or one without its value");
        }
    }
    if (optind < argc) fail(argv[optind]);
    if (options.stride < sizeof(double) || options.stride % sizeof(double)) fail("--stride must be a multiple of 8");
    if (options.memory < options.stride) fail("--memory must be at least --stride");
}

/* One pass touches every stride-th element. The sum keeps the compiler from leaving the loop out. */
static double compute(double *array, size_t elements, size_t step) {
    double sum = 0;
    for (long pass = 0; pass < options.passes; pass++) {
        if (options.access == READS)
            for (size_t at = 0; at < elements; at += step) sum += array[at];
        else
            for (size_t at = 0; at < elements; at += step) array[at] = sum + (double)pass;
        __asm__ volatile("" ::: "memory");
    }
    return sum;
}

static void announce(int rank, const char *phase) {
    if (rank || !options.announce) return;
    printf("{\"phase\":\"%s\"}\n", phase);
    fflush(stdout);
}

static void communicate(int rank, int size, char *out, char *in) {
    int length = (int)options.message;
    switch (options.pattern) {
    case NONE: break;
    case RING:
        MPI_Sendrecv(out, length, MPI_BYTE, (rank + 1) % size, 0, in, length, MPI_BYTE, (rank + size - 1) % size, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case BROADCAST: MPI_Bcast(out, length, MPI_BYTE, 0, MPI_COMM_WORLD); break;
    case ALLREDUCE: MPI_Allreduce(out, in, length / (int)sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); break;
    }
}

int main(int argc, char **argv) {
    int rank, size, file = -1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    parse(argc, argv);
    if (options.message > 1 << 30) fail("--message is more than 1G");
    double *array = calloc(1, options.memory);
    char *out = calloc(1, options.message + 8), *in = calloc(1, options.message + 8);
    char *written = calloc(1, options.disk + 1);
    if (!array || !out || !in || !written) fail("not enough memory");
    /* Pages that were never written are one page of zeros, which reads would find in the cache. */
    for (size_t at = 0; at < options.memory / sizeof(double); at++) array[at] = 1;
    if (options.disk) {
        char path[4096];
        snprintf(path, sizeof path, "%s/mpbench-%d-%d", options.folder, (int)getpid(), rank);
        file = open(path, O_CREAT | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0) fail(path);
        unlink(path);
    }
    double spent[4] = {0}, sum = 0;
    size_t elements = options.memory / sizeof(double), step = options.stride / sizeof(double);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now();
    for (long iteration = 0; iteration < options.iterations; iteration++) {
        double start = now();
        announce(rank, "compute");
        sum += compute(array, elements, step);
        double computed = now();
        if (options.block > 0) {
            announce(rank, "block");
            time_t whole = (time_t)options.block;
            struct timespec nap = {whole, (long)((options.block - (double)whole) * 1e9)};
            nanosleep(&nap, NULL);
        }
        double waited = now();
        if (options.disk) announce(rank, "disk");
        if (options.disk && (pwrite(file, written, options.disk, 0) != (ssize_t)options.disk || fdatasync(file)))
            fail("writing to the disk failed");
        double wrote = now();
        if (options.pattern != NONE) announce(rank, "communicate");
        communicate(rank, size, out, in);
        double end = now();
        spent[0] += computed - start;
        spent[1] += waited - computed;
        spent[2] += wrote - waited;
        spent[3] += end - wrote;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double all = now() - begin, sums[4];
    MPI_Reduce(spent, sums, 4, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"ranks\":%d,\"iterations\":%ld,\"seconds\":%.6f,\"compute\":%.6f,\"block\":%.6f,\"disk\":%.6f,"
               "\"communicate\":%.6f,\"sum\":%g}\n",
               size, options.iterations, all, sums[0] / size, sums[1] / size, sums[2] / size, sums[3] / size, sum);
    MPI_Finalize();
    free(array);
    free(out);
    free(in);
    free(written);
    return 0;
}
