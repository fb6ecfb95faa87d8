/* The results of a run: the table, the JSON, the field. */
#ifndef POISSON_REPORT_H
#define POISSON_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "grid.h"
#include "options.h"

struct outcome {
    long iterations;
    double residual;              /* of the last iteration, over the whole grid */
    double seconds;               /* wall time of the timed iterations, slowest rank */
    double seconds_computing;     /* this rank */
    double seconds_communicating; /* this rank: halo exchange and residual */
};

/* Collective; rank 0 writes. Returns false on every rank, with the line in `error` on rank 0, if a file could not be
 * written. */
bool report_write(const struct grid *grid, const struct options *options, const struct outcome *outcome, char *error,
                  size_t error_size);

/* Collective. The pressure in global order (K fastest, then J, then I), raw float32 little-endian, written by rank 0.
 */
bool report_field(const struct grid *grid, const char *path, char *error, size_t error_size);

#endif
