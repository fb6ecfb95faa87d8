/* This rank's place in a Cartesian grid of ranks, and how points along an axis are dealt out to the ranks of that
   axis. */
#ifndef KERNELS_PLACE_H
#define KERNELS_PLACE_H

#include <mpi.h>
#include <stdbool.h>

enum { PLACE_AXES = 3 };

struct place {
    MPI_Comm comm; /* ranks in the order of the communicator it was made from */
    int rank, ranks;
    int axes;
    int along[PLACE_AXES]; /* ranks along each axis; 1 beyond `axes` */
    int coords[PLACE_AXES];
    int neighbour[PLACE_AXES][2]; /* lower, upper; MPI_PROC_NULL at an end that is not joined to the other */
};

/* Collective. The most even grid of `axes` axes that all ranks of `comm` fill (MPI_Dims_create's). */
void place_create(struct place *place, MPI_Comm comm, int axes, bool periodic);

void place_free(struct place *place);

/* The first of `points` that rank `at` of `ranks` along an axis owns; the first ranks own one point more if they do not
 * divide. The part of `at` ends where that of `at + 1` begins. */
int place_first(int points, int ranks, int at);

#endif
