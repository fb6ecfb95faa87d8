#include "block.h"

#include <stdlib.h>
#include <string.h>

#include "kernel.h"

enum { TAG_FACE = 1, TAG_EDGE = 5 };

bool block_fits(const struct block *b, int n) { return b->place.along[0] <= n && b->place.along[1] <= n; }

static void make_types(struct block *b) {
    MPI_Type_contiguous(UNKNOWNS * b->owned[1], MPI_DOUBLE, &b->edge[0]);
    MPI_Type_vector(b->owned[0], UNKNOWNS, (int)b->row, MPI_DOUBLE, &b->edge[1]);
    for (int axis = 0; axis < 2; axis++) {
        MPI_Type_create_hvector(b->n, 1, (MPI_Aint)(b->plane * sizeof(double)), b->edge[axis], &b->face[axis]);
        MPI_Type_commit(&b->edge[axis]);
        MPI_Type_commit(&b->face[axis]);
        b->edge_bytes[axis] = UNKNOWNS * (int64_t)sizeof(double) * b->owned[1 - axis];
        b->face_bytes[axis] = b->edge_bytes[axis] * b->n;
    }
}

bool block_create(struct block *b, MPI_Comm comm, int n) {
    memset(b, 0, sizeof *b);
    place_create(&b->place, comm, 2, false);
    b->n = n;
    for (int axis = 0; axis < 2; axis++) {
        int ranks = b->place.along[axis], at = b->place.coords[axis];
        b->first[axis] = place_first(n, ranks, at);
        b->owned[axis] = place_first(n, ranks, at + 1) - b->first[axis];
    }
    b->row = UNKNOWNS * ((size_t)b->owned[1] + 2);
    b->plane = b->row * ((size_t)b->owned[0] + 2);
    b->values = b->plane * ((size_t)n + 2);
    make_types(b);
    enum { FIELDS = 3 };
    b->memory = calloc(b->values, FIELDS * sizeof *b->memory);
    b->u = b->memory;
    if (kernel_everywhere(comm, b->memory != NULL)) {
        b->f = b->u + b->values;
        b->d = b->f + b->values;
        return true;
    }
    return false;
}

/* Where the edge of plane `k` starts: the outermost owned points of a side, or the ghosts beyond them. */
static size_t edge_at(const struct block *b, int axis, int side, bool ghost, int k) {
    int at[2] = {1, 1};
    at[axis] = side == 0 ? !ghost : b->owned[axis] + ghost;
    return block_at(b, at[0], at[1], k);
}

void block_exchange(const struct block *b, struct traffic *traffic) {
    MPI_Request requests[8];
    int count = 0;
    double begin = MPI_Wtime();
    for (int axis = 0; axis < 2; axis++)
        for (int side = 0; side < 2; side++)
            MPI_Irecv(b->u + edge_at(b, axis, side, true, 1), 1, b->face[axis], b->place.neighbour[axis][side],
                      TAG_FACE + axis, b->place.comm, &requests[count++]);
    for (int axis = 0; axis < 2; axis++)
        for (int side = 0; side < 2; side++) {
            int to = b->place.neighbour[axis][side];
            MPI_Isend(b->u + edge_at(b, axis, side, false, 1), 1, b->face[axis], to, TAG_FACE + axis, b->place.comm,
                      &requests[count++]);
            traffic->bytes += to != MPI_PROC_NULL ? b->face_bytes[axis] : 0;
        }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    traffic->seconds += MPI_Wtime() - begin;
}

void block_receive(const struct block *b, int k, bool upward, struct traffic *traffic) {
    const int side = upward ? 0 : 1;
    double begin = MPI_Wtime();
    for (int axis = 0; axis < 2; axis++) {
        int from = b->place.neighbour[axis][side];
        double *edge = b->d + edge_at(b, axis, side, true, k);
        MPI_Recv(edge, 1, b->edge[axis], from, TAG_EDGE + axis, b->place.comm, MPI_STATUS_IGNORE);
        if (traffic->spoil && from != MPI_PROC_NULL) {
            *edge += spoilt_by;
            traffic->spoil = false;
        }
    }
    traffic->seconds += MPI_Wtime() - begin;
}

void block_send(const struct block *b, int k, bool upward, struct traffic *traffic) {
    const int side = upward ? 1 : 0;
    double begin = MPI_Wtime();
    for (int axis = 0; axis < 2; axis++) {
        int to = b->place.neighbour[axis][side];
        MPI_Send(b->d + edge_at(b, axis, side, false, k), 1, b->edge[axis], to, TAG_EDGE + axis, b->place.comm);
        traffic->bytes += to != MPI_PROC_NULL ? b->edge_bytes[axis] : 0;
    }
    traffic->seconds += MPI_Wtime() - begin;
}

void block_free(struct block *b) {
    for (int axis = 0; axis < 2; axis++) {
        MPI_Type_free(&b->edge[axis]);
        MPI_Type_free(&b->face[axis]);
    }
    place_free(&b->place);
    free(b->memory);
}
