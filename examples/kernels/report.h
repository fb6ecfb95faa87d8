/* The results of a run: the table, the JSON. */
#ifndef KERNELS_REPORT_H
#define KERNELS_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"
#include "traffic.h"

/* A number that only one of the kernels has. */
struct figure {
    const char *name; /* its key in the JSON */
    double value;
};

struct outcome {
    long iterations;
    double seconds;         /* of the timed part, this rank */
    struct traffic traffic; /* in the timed part, this rank */
    double work;            /* units done in the timed part by all ranks: keys, points */
    uint64_t checksum;      /* of the result; the same on any number of ranks */
    bool verified;
    struct figure figures[4];
    int figure_count;
    char problem[512]; /* why not, on rank 0 at least */
};

void outcome_add(struct outcome *outcome, const char *name, double value);

/* Collective; rank 0 writes. Returns false on every rank if a file could not be written; then rank 0's
 * `outcome->problem` gets the reason, after earlier ones. */
bool report_write(const struct kernel *kernel, const struct options *options, struct outcome *outcome);

#endif
