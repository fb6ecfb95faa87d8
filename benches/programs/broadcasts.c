/* Broadcasts from rank 0, one after the other, and when each had arrived everywhere.
 *
 *   broadcasts SECONDS SIZE      SIZE in bytes, at least 4096
 *
 * Rank 0 prints {"began": S} once every rank has had the first two, and at the end
 * {"size": .., "began": S, "ends": [..]} with the moment at which the last rank had each of the following ones, in
 * seconds of CLOCK_MONOTONIC: all ranks must run on one machine (a lab). A word of every page of every message is
 * checked.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAGE = 4096, MOST = 100000, WARM = 8 << 20 };

static int rank;

static void fail(const char *what, const char *value) {
    fprintf(stderr, "broadcasts: rank %d: %s: %s\n", rank, what, value);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t word(size_t at, uint64_t turn) { return (uint64_t)at * 0x9e3779b97f4a7c15u + turn; }

/* One broadcast. The first word is nonzero if another one follows; the first word of each other page holds the turn. */
static int broadcast(char *data, size_t bytes, uint64_t turn, int again) {
    uint64_t *first = (uint64_t *)data;
    if (rank == 0) {
        *first = (uint64_t)again;
        for (size_t at = PAGE; at + sizeof *first <= bytes; at += PAGE) *(uint64_t *)(data + at) = word(at, turn);
    }
    MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (size_t at = PAGE; at + sizeof *first <= bytes; at += PAGE)
        if (*(uint64_t *)(data + at) != word(at, turn)) fail("wrong data arrived", "by MPI_Bcast");
    return (int)*first;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 3) fail("usage", "broadcasts SECONDS SIZE");
    double seconds = atof(argv[1]);
    size_t bytes = strtoull(argv[2], NULL, 10);
    char *data = NULL;
    if (bytes < PAGE || bytes > INT32_MAX) fail("not a size from 4096 to 2147483647", argv[2]);
    if (posix_memalign((void **)&data, PAGE, bytes)) fail("out of memory", argv[2]);
    double *ends = calloc(MOST, sizeof *ends), *last = calloc(MOST, sizeof *last);
    if (!ends || !last) fail("out of memory", "for the times");
    /* Twice: the communicator's plan, then the links. No longer than it takes to fill them. */
    for (uint64_t turn = 0; turn < 2; turn++) broadcast(data, bytes < WARM ? bytes : WARM, turn, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = now_s();
    if (rank == 0) {
        printf("{\"began\": %.6f}\n", began);
        fflush(stdout);
    }
    int count = 0;
    for (int more = 1; more && count < MOST; count++) {
        more = broadcast(data, bytes, (uint64_t)count, now_s() - began < seconds && count + 1 < MOST);
        ends[count] = now_s();
    }
    MPI_Reduce(ends, last, count, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"size\": %zu, \"began\": %.6f, \"ends\": [", bytes, began);
        for (int at = 0; at < count; at++) printf("%s%.6f", at ? ", " : "", last[at]);
        printf("]}\n");
    }
    free(data), free(ends), free(last);
    MPI_Finalize();
    return 0;
}
