/* As redistribute.py, in C: quarters to rows of n x n doubles on 4 ranks, in turns with MPI's own Alltoallw and its
 * persistent form; a line of JSON for each size, from rank 0. redistribute ROUNDS */
#include <landbridge_mpi.h>

enum { RANKS = 4, WAYS = 3, MOST_ROUNDS = 64 };

static const char *NAMES[WAYS] = {"ours", "alltoallw", "alltoallw_init"};
static lb_plan *plan;
static double *a, *b;
static int rank, counts[2][RANKS], places[2][RANKS];
static MPI_Datatype types[2][RANKS];
static MPI_Request persistent;

static void need(int code, const char *what) {
    if (code == LB_OK) return;
    fprintf(stderr, "%s: %s\n", what, lb_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Subarrays that each pair of ranks has in common. */
static void describe(int n) {
    int half = n / 2, quarter = n / 4;
    for (int peer = 0; peer < RANKS; peer++) {
        for (int end = 0; end < 2; end++) {
            int source = end ? peer : rank, target = end ? rank : peer;
            int first = source / 2 * half, column = source % 2 * half;
            int low = first > target * quarter ? first : target * quarter;
            int high = first + half < (target + 1) * quarter ? first + half : (target + 1) * quarter;
            int shape[2] = {end ? quarter : half, end ? n : half};
            int start[2] = {low - (end ? target * quarter : first), end ? column : 0};
            int extent[2] = {high - low, half};
            counts[end][peer] = low < high;
            types[end][peer] = MPI_BYTE;
            if (low >= high) continue;
            MPI_Type_create_subarray(2, shape, extent, start, MPI_ORDER_C, MPI_DOUBLE, &types[end][peer]);
            MPI_Type_commit(&types[end][peer]);
        }
    }
}

static void once(int way) {
    if (way == 0) {
        need(lb_plan_run(plan, a, b), "lb_plan_run");
    } else if (way == 1) {
        MPI_Alltoallw(a, counts[0], places[0], types[0], b, counts[1], places[1], types[1], MPI_COMM_WORLD);
    } else {
        MPI_Start(&persistent);
        MPI_Wait(&persistent, MPI_STATUS_IGNORE);
    }
}

/* Milliseconds, of the slowest rank. */
static double timed(int way, int repeats) {
    double began, mine, slowest;
    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
    for (int turn = 0; turn < repeats; turn++) once(way);
    mine = (MPI_Wtime() - began) / repeats * 1e3;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void one(int n, int rounds) {
    static double times[WAYS][MOST_ROUNDS];
    int64_t shape[2] = {n, n};
    int ways = 2, repeats = 3 * 4096 * 4096 / (n * n);
    double began, planned;
    lb_axis quarters[2], rows[2];
    lb_layout *source, *target;
    quarters[0] = quarters[1] = lb_block(2);
    rows[0] = lb_block(RANKS);
    rows[1] = lb_whole();
    repeats = repeats > 200 ? 200 : repeats < 3 ? 3 : repeats;
    need(lb_layout_create(2, shape, quarters, LB_C, &source), "lb_layout_create");
    need(lb_layout_create(2, shape, rows, LB_C, &target), "lb_layout_create");
    a = (double *)malloc((size_t)n * n / RANKS * sizeof *a);
    b = (double *)malloc((size_t)n * n / RANKS * sizeof *b);
    for (int at = 0; at < n * n / RANKS; at++) a[at] = rank + at, b[at] = 0;
    began = MPI_Wtime();
    need(lb_plan_create(source, target, "f8", MPI_COMM_WORLD, NULL, &plan), "lb_plan_create");
    planned = (MPI_Wtime() - began) * 1e3;
    describe(n);
#if MPI_VERSION >= 4
    MPI_Alltoallw_init(a, counts[0], places[0], types[0], b, counts[1], places[1], types[1], MPI_COMM_WORLD,
                       MPI_INFO_NULL, &persistent);
    ways = 3;
#endif
    for (int way = 0; way < ways; way++) once(way), once(way);
    for (int round = 0; round < rounds; round++)
        for (int way = 0; way < ways; way++) times[way][round] = timed(way, repeats);
    if (rank == 0) {
        printf("{\"case\": \"quarters to rows, in C\", \"n\": %d, \"plan_ms\": %g, \"ms\": {", n, planned);
        for (int way = 0; way < ways; way++) {
            printf("%s\"%s\": [", way ? ", " : "", NAMES[way]);
            for (int round = 0; round < rounds; round++) printf("%s%g", round ? ", " : "", times[way][round]);
            printf("]");
        }
        printf("}}\n");
        fflush(stdout);
    }
    if (ways > 2) MPI_Request_free(&persistent);
    for (int end = 0; end < 2; end++)
        for (int peer = 0; peer < RANKS; peer++)
            if (types[end][peer] != MPI_BYTE) MPI_Type_free(&types[end][peer]);
    lb_plan_free(&plan);
    lb_layout_free(&source);
    lb_layout_free(&target);
    free(a);
    free(b);
}

int main(int argc, char **argv) {
    static const int SIZES[] = {256, 1024, 4096};
    int ranks, rounds = argc > 1 ? atoi(argv[1]) : 5;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != RANKS || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "redistribute ROUNDS, on %d ranks, with at most %d rounds\n", RANKS, MOST_ROUNDS);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int at = 0; at < 3; at++) one(SIZES[at], rounds);
    MPI_Finalize();
    return 0;
}
