#include "place.h"

#include <string.h>

void place_create(struct place *place, MPI_Comm comm, int axes, bool periodic) {
    memset(place, 0, sizeof *place);
    int ring[PLACE_AXES] = {periodic, periodic, periodic};
    place->axes = axes;
    MPI_Comm_size(comm, &place->ranks);
    MPI_Dims_create(place->ranks, axes, place->along);
    MPI_Cart_create(comm, axes, place->along, ring, 0, &place->comm);
    MPI_Comm_rank(place->comm, &place->rank);
    MPI_Cart_coords(place->comm, place->rank, axes, place->coords);
    for (int axis = 0; axis < axes; axis++)
        MPI_Cart_shift(place->comm, axis, 1, &place->neighbour[axis][0], &place->neighbour[axis][1]);
    for (int axis = axes; axis < PLACE_AXES; axis++) {
        place->along[axis] = 1;
        place->neighbour[axis][0] = place->neighbour[axis][1] = MPI_PROC_NULL;
    }
}

void place_free(struct place *place) { MPI_Comm_free(&place->comm); }

int place_first(int points, int ranks, int at) {
    int share = points / ranks, left_over = points % ranks;
    return at * share + (at < left_over ? at : left_over);
}
