/* One rank's part of the cube: a bundle of pencils along K, dealt out over I and J, and the messages about its
   sides. */
#ifndef KERNELS_BLOCK_H
#define KERNELS_BLOCK_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "place.h"
#include "system.h"
#include "traffic.h"

struct block {
    struct place place; /* of two axes, I and J */
    int n;              /* points along each axis of the whole cube */
    int first[2];       /* global indices of the first owned point */
    int owned[2];
    size_t plane, row;    /* from a point to the next along K, along I, in doubles; along J it is UNKNOWNS */
    size_t values;        /* of a field, with a layer of ghost points around */
    double *memory;       /* the one allocation behind the fields */
    double *u, *f, *d;    /* solution, right-hand side, and the correction that the sweeps make of the residual */
    MPI_Datatype edge[2]; /* across I, J: the points of one plane along this rank's edge */
    MPI_Datatype face[2]; /* the same of all planes */
    int64_t edge_bytes[2], face_bytes[2];
};

/* Collective. False on every rank if memory is short on one; to be freed all the same. Every rank must have a point:
 * see block_fits. */
bool block_create(struct block *block, MPI_Comm comm, int n);

/* Whether there are at least as many points as ranks along both axes. */
bool block_fits(const struct block *block, int n);

/* The ghosts of `u` on all four sides: at most four messages each way, none for a cube's side. */
void block_exchange(const struct block *block, struct traffic *traffic);

/* One plane's edges of `d`, from the neighbours that are before this rank in the sweep, and to those after it.
 * `upward`: the sweep runs from lower to upper indices. */
void block_receive(const struct block *block, int k, bool upward, struct traffic *traffic);
void block_send(const struct block *block, int k, bool upward, struct traffic *traffic);

void block_free(struct block *block);

/* Where a point's unknowns start; owned points count from 1. */
static inline size_t block_at(const struct block *block, int i, int j, int k) {
    return (size_t)k * block->plane + (size_t)i * block->row + (size_t)j * UNKNOWNS;
}

#endif
