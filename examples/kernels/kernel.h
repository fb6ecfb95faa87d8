/* The shared part of the three programs: a kernel describes itself and does its work; the rest of `main` is here. */
#ifndef KERNELS_KERNEL_H
#define KERNELS_KERNEL_H

#include <mpi.h>
#include <stdbool.h>

#include "options.h"
#include "report.h"

enum ending { DONE = 0, WRONG = 1, REFUSED = 2 }; /* exit codes */

struct named_size {
    const char *name;
    int size;
};

struct kernel {
    const char *name, *summary;
    const char *size_meaning, *iteration_meaning;
    const char *unit;               /* the unit that its rate counts, in the plural */
    const struct named_size *sizes; /* the first is the default; ended by a name of NULL */
    int smallest, largest;
    long iterations; /* by default */
    bool has_full;   /* understands --verify full */

    /* Collective. Computes, times, verifies. The same answer on every rank; unless it is DONE, rank 0 has a line in
     * `outcome->problem`. */
    enum ending (*run)(const struct options *options, struct outcome *outcome);
};

/* The whole program: options, run, report. Returns the exit code. */
int kernel_main(const struct kernel *kernel, int argc, char **argv);

/* True on every rank only if it was true on every rank. */
bool kernel_everywhere(MPI_Comm comm, bool here);

/* How many iterations take `wanted` seconds, if `done` of them took `seconds` on this rank. The same on every rank. */
long kernel_iterations_for(double wanted, double seconds, long done);

/* Collective. Whether the result has the checksum that rank 0 got by itself (`alone`; `had_memory` if it could), both
 * of rank 0 alone. The same on every rank; if not, rank 0 has a line in `outcome->problem`. */
bool kernel_same_as_alone(bool had_memory, uint64_t alone, struct outcome *outcome);

/* True if this rank is to spoil the data that it receives in the last iteration. */
bool kernel_spoils(const struct options *options);

#endif
