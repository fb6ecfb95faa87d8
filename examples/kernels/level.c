#include "level.h"

#include <stdlib.h>
#include <string.h>

/* One plane of points across `axis`, from `from` to `to`, with all its ghosts. */
static void copy_plane(const struct level *level, double *field, int axis, int from, int to) {
    int high[AXES] = {level->owned[0] + 1, level->owned[1] + 1, level->owned[2] + 1}, low[AXES] = {0, 0, 0};
    low[axis] = high[axis] = 0;
    const size_t source = (size_t)from * level->stride[axis], target = (size_t)to * level->stride[axis];
    for (int i = low[0]; i <= high[0]; i++)
        for (int j = low[1]; j <= high[1]; j++)
            for (int k = low[2]; k <= high[2]; k++) {
                size_t at = level_at(level, i, j, k);
                field[at + target] = field[at + source];
            }
}

static void make_face_types(struct level *level) {
    const int whole[AXES] = {level->owned[0] + 2, level->owned[1] + 2, level->owned[2] + 2};
    for (int axis = 0; axis < AXES; axis++) {
        int part[AXES], start[AXES];
        level->face_bytes[axis] = sizeof(double);
        for (int other = 0; other < AXES; other++) {
            bool with_ghosts = other < axis;
            part[other] = other == axis ? 1 : with_ghosts ? whole[other] : level->owned[other];
            start[other] = with_ghosts ? 0 : 1;
            level->face_bytes[axis] *= part[other];
        }
        const int out_at[2] = {1, level->owned[axis]}, in_at[2] = {0, level->owned[axis] + 1};
        for (int side = 0; side < 2; side++) {
            start[axis] = out_at[side];
            MPI_Type_create_subarray(AXES, whole, part, start, MPI_ORDER_C, MPI_DOUBLE, &level->out[axis][side]);
            MPI_Type_commit(&level->out[axis][side]);
            start[axis] = in_at[side];
            MPI_Type_create_subarray(AXES, whole, part, start, MPI_ORDER_C, MPI_DOUBLE, &level->in[axis][side]);
            MPI_Type_commit(&level->in[axis][side]);
        }
    }
}

/* From `n`, `replicated` and `box` to the fields. */
static bool allocate(struct level *level) {
    for (int axis = 0; axis < AXES; axis++) {
        level->first[axis] = level->replicated ? 0 : level->box[axis][0];
        level->owned[axis] = level->replicated ? level->n : level->box[axis][1] - level->box[axis][0];
    }
    level->stride[2] = 1;
    level->stride[1] = (size_t)level->owned[2] + 2;
    level->stride[0] = level->stride[1] * ((size_t)level->owned[1] + 2);
    level->points = level->stride[0] * ((size_t)level->owned[0] + 2);
    if (!level->replicated) make_face_types(level);
    enum { FIELDS = 3 };
    level->memory = calloc(level->points, FIELDS * sizeof *level->memory);
    if (level->memory == NULL) return false;
    level->u = level->memory;
    level->f = level->u + level->points;
    level->r = level->f + level->points;
    return true;
}

static bool allocate_bounds(struct level *level, const struct place *place) {
    bool good = true;
    for (int axis = 0; axis < AXES; axis++)
        good = (level->bounds[axis] = calloc((size_t)place->along[axis] + 1, sizeof(int))) != NULL && good;
    return good;
}

static void take_box(struct level *level, const struct place *place) {
    for (int axis = 0; axis < AXES; axis++)
        for (int end = 0; end < 2; end++) level->box[axis][end] = level->bounds[axis][place->coords[axis] + end];
}

static bool every_edge_has_two(const struct level *level, const struct place *place) {
    for (int axis = 0; axis < AXES; axis++)
        for (int at = 0; at < place->along[axis]; at++)
            if (level->bounds[axis][at + 1] - level->bounds[axis][at] < 2) return false;
    return true;
}

static bool prepare_gather(struct level *level, const struct place *place) {
    level->part = calloc((size_t)place->ranks, sizeof *level->part);
    level->part_at = calloc((size_t)place->ranks, sizeof *level->part_at);
    if (level->part == NULL || level->part_at == NULL) return false;
    int at = 0;
    for (int rank = 0; rank < place->ranks; rank++) {
        int coords[AXES], points = 1;
        MPI_Cart_coords(place->comm, rank, AXES, coords);
        for (int axis = 0; axis < AXES; axis++)
            points *= level->bounds[axis][coords[axis] + 1] - level->bounds[axis][coords[axis]];
        level->part[rank] = points;
        level->part_at[rank] = at;
        at += points;
    }
    return true;
}

bool level_can_be_dealt(const struct place *place, int n) {
    for (int axis = 0; axis < AXES; axis++)
        if (n / place->along[axis] < 2) return false;
    return true;
}

