/* The cost of waiting, with MPI's plain calls only, so that any MPI of the same ABI runs it.
 *
 *   waiting blocked SECONDS           rank 0 sleeps, then sends; all others block in MPI_Recv: their share of a core
 *   waiting allreduce SECONDS BYTES   time of an MPI_Allreduce over all ranks, checked
 *   waiting start                     MPI_Init, a barrier, MPI_Finalize
 *
 * Rank 0 prints one JSON object.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { TAG = 9, MOST_SAMPLES = 20000 };

static int rank, ranks;

static void fail(const char *what) {
    fprintf(stderr, "waiting: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void blocked(double seconds) {
    int token = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double cpu = cpu_s(), start = MPI_Wtime(), mine = 0, greatest = 0;
    if (rank == 0) {
        struct timespec rest = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        nanosleep(&rest, NULL);
        for (int to = 1; to < ranks; to++) MPI_Send(&to, 1, MPI_INT, to, TAG, MPI_COMM_WORLD);
    } else {
        MPI_Recv(&token, 1, MPI_INT, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (token != rank) fail("another rank's token arrived");
        mine = (cpu_s() - cpu) / (MPI_Wtime() - start);
    }
    MPI_Reduce(&mine, &greatest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("{\"kind\": \"blocked\", \"ranks\": %d, \"share\": %.5f}\n", ranks, greatest);
}

static void allreduce(double seconds, int bytes) {
    int count = bytes / (int)sizeof(double), samples = 0;
    double *in = malloc((size_t)bytes), *out = malloc((size_t)bytes), *took = malloc(sizeof *took * MOST_SAMPLES);
    if (!in || !out || !took) fail("out of memory");
    for (int i = 0; i < count; i++) in[i] = rank + i;
    for (double start = MPI_Wtime();;) { /* warm-up; rank 0 decides when it ends */
        MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i += 97)
            if (out[i] != ranks * (double)i + ranks * (ranks - 1) / 2.0) fail("a wrong sum");
        int go_on = MPI_Wtime() - start < seconds / 5;
        MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (!go_on) break;
    }
    for (double start = MPI_Wtime();;) {
        double before = MPI_Wtime();
        MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        took[samples++] = MPI_Wtime() - before;
        int go_on = MPI_Wtime() - start < seconds && samples < MOST_SAMPLES;
        MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (!go_on) break;
    }
    qsort(took, (size_t)samples, sizeof *took, ascending);
    if (rank == 0)
        printf("{\"kind\": \"allreduce\", \"ranks\": %d, \"bytes\": %d, \"samples\": %d, \"min_us\": %.2f, \"p50_us\": "
               "%.2f, \"p90_us\": %.2f}\n",
               ranks, bytes, samples, took[0] * 1e6, took[samples / 2] * 1e6, took[samples * 9 / 10] * 1e6);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc == 3 && !strcmp(argv[1], "blocked") && ranks > 1)
        blocked(atof(argv[2]));
    else if (argc == 4 && !strcmp(argv[1], "allreduce") && atoi(argv[3]) >= 8)
        allreduce(atof(argv[2]), atoi(argv[3]));
    else if (argc == 2 && !strcmp(argv[1], "start")) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) printf("{\"kind\": \"start\", \"ranks\": %d}\n", ranks);
    } else
        fail("usage: waiting blocked SECONDS (2 ranks or more) | allreduce SECONDS BYTES | start");
    MPI_Finalize();
    return 0;
}
