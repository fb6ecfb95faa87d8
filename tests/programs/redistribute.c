/* Random redistributions through landbridge_mpi.h, each compared element by element: redistribute CASES SEED; or
 * redistribute refuse: impossible requests are refused on all ranks alike. */
#include <landbridge_mpi.h>

enum { AXES = 3, MOST = 24 };

static const unsigned char UNTOUCHED = 0xEE;

static uint64_t state;

/* xorshift64*, the same on all ranks. */
static int below(int bound) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (int)((state * 2685821657736338717ull >> 33) % (uint64_t)bound);
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, lb_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* A layout, and the result that every process of it must find. */
typedef struct side {
    int axes, order, processes, dimensions;
    int64_t shape[AXES];
    lb_axis along[AXES];
    int64_t sizes[AXES][16], indices[AXES][MOST];
    int32_t grid[AXES + 1], of[AXES + 1];
    lb_layout *layout;
} side;

static void draw(side *out, int axes, const int64_t *shape, int ranks) {
    memset(out, 0, sizeof *out);
    out->axes = axes;
    out->order = below(2) ? LB_FORTRAN : LB_C;
    out->processes = 1;
    for (int axis = 0; axis < axes; axis++) {
        int64_t n = out->shape[axis] = shape[axis];
        int over = 1 + below(ranks / out->processes > 4 ? 4 : ranks / out->processes), kind = below(4);
        int64_t left = n;
        for (int at = 0; at < over; at++) {
            int64_t size = at == over - 1 ? left : below((int)left + 1);
            out->sizes[axis][at] = size;
            left -= size;
        }
        for (int64_t at = 0; at < n; at++) out->indices[axis][at] = at;
        for (int64_t at = n - 1; at > 0; at--) {
            int other = below((int)at + 1);
            int64_t kept = out->indices[axis][at];
            out->indices[axis][at] = out->indices[axis][other];
            out->indices[axis][other] = kept;
        }
        if (kind == 0) {
            over = 1;
            out->along[axis] = lb_whole();
            if (n > 2 && below(2)) out->along[axis] = lb_with_halo(out->along[axis], 1, 2, below(2));
        } else if (kind == 1) {
            out->along[axis] = below(2) ? lb_block(over) : lb_block_sizes(over, out->sizes[axis]);
        } else if (kind == 2) {
            out->along[axis] = lb_cyclic(over, 1 + below(5), below(over));
        } else {
            out->along[axis] = lb_lists(over, out->sizes[axis], out->indices[axis]);
        }
        out->grid[axis] = over;
        out->of[axis] = axis;
        out->processes *= over;
    }
    out->dimensions = axes;
    if (below(3) == 0) {
        /* Copies, along the fastest dimension of the grid. */
        out->grid[axes] = 1 + below(ranks / out->processes);
        out->of[axes] = -1;
        out->processes *= out->grid[axes];
        out->dimensions++;
    }
    if (out->dimensions == axes) {
        if (lb_layout_create(axes, out->shape, out->along, out->order, &out->layout)) fail("lb_layout_create");
    } else if (lb_layout_create_on_grid(axes, out->shape, out->along, out->order, out->dimensions, out->grid, out->of,
                                        &out->layout)) {
        fail("lb_layout_create_on_grid");
    }
    if (lb_layout_size(out->layout) != out->processes) fail("another number of processes");
}

/* The global indices that a process holds along an axis, in its order; -1: beyond the array. Returns how many. */
static int held(const side *of, int axis, int process, int64_t *indices) {
    const lb_axis *along = &of->along[axis];
    int64_t n = of->shape[axis], first = 0;
    int place, count = 0, below_it = 1;
    for (int at = of->dimensions - 1; at > axis; at--) below_it *= of->grid[at];
    place = process / below_it % of->grid[axis];
    if (along->kind == LB_WHOLE) {
        /* Nothing is around nothing. */
        if (n == 0) return 0;
        for (int64_t at = -along->before; at < n + along->after; at++)
            indices[count++] = at >= 0 && at < n ? at : along->periodic ? (at + n) % n : -1;
    } else if (along->kind == LB_CYCLIC) {
        for (int64_t at = 0; at < n; at++)
            if ((at / along->block + along->first) % along->over == place) indices[count++] = at;
    } else {
        int64_t size = (n + along->over - 1) / along->over;
        if (!along->sizes) {
            first = size * place < n ? size * place : n;
            size = size < n - first ? size : n - first;
        } else {
            for (int at = 0; at < place; at++) first += along->sizes[at];
            size = along->sizes[place];
        }
        for (int64_t at = first; at < first + size; at++)
            indices[count++] = along->kind == LB_LISTS ? along->indices[at] : at;
    }
    return count;
}