bool level_create_finest(struct level *level, const struct place *place, int n) {
    memset(level, 0, sizeof *level);
    level->n = n;
    level->replicated = !level_can_be_dealt(place, n);
    if (!allocate_bounds(level, place)) return false;
    for (int axis = 0; axis < AXES; axis++)
        for (int at = 0; at <= place->along[axis]; at++)
            level->bounds[axis][at] = place_first(n, place->along[axis], at);
    take_box(level, place);
    return allocate(level);
}

bool level_create_coarser(struct level *level, const struct place *place, const struct level *finer, bool replicate) {
    memset(level, 0, sizeof *level);
    level->n = finer->n / 2;
    level->replicated = true;
    if (finer->replicated) {
        for (int axis = 0; axis < AXES; axis++) level->box[axis][1] = level->n;
        return allocate(level);
    }
    if (!allocate_bounds(level, place)) return false;
    for (int axis = 0; axis < AXES; axis++)
        for (int at = 0; at <= place->along[axis]; at++) level->bounds[axis][at] = (finer->bounds[axis][at] + 1) / 2;
    take_box(level, place);
    level->replicated = replicate || !every_edge_has_two(level, place);
    bool good = !level->replicated || prepare_gather(level, place);
    return allocate(level) && good;
}

/* Makes one ghost point of the lower face wrong: one beside a point that the next red sweep updates from it. */
static void spoil(const struct level *level, double *field, int axis) {
    int at[AXES] = {1, 1, 1}, sum = level->first[0] + level->first[1] + level->first[2];
    if (sum % 2 == 0) at[(axis + 1) % AXES] = 2;
    at[axis] = 0;
    field[level_at(level, at[0], at[1], at[2])] += spoilt_by;
}

static void exchange_axis(const struct level *level, const struct place *place, double *field, int axis,
                          struct traffic *traffic) {
    const int *neighbour = place->neighbour[axis];
    MPI_Request requests[4];
    double begin = MPI_Wtime();
    for (int side = 0; side < 2; side++) /* the tag names the direction of travel: two messages of a pair never swap */
        MPI_Irecv(field, 1, level->in[axis][side], neighbour[side], 2 * axis + (1 - side), place->comm,
                  &requests[side]);
    for (int side = 0; side < 2; side++)
        MPI_Isend(field, 1, level->out[axis][side], neighbour[side], 2 * axis + side, place->comm, &requests[2 + side]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    traffic->seconds += MPI_Wtime() - begin;
    traffic->bytes += 2 * level->face_bytes[axis];
    if (traffic->spoil) spoil(level, field, axis);
    traffic->spoil = false;
}

void level_exchange(const struct level *level, const struct place *place, double *field, struct traffic *traffic) {
    for (int axis = 0; axis < AXES; axis++) {
        if (!level->replicated && place->along[axis] > 1) {
            exchange_axis(level, place, field, axis, traffic);
            continue;
        }
        copy_plane(level, field, axis, level->owned[axis], 0);
        copy_plane(level, field, axis, 1, level->owned[axis] + 1);
    }
}

/* Between a field and the packed points of a rank's box. */
static void copy_box(const struct level *level, const int box[AXES][2], double *packed, double *field, bool pack) {
    const size_t row = (size_t)(box[2][1] - box[2][0]);
    for (int i = box[0][0]; i < box[0][1]; i++)
        for (int j = box[1][0]; j < box[1][1]; j++, packed += row) {
            double *inside = field + level_at(level, i + 1, j + 1, box[2][0] + 1);
            memcpy(pack ? packed : inside, pack ? inside : packed, row * sizeof *packed);
        }
}

void level_gather(const struct level *level, const struct place *place, struct traffic *traffic) {
    double *mine = level->r, *all = level->u;
    copy_box(level, level->box, mine, level->f, true);
    double begin = MPI_Wtime();
    MPI_Allgatherv(mine, level->part[place->rank], MPI_DOUBLE, all, level->part, level->part_at, MPI_DOUBLE,
                   place->comm);
    traffic->seconds += MPI_Wtime() - begin;
    traffic->bytes += place->ranks > 1 ? level->part[place->rank] * (int64_t)sizeof(double) : 0;
    for (int rank = 0; rank < place->ranks; rank++) {
        int coords[AXES], box[AXES][2];
        MPI_Cart_coords(place->comm, rank, AXES, coords);
        for (int axis = 0; axis < AXES; axis++)
            for (int end = 0; end < 2; end++) box[axis][end] = level->bounds[axis][coords[axis] + end];
        copy_box(level, box, all + level->part_at[rank], level->f, false);
    }
}

void level_free(struct level *level) {
    if (!level->replicated && level->stride[2] == 1)
        for (int axis = 0; axis < AXES; axis++)
            for (int side = 0; side < 2; side++) {
                MPI_Type_free(&level->out[axis][side]);
                MPI_Type_free(&level->in[axis][side]);
            }
    for (int axis = 0; axis < AXES; axis++) free(level->bounds[axis]);
    free(level->part);
    free(level->part_at);
    free(level->memory);
}
