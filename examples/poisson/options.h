/* The user's options: command line in, checked values out. Knows nothing of MPI. */
#ifndef POISSON_OPTIONS_H
#define POISSON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

enum { AXES = 3 }; /* I, J, K: slowest to fastest in memory */

struct options {
    char size_name[32];  /* "XS" … "XL", or the text given, for the report */
    int size[AXES];      /* grid points, boundary included */
    int decompose[AXES]; /* ranks along each axis; all 0: choose */
    long iterations;     /* 0: choose from `seconds` */
    double seconds;      /* wanted length of the timed run */
    bool varied;         /* position-dependent coefficients instead of Himeno's constants */
    bool help;
    const char *json;  /* file, "-" for standard output, or NULL */
    const char *field; /* file, or NULL */
};

/* Fills `options`; on failure returns false and puts one line into `error`. */
bool options_parse(struct options *options, int argc, char **argv, char *error, size_t error_size);

const char *options_usage(void);

#endif