typedef struct part {
    int64_t counts[AXES], strides[AXES], indices[AXES][MOST + 3];
    int64_t bytes;
} part;

/* A process's part, with gaps, of elements of `size` bytes. */
static void lay(part *out, const side *of, int process, int64_t size, int gaps) {
    memset(out, 0, sizeof *out);
    out->bytes = size;
    for (int at = 0; at < of->axes; at++) {
        int axis = of->order == LB_C ? of->axes - 1 - at : at;
        out->counts[axis] = process < of->processes ? held(of, axis, process, out->indices[axis]) : 0;
        out->strides[axis] = out->bytes;
        out->bytes *= out->counts[axis] + gaps;
    }
    if (process >= of->processes) return;
    int64_t shape[AXES];
    if (lb_layout_local_shape(of->layout, process, shape)) fail("lb_layout_local_shape");
    for (int axis = 0; axis < of->axes; axis++)
        if (shape[axis] != out->counts[axis]) fail("another local shape");
}

/* Byte `byte` of the element at a global index. */
static unsigned char content(int64_t linear, int byte, int run) {
    return (unsigned char)((linear * 131 + byte * 17 + run * 59 + (linear >> 7)) % 233);
}

/* Steps `at` through the counts; whether there is another. */
static int next(const int64_t *counts, int axes, int64_t *at) {
    for (int axis = axes - 1; axis >= 0; axis--) {
        if (++at[axis] < counts[axis]) return 1;
        at[axis] = 0;
    }
    return 0;
}

static int is_empty(const part *of, int axes) {
    for (int axis = 0; axis < axes; axis++)
        if (of->counts[axis] == 0) return 1;
    return 0;
}

/* Writes the elements of a part, or compares the part with them. `from`: for each axis, the axis of the source, its
 * extent, whether it is reversed, and its shift; the source's shape is `shape`. Returns how many elements differ. */
static int visit(const part *of, int axes, char *memory, int64_t size, int run, int writes, const int64_t *shape,
                 const int *from, const int *reversed, const int64_t *shift) {
    int64_t at[AXES] = {0};
    int wrong = 0;
    if (is_empty(of, axes)) return 0;
    do {
        int64_t place = 0, index[AXES] = {0}, linear = 0;
        int beyond = 0;
        for (int axis = 0; axis < axes; axis++) {
            int64_t global = of->indices[axis][at[axis]], n = shape[from[axis]];
            place += at[axis] * of->strides[axis];
            beyond |= global < 0;
            global = n ? (global + shift[from[axis]]) % n : 0;
            index[from[axis]] = reversed[from[axis]] ? n - 1 - global : global;
        }
        for (int axis = 0; axis < axes; axis++) linear = linear * shape[axis] + index[axis];
        for (int byte = 0; byte < size; byte++) {
            unsigned char wanted = beyond ? UNTOUCHED : content(linear, byte, run);
            if (writes)
                memory[place + byte] = (char)wanted;
            else
                wrong += (unsigned char)memory[place + byte] != wanted;
        }
    } while (next(of->counts, axes, at));
    return wrong;
}

