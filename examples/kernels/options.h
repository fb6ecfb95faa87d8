/* The user's options: command line in, checked values out. Knows nothing of MPI. */
#ifndef KERNELS_OPTIONS_H
#define KERNELS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct kernel;

struct options {
    char size_name[32]; /* "S", "W", … or the number given, for the report */
    int size;           /* keys, or points along an axis */
    long iterations;    /* 0: choose from `seconds` */
    double seconds;     /* wanted length of the timed part; 0: by `iterations` */
    bool full;          /* verify against the whole computation done by one rank */
    bool spoil;         /* make one received value wrong: for testing the verification */
    bool help;
    const char *json; /* file, "-" for standard output, or NULL */
};

/* Fills `options` with those that this kernel understands; on failure returns false and puts one line into `error`. */
bool options_parse(struct options *options, const struct kernel *kernel, int argc, char **argv, char *error,
                   size_t error_size);

void options_usage(FILE *out, const struct kernel *kernel);

#endif
