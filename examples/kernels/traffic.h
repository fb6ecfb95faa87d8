/* The traffic that this rank has sent, and its time spent on that, busy or waiting. */
#ifndef KERNELS_TRAFFIC_H
#define KERNELS_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

/* Added to a spoilt number: too much for iterations to heal unseen, even when few are done. */
static const double spoilt_by = 1e6;

struct traffic {
    double seconds; /* inside MPI calls */
    int64_t bytes;  /* payload handed to MPI for other ranks; a reduction counts its operand once */
    bool spoil;     /* the next value received from another rank is to be made wrong: for testing the verification */
};

#endif