static void one(int number, int rank, int ranks) {
    static const int64_t SIZES[] = {1, 2, 4, 8, 16, 24};
    int axes = 1 + below(AXES), order[AXES] = {0, 1, 2}, straight[AXES] = {0, 1, 2};
    int plain[AXES] = {0}, reversed[AXES] = {0};
    int64_t shape[AXES], turned[AXES], size = SIZES[below(6)], no_shift[AXES] = {0}, shift[AXES] = {0};
    int32_t permuted[AXES];
    lb_slice slices[AXES];
    lb_select select;
    lb_options options;
    side source, target;
    part from, to;
    lb_plan *plan = NULL;
    char dtype[16], *a, *b, *c, *d;
    int gaps = below(3) == 0 ? 2 : 0, in_place = below(4) == 0, wrong = 0;
    memset(&select, 0, sizeof select);
    memset(&options, 0, sizeof options);
    for (int axis = 0; axis < axes; axis++) shape[axis] = below(8) ? 1 + below(MOST) : below(3);
    if (below(2)) {
        for (int axis = axes - 1; axis > 0; axis--) {
            int other = below(axis + 1), kept = order[axis];
            order[axis] = order[other];
            order[other] = kept;
        }
        for (int axis = 0; axis < axes; axis++) {
            reversed[axis] = below(2);
            shift[axis] = shape[axis] ? below((int)shape[axis]) : 0;
            permuted[axis] = order[axis];
            slices[axis].start = reversed[axis] && shape[axis] ? shape[axis] - 1 : 0;
            slices[axis].step = reversed[axis] ? -1 : 1;
            slices[axis].count = shape[axis];
        }
        select.source = slices;
        select.axes = permuted;
        select.shift = shift;
        options.select = &select;
    }
    for (int axis = 0; axis < axes; axis++) turned[axis] = shape[order[axis]];
    draw(&source, axes, shape, ranks);
    draw(&target, axes, turned, ranks);
    lay(&from, &source, rank, size, gaps);
    lay(&to, &target, rank, size, gaps);
    snprintf(dtype, sizeof dtype, "V%d", (int)size);
    options.src_strides = gaps ? from.strides : NULL;
    options.dst_strides = gaps ? to.strides : NULL;
    if (lb_plan_create(source.layout, target.layout, dtype, MPI_COMM_WORLD, &options, &plan)) fail("lb_plan_create");
    a = (char *)malloc((size_t)(from.bytes + to.bytes + 64));
    b = in_place ? a : (char *)malloc((size_t)to.bytes + 64);
    c = (char *)malloc((size_t)from.bytes + 64);
    d = (char *)malloc((size_t)to.bytes + 64);
    for (int run = 0; run < 4; run++) {
        memset(b, UNTOUCHED, (size_t)to.bytes);
        visit(&from, axes, a, size, run, 1, shape, straight, plain, no_shift);
        if (run < 3) {
            if (lb_plan_run(plan, rank < source.processes ? a : NULL, rank < target.processes ? b : NULL))
                fail("lb_plan_run");
        } else {
            /* Two in flight. */
            lb_run *runs[2];
            int over = 0;
            memset(d, UNTOUCHED, (size_t)to.bytes);
            visit(&from, axes, c, size, run + 1, 1, shape, straight, plain, no_shift);
            if (lb_plan_start(plan, rank < source.processes ? a : NULL, rank < target.processes ? b : NULL, &runs[0]) ||
                lb_plan_start(plan, rank < source.processes ? c : NULL, rank < target.processes ? d : NULL, &runs[1]))
                fail("lb_plan_start");
            while (!over)
                if (lb_run_test(runs[1], &over)) fail("lb_run_test");
            if (lb_run_wait(&runs[0]) || lb_run_wait(&runs[1]) || runs[0] || runs[1]) fail("lb_run_wait");
            wrong += visit(&to, axes, d, size, run + 1, 0, shape, order, reversed, shift);
        }
        if (!in_place) wrong += visit(&to, axes, b, size, run, 0, shape, order, reversed, shift);
        if (in_place) {
            /* Where nothing arrives there is still some of the source. */
            part inner = to;
            for (int axis = 0; axis < axes; axis++)
                for (int64_t each = 0; each < inner.counts[axis]; each++)
                    if (inner.indices[axis][each] < 0) inner.counts[axis] = 0;
            wrong += visit(&inner, axes, b, size, run, 0, shape, order, reversed, shift);
        }
        if (wrong) {
            fprintf(stderr, "rank %d, case %d, run %d: %d bytes are wrong\n", rank, number, run, wrong);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    free(a);
    if (!in_place) free(b);
    free(c);
    free(d);
    lb_plan_free(&plan);
    lb_layout_free(&source.layout);
    lb_layout_free(&target.layout);
    if (plan || source.layout) fail("not freed");
}

static void expect(int code, int wanted, const char *said) {
    if (code == wanted && (!said || strstr(lb_error(), said))) return;
    fprintf(stderr, "code %d, not %d; `%s` is not in `%s`\n", code, wanted, said ? said : "", code ? lb_error() : "");
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void refuse(int rank, int ranks) {
    int64_t shape[2] = {6, 8}, negative[2] = {6, -8}, sizes[2] = {3, 4}, index[2] = {6, 0}, a[48], b[48];
    int32_t owner, twice[2] = {0, 0};
    char differs[200];
    lb_axis rows[2], many[2], columns[2];
    lb_layout *source = NULL, *target = NULL, *none = NULL;
    lb_options options;
    lb_plan *plan = NULL;
    memset(&options, 0, sizeof options);
    rows[0] = lb_block(2);
    rows[1] = lb_whole();
    columns[0] = lb_whole();
    columns[1] = lb_cyclic(2, 2, 0);
    many[0] = lb_block(ranks + 1);
    many[1] = lb_whole();
    expect(lb_layout_create(2, shape, rows, LB_C, &source), LB_OK, NULL);
    expect(lb_layout_create(2, shape, columns, LB_FORTRAN, &target), LB_OK, NULL);
    expect(lb_layout_create(2, negative, rows, LB_C, &none), LB_INVALID, "shape[1] is -8: it cannot be negative");
    expect(lb_layout_create(2, shape, rows, 7, &none), LB_INVALID, "order is 7");
    expect(lb_layout_create(2, NULL, rows, LB_C, &none), LB_INVALID, "shape is NULL");
    expect(lb_layout_create(2, shape, rows, LB_C, NULL), LB_INVALID, "layout is NULL");
    columns[1] = lb_block_sizes(2, sizes);
    expect(lb_layout_create(2, shape, columns, LB_C, &none), LB_INVALID, "axis 1");
    columns[1] = lb_cyclic(2, 0, 0);
    expect(lb_layout_create(2, shape, columns, LB_C, &none), LB_INVALID, "axis 1");
    expect(lb_layout_owner(source, index, &owner), LB_INVALID, "[6, 0]");
    expect(lb_layout_local_shape(source, 2, a), LB_INVALID, "process is 2");
    expect(lb_plan_create(source, target, "O8", MPI_COMM_WORLD, NULL, &plan), LB_INVALID, "rank 0: dtype is `O8`");
    expect(lb_plan_create(source, NULL, "f8", MPI_COMM_WORLD, NULL, &plan), LB_INVALID, "rank 0: dst is NULL");
    /* Only the last rank is wrong. */
    snprintf(differs, sizeof differs, "ranks want different things: rank %d wants something else than rank 0",
             ranks - 1);
    expect(lb_plan_create(source, target, rank == ranks - 1 ? "f7" : "f8", MPI_COMM_WORLD, NULL, &plan), LB_INVALID,
           "dtype is `f7`");
    expect(lb_plan_create(source, target, rank == ranks - 1 ? "f4" : "f8", MPI_COMM_WORLD, NULL, &plan), LB_INVALID,
           differs);
    options.dst_ranks = twice;
    expect(lb_plan_create(source, target, "f8", MPI_COMM_WORLD, &options, &plan), LB_INVALID, "named twice");
    expect(lb_layout_create(2, shape, many, LB_C, &none), LB_OK, NULL);
    expect(lb_plan_create(none, target, "f8", MPI_COMM_WORLD, NULL, &plan), LB_INVALID, "src_ranks: the layout is for");
    lb_layout_free(&none);
    expect(lb_plan_create(source, target, "i8", MPI_COMM_WORLD, NULL, &plan), LB_OK, NULL);
    for (int at = 0; at < 48; at++) a[at] = rank;
    /* Rank 1 forgets its part; the next run is right again. */
    for (int turn = 0; turn < 4; turn++) {
        int forgets = turn % 2 == 0, code;
        memset(b, 0, sizeof b);
        code = lb_plan_run(plan, rank < 2 && !(forgets && rank == 1) ? a : NULL, rank < 2 ? b : NULL);
        if (forgets && rank == 1)
            expect(code, LB_INVALID, "rank 1: a is NULL");
        else if (forgets && rank == 0)
            expect(code, LB_INVALID, "rank 1 did not take part");
        else
            expect(code, LB_OK, NULL);
        /* Rank 0 holds columns 0, 1, 4 and 5: three rows from each rank. */
        for (int at = 0; !forgets && rank < 2 && at < 24; at++)
            if (b[at] != at % 6 / 3) fail("a wrong element after a failed run");
    }
    lb_plan_free(&plan);
    lb_layout_free(&source);
    lb_layout_free(&target);
    if (rank == 0) printf("all are refused\n");
}

/* Where ranks of this node pack pieces for each other: how many of these this process has in its memory. */
static int lent(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found += strstr(line, "memfd:landbridge-lent") != NULL;
    if (maps) fclose(maps);
    return found;
}

/* Messages that go in many pieces; `alone`: all ranks are on one node. */
static void large(int rank, int ranks, int alone) {
    enum { ROWS = 1800, COLUMNS = 1024, BLOCK = 24 };
    int64_t shape[2] = {ROWS, COLUMNS}, from[2], to[2];
    lb_axis rows[2], columns[2];
    int64_t few = ranks;
    lb_axis block = lb_block(ranks), turned = lb_cyclic(ranks, 1, 1 % ranks);
    lb_layout *source, *target, *own, *next;
    lb_options options;
    lb_plan *plan, *small;
    double *a, *b;
    memset(&options, 0, sizeof options);
    options.budget = 1 << 19;
    rows[0] = lb_cyclic(ranks, 7, 0);
    rows[1] = lb_whole();
    columns[0] = lb_whole();
    columns[1] = lb_cyclic(ranks, BLOCK, 0);
    if (lb_layout_create(2, shape, rows, LB_C, &source) || lb_layout_create(2, shape, columns, LB_C, &target) ||
        lb_layout_local_shape(source, rank, from) || lb_layout_local_shape(target, rank, to) ||
        lb_plan_create(source, target, "f8", MPI_COMM_WORLD, &options, &plan))
        fail("a large plan");
    if (lb_layout_create(1, &few, &block, LB_C, &own) || lb_layout_create(1, &few, &turned, LB_C, &next) ||
        lb_plan_create(own, next, "i4", MPI_COMM_WORLD, NULL, &small))
        fail("a small plan");
    a = (double *)malloc((size_t)(from[0] * from[1]) * sizeof *a);
    b = (double *)malloc((size_t)(to[0] * to[1]) * sizeof *b);
    for (int run = 0; run < 3; run++) {
        for (int64_t at = 0; at < from[0] * from[1]; at++) {
            int64_t row = at / COLUMNS;
            a[at] = (double)(((row / 7 * ranks + rank) * 7 + row % 7) * COLUMNS + at % COLUMNS + run);
        }
        /* Rank 1 waits for a later run or in MPI first, while the others need the memory back that they lend it in this
         * one. */
        lb_run *started = NULL;
        int32_t mine = rank, from_left = -1;
        if (run && rank == 1 ? lb_plan_start(plan, a, b, &started) : lb_plan_run(plan, a, b)) fail("a large run");
        if (run == 2) MPI_Barrier(MPI_COMM_WORLD);
        if (lb_plan_run(small, &mine, &from_left)) fail("a small run");
        if (from_left != (rank + ranks - 1) % ranks) fail("a wrong element from the left");
        if (started && lb_run_wait(&started)) fail("lb_run_wait");
        for (int64_t at = 0; at < to[0] * to[1]; at++) {
            int64_t column = at % to[1];
            column = (column / BLOCK * ranks + rank) * BLOCK + column % BLOCK;
            if (b[at] != (double)(at / to[1] * COLUMNS + column + run)) fail("a wrong element in a large message");
        }
    }
    if (alone && lent() != (ranks > 1 ? ranks : 0)) fail("ranks of a node send each other pieces");
    lb_plan_free(&plan);
    lb_plan_free(&small);
    if (lent()) fail("memory of a plan that was freed");
    lb_layout_free(&source);
    lb_layout_free(&target);
    lb_layout_free(&own);
    lb_layout_free(&next);
    free(a);
    free(b);
}

/* Whose element number `at` is, in this case. */
static int owner_of(int64_t at, int number, int ranks) {
    return (int)((at / 3 * 7919 + number * 31 + (at / 3 * 7919) / 64) % ranks);
}

/* The elements of a rank in runs, and some of the first ones again if `twice`. Returns the layout; `elements` has their
 * numbers, `count` how many there are. */
static lb_layout *runs_of(const int64_t *shape, int rank, int ranks, int number, int twice, int64_t *elements,
                          int64_t *count) {
    static lb_run_of runs[4096];
    int64_t all = shape[0] * shape[1], given = 0;
    lb_layout *layout;
    *count = 0;
    for (int turn = 0; turn <= twice; turn++)
        for (int64_t at = 0; at < (turn ? all / 5 : all); at++) {
            /* From behind now and then. */
            int64_t element = number % 2 ? all - 1 - at : at;
            if (owner_of(element, number, ranks) != rank) continue;
            elements[(*count)++] = element;
            if (given && runs[given - 1].first + runs[given - 1].count == element)
                runs[given - 1].count++;
            else {
                runs[given].first = element;
                runs[given++].count = 1;
            }
        }
    if (lb_layout_create_runs(2, shape, ranks, given, runs, &layout)) fail("lb_layout_create_runs");
    return layout;
}

/* Elements that are anywhere, to anywhere, and to and from layouts that all know. */
static void scattered(int rank, int ranks) {
    int64_t shape[2] = {23, 29}, elements[1400], wanted[1400], local[2], count, want;
    double a[1400], b[1400];
    lb_axis axes[2];
    lb_run_of doubled[2] = {{3, 2}, {4, 1}}, beyond = {600, 68}, negative = {0, -1};
    lb_select nothing = {NULL, NULL, NULL, NULL};
    lb_options options;
    lb_layout *source, *target, *known;
    lb_plan *plan = NULL;
    axes[0] = lb_cyclic(ranks, 2, 0);
    axes[1] = lb_whole();
    if (lb_layout_create(2, shape, axes, LB_FORTRAN, &known)) fail("lb_layout_create");
    if (lb_layout_local_shape(known, rank, local)) fail("lb_layout_local_shape");
    for (int number = 0; number < 4; number++) {
        source = runs_of(shape, rank, ranks, number, 0, elements, &count);
        target = runs_of(shape, (rank + 1) % ranks, ranks, number + 5, 1, wanted, &want);
        for (int64_t at = 0; at < count; at++) a[at] = (double)elements[at];
        if (lb_plan_create(source, target, "f8", MPI_COMM_WORLD, NULL, &plan)) fail("lb_plan_create, of runs");
        for (int run = 0; run < 2; run++) {
            memset(b, 0, sizeof b);
            if (lb_plan_run(plan, a, b)) fail("lb_plan_run, of runs");
            for (int64_t at = 0; at < want; at++)
                if (b[at] != (double)wanted[at]) fail("a wrong element from runs to runs");
        }
        lb_plan_free(&plan);
        if (lb_plan_create(source, known, "f8", MPI_COMM_WORLD, NULL, &plan)) fail("lb_plan_create, from runs");
        if (lb_plan_run(plan, a, b)) fail("lb_plan_run, from runs");
        for (int64_t at = 0; at < local[0] * local[1]; at++) {
            int64_t row = at % local[0];
            row = (row / 2 * ranks + rank) * 2 + row % 2;
            if (b[at] != (double)(row * shape[1] + at / local[0])) fail("a wrong element from runs");
        }
        lb_plan_free(&plan);
        if (lb_plan_create(known, target, "f8", MPI_COMM_WORLD, NULL, &plan)) fail("lb_plan_create, to runs");
        memset(a, 0, sizeof a);
        if (lb_plan_run(plan, b, a)) fail("lb_plan_run, to runs");
        for (int64_t at = 0; at < want; at++)
            if (a[at] != (double)wanted[at]) fail("a wrong element to runs");
        lb_plan_free(&plan);
        lb_layout_free(&source);
        lb_layout_free(&target);
    }
    expect(lb_layout_create_runs(2, shape, ranks, 1, &beyond, &source), LB_INVALID,
           "elements 600 to 667: the array has 667");
    expect(lb_layout_create_runs(2, shape, ranks, 1, &negative, &source), LB_INVALID, "runs[0]: count");
    expect(lb_layout_create_runs(2, shape, ranks, 2, doubled, &source), LB_OK, NULL);
    expect(lb_layout_owner(source, local, NULL), LB_INVALID, "each process knows its own alone");
    expect(lb_plan_create(source, known, "f8", MPI_COMM_WORLD, NULL, &plan), LB_INVALID, "is owned");
    memset(&options, 0, sizeof options);
    options.select = &nothing;
    expect(lb_plan_create(source, known, "f8", MPI_COMM_WORLD, &options, &plan), LB_INVALID, "select: both");
    expect(lb_plan_create(rank ? known : source, known, "f8", MPI_COMM_WORLD, NULL, &plan), LB_INVALID, NULL);
    lb_layout_free(&source);
    lb_layout_free(&known);
}

int main(int argc, char **argv) {
    int rank, ranks, cases;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc > 1 && strcmp(argv[1], "refuse") == 0) {
        refuse(rank, ranks);
    } else if (argc < 3) {
        fprintf(stderr, "redistribute CASES SEED [alone], or redistribute refuse\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    } else {
        cases = atoi(argv[1]);
        for (int number = 0; number < cases; number++) {
            state = 0x9E3779B97F4A7C15ull * (uint64_t)(atoi(argv[2]) + number + 1);
            one(number, rank, ranks);
        }
        scattered(rank, ranks);
        large(rank, ranks, argc > 3);
        if (rank == 0) printf("%d redistributions are right\n", cases);
    }
    MPI_Finalize();
    return 0;
}
