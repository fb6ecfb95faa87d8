/* One side of a coupling, through landbridge_coupling.h: couple NAME exports or fetches the arrays of tests/test_c.py;
 * couple NAME wrong: impossible requests are refused on all ranks alike; couple NAME leave: ends it in the middle. */
#include <landbridge_coupling.h>

enum { ROWS = 37, COLUMNS = 26, VERSIONS = 20 };

static int rank, ranks;

static void need(int code, const char *what) {
    if (code == LB_OK) return;
    fprintf(stderr, "rank %d: %s: %d: %s\n", rank, what, code, lb_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void expect(int code, int wanted, const char *said) {
    if (code == wanted && (!said || strstr(lb_error(), said))) return;
    fprintf(stderr, "rank %d: code %d, not %d; `%s` is not in `%s`\n", rank, code, wanted, said ? said : "",
            code ? lb_error() : "");
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static double element(int64_t row, int64_t column, int version) {
    return (double)(1000 * row + column) + version * 1e6;
}

/* Rows in blocks over all ranks but the last, if there are several. */
static int first_row, rows, blocks;

static lb_layout *in_blocks(void) {
    int64_t shape[2] = {ROWS, COLUMNS}, local[2];
    lb_axis along[2];
    lb_layout *layout;
    int size;
    blocks = ranks > 1 ? ranks - 1 : 1;
    size = (ROWS + blocks - 1) / blocks;
    along[0] = lb_block(blocks);
    along[1] = lb_whole();
    need(lb_layout_create(2, shape, along, LB_C, &layout), "lb_layout_create");
    first_row = size * rank;
    rows = 0;
    if (rank < blocks) {
        need(lb_layout_local_shape(layout, rank, local), "lb_layout_local_shape");
        rows = (int)local[0];
    }
    return layout;
}

static void export_all(lb_coupling *coupling, lb_layout *layout) {
    double *a = (double *)malloc((size_t)(rows + 1) * COLUMNS * sizeof *a);
    for (int version = 0; version < VERSIONS; version++) {
        for (int row = 0; row < rows; row++)
            for (int column = 0; column < COLUMNS; column++)
                a[row * COLUMNS + column] = element(first_row + row, column, version);
        need(lb_export(coupling, "sst", (uint64_t)version, layout, "f8", rank < blocks ? a : NULL, NULL), "lb_export");
    }
    free(a);
}

static void fetch_all(lb_coupling *coupling, lb_layout *layout) {
    /* With a gap behind each row, and one before the first. */
    int64_t strides[2] = {(COLUMNS + 3) * sizeof(double), sizeof(double)}, shape[2];
    double *into = (double *)malloc((size_t)(rows + 1) * (COLUMNS + 3) * sizeof *into);
    char dtype[LB_DTYPE];
    lb_layout *theirs;
    lb_transfer_options options;
    memset(&options, 0, sizeof options);
    options.strides = strides;
    need(lb_variable(coupling, "sst", 60, dtype, &theirs), "lb_variable");
    need(lb_layout_shape(theirs, shape), "lb_layout_shape");
    if (strcmp(dtype, "<f8") || lb_layout_axes(theirs) != 2 || shape[0] != ROWS || shape[1] != COLUMNS)
        need(lb_fail(LB_INVALID, dtype), "another variable");
    lb_layout_free(&theirs);
    for (int version = 0; version < VERSIONS; version++) {
        memset(into, 0xEE, (size_t)(rows + 1) * (COLUMNS + 3) * sizeof *into);
        if (version % 2) {
            lb_fetching *fetching;
            int code;
            need(lb_fetch_start(coupling, "sst", (uint64_t)version, layout, "f8", rank < blocks ? into : NULL, &options,
                                &fetching),
                 "lb_fetch_start");
            while ((code = lb_fetch_wait(&fetching, 0)) == LB_TIMEOUT) lb_nap(1000);
            need(code, "lb_fetch_wait");
        } else {
            int code;
            lb_transfer_options soon = options;
            soon.timeout = version % 4 ? -1 : 0.002;
            /* A request that took too long may be repeated. */
            do code = lb_fetch(coupling, "sst", (uint64_t)version, layout, "f8", rank < blocks ? into : NULL, &soon);
            while (code == LB_TIMEOUT);
            need(code, "lb_fetch");
        }
        for (int row = 0; row < rows; row++)
            for (int column = 0; column < COLUMNS; column++)
                if (into[row * (COLUMNS + 3) + column] != element(first_row + row, column, version))
                    need(lb_fail(LB_INVALID, "an element"), "lb_fetch");
        for (int row = 0; row < rows; row++)
            for (size_t byte = 0; byte < 3 * sizeof *into; byte++)
                if (((unsigned char *)&into[row * (COLUMNS + 3) + COLUMNS])[byte] != 0xEE)
                    need(lb_fail(LB_INVALID, "a gap"), "lb_fetch");
    }
    free(into);
}

static void wrong(lb_coupling *coupling, lb_layout *layout) {
    int64_t shape[2] = {ROWS, COLUMNS};
    lb_axis along[2];
    lb_layout *many;
    double *into = (double *)malloc((size_t)(rows + 1) * COLUMNS * sizeof *into);
    double *mine = rank < blocks ? into : NULL;
    lb_fetching *fetching = NULL;
    lb_transfer_options soon;
    memset(&soon, 0, sizeof soon);
    soon.timeout = 0.2;
    along[0] = lb_block(ranks + 1);
    along[1] = lb_whole();
    need(lb_layout_create(2, shape, along, LB_C, &many), "lb_layout_create");
    expect(lb_fetch(coupling, "sst", 0, layout, "f4", mine, NULL), LB_INVALID, "sst has dtype '<f8', not '<f4'");
    expect(lb_fetch(coupling, "sst", 0, many, "f8", mine, NULL), LB_INVALID, "but this side has");
    expect(lb_fetch(coupling, "sst", 0, layout, "f8", rank ? mine : NULL, NULL), LB_INVALID, "rank 0: into is NULL");
    expect(lb_fetch(coupling, "sst", rank == ranks - 1, layout, "f8", mine, NULL), ranks > 1 ? LB_INVALID : LB_OK,
           "ranks want different things");
    expect(lb_fetch(coupling, "nothing", 0, layout, "f8", mine, &soon), LB_TIMEOUT, "exports nothing");
    expect(lb_fetch_start(coupling, "sst", 0, layout, "f8", mine, NULL, NULL), LB_INVALID, "fetching is NULL");
    need(lb_fetch_start(coupling, "sst", 0, layout, "f8", mine, NULL, &fetching), "lb_fetch_start");
    expect(lb_fetch(coupling, "sst", 1, layout, "f8", mine, NULL), LB_INVALID, "another fetch is in flight");
    need(lb_fetch_wait(&fetching, -1), "lb_fetch_wait");
    if (rows && into[0] != element(first_row, 0, 0)) need(lb_fail(LB_INVALID, "an element"), "after errors");
    need(lb_fetch(coupling, "sst", 1, layout, "f8", mine, NULL), "lb_fetch");
    expect(lb_export(coupling, "back", 1, layout, "f8", mine, NULL), LB_OK, NULL);
    expect(lb_export(coupling, "back", 1, layout, "f8", mine, NULL), LB_INVALID, "back");
    /* The other side closes without it. */
    expect(lb_close(&coupling, 20), LB_OVER, "back");
    if (coupling) need(LB_INVALID, "lb_close has not freed it");
    lb_layout_free(&many);
    free(into);
}

int main(int argc, char **argv) {
    lb_coupling *coupling = NULL;
    lb_layout *layout;
    const char *what = argc > 2 ? argv[2] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (strcmp(what, "alone") == 0) {
        lb_join_options options;
        memset(&options, 0, sizeof options);
        options.timeout = 1;
        expect(lb_join(argv[1], MPI_COMM_WORLD, &options, &coupling), LB_TIMEOUT, "no coupling within 1 s");
        expect(lb_join("no site", MPI_COMM_WORLD, &options, &coupling), LB_OVER, "is not NAME@SITE");
        if (rank == 0) printf("alone: good\n");
        MPI_Finalize();
        return 0;
    }
    layout = in_blocks();
    need(lb_join(argv[1], MPI_COMM_WORLD, NULL, &coupling), "lb_join");
    if (strcmp(what, "export") == 0) export_all(coupling, layout);
    if (strcmp(what, "fetch") == 0) fetch_all(coupling, layout);
    if (strcmp(what, "wrong") == 0) wrong(coupling, layout);
    if (strcmp(what, "leave") == 0) lb_leave(&coupling, "the model has diverged");
    if (strcmp(what, "wrong") && strcmp(what, "leave")) need(lb_close(&coupling, 60), "lb_close");
    lb_layout_free(&layout);
    if (rank == 0) printf("%s: good\n", what);
    MPI_Finalize();
    return 0;
}
