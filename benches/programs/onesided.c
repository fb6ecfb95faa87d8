/* Loops of small one-sided operations from rank 0 on rank n - 1, which waits in a barrier; microseconds per operation.
 *
 *   onesided COUNT WAITED    COUNT operations with one flush behind them, and WAITED operations with a flush behind
 * each
 *
 * Prints one JSON object per kind: {"kind", "operations", "us"}. `us` is the time of the loop divided by its
 * operations. In the last kind all ranks but the last operate on it at the same time. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 8, ELEMENTS = 4 };

static MPI_Win window;
static int target;

static void put(void) {
    static char bytes[LENGTH];
    MPI_Put(bytes, LENGTH, MPI_BYTE, target, 0, LENGTH, MPI_BYTE, window);
}

static void get(void) {
    static char bytes[LENGTH];
    MPI_Get(bytes, LENGTH, MPI_BYTE, target, 0, LENGTH, MPI_BYTE, window);
}

static void accumulate(void) {
    static long one[ELEMENTS] = {1, 1, 1, 1};
    MPI_Accumulate(one, ELEMENTS, MPI_LONG, target, 0, ELEMENTS, MPI_LONG, MPI_SUM, window);
}

static void get_accumulate(void) {
    static long one[ELEMENTS] = {1, 1, 1, 1}, old[ELEMENTS];
    MPI_Get_accumulate(one, ELEMENTS, MPI_LONG, old, ELEMENTS, MPI_LONG, target, 0, ELEMENTS, MPI_LONG, MPI_SUM,
                       window);
}

static void fetch_and_op(void) {
    static long one = 1, old;
    MPI_Fetch_and_op(&one, &old, MPI_LONG, target, 0, MPI_SUM, window);
}

static void report(const char *kind, int operations, double began) {
    printf("{\"kind\": \"%s\", \"operations\": %d, \"us\": %.3f}\n", kind, operations,
           (MPI_Wtime() - began) * 1e6 / operations);
    fflush(stdout);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 3 || size < 2) {
        fprintf(stderr, "onesided COUNT WAITED, with two ranks or more\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const int count = atoi(argv[1]), waited = atoi(argv[2]);
    target = size - 1;
    static const struct {
        const char *name;
        void (*begin)(void);
    } kinds[] = {{"put", put},
                 {"get", get},
                 {"accumulate", accumulate},
                 {"get_accumulate", get_accumulate},
                 {"fetch_and_op", fetch_and_op}};
    char *memory, name[64];
    MPI_Win_allocate(4096, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memset(memory, 0, 4096);
    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window);
            kinds[at].begin();
            MPI_Win_flush(target, window);
            double began = MPI_Wtime();
            for (int i = 0; i < waited; i++) {
                kinds[at].begin();
                MPI_Win_flush(target, window);
            }
            snprintf(name, sizeof name, "%s, a flush each", kinds[at].name);
            report(name, waited, began);
            began = MPI_Wtime();
            for (int i = 0; i < count; i++) kinds[at].begin();
            MPI_Win_flush(target, window);
            snprintf(name, sizeof name, "%s, one flush", kinds[at].name);
            report(name, count, began);
            MPI_Win_unlock(target, window);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0) {
        double began = MPI_Wtime();
        for (int i = 0; i < waited; i++) {
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window);
            put();
            MPI_Win_unlock(target, window);
        }
        report("put, a lock each", waited, began);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < waited && rank != target; i++) {
        get_accumulate();
        MPI_Win_flush(target, window);
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) report("get_accumulate of all, a flush each", waited, began);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
