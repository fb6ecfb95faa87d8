#include "kernel.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool kernel_everywhere(MPI_Comm comm, bool here) {
    int mine = here, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, comm);
    return all != 0;
}

long kernel_iterations_for(double wanted, double seconds, long done) {
    double slowest = 0.0;
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double fit = slowest > 0 ? wanted * (double)done / slowest : 1e9;
    return fit < 1 ? 1 : fit > 1e9 ? 1000000000L : (long)fit;
}

bool kernel_same_as_alone(bool had_memory, uint64_t alone, struct outcome *outcome) {
    int verdict[2] = {had_memory, alone == outcome->checksum};
    MPI_Bcast(verdict, 2, MPI_INT, 0, MPI_COMM_WORLD);
    if (!verdict[0])
        snprintf(outcome->problem, sizeof outcome->problem,
                 "--verify full: out of memory for the whole cube on rank 0");
    else if (!verdict[1])
        snprintf(outcome->problem, sizeof outcome->problem,
                 "wrong result: the solution's checksum is %016" PRIx64 ", one rank alone gets %016" PRIx64,
                 outcome->checksum, alone);
    return verdict[0] && verdict[1];
}

bool kernel_spoils(const struct options *options) {
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    return options->spoil && rank == ranks - 1;
}

static enum ending run(const struct kernel *kernel, const struct options *options, struct outcome *outcome) {
    int ranks = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (options->spoil && ranks == 1) {
        snprintf(outcome->problem, sizeof outcome->problem,
                 "--spoil: 1 rank receives nothing that could be made wrong");
        return REFUSED;
    }
    enum ending ending = kernel->run(options, outcome);
    if (ending == REFUSED) return REFUSED;
    outcome->verified = ending == DONE;
    return report_write(kernel, options, outcome) ? ending : WRONG;
}

int kernel_main(const struct kernel *kernel, int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);

    enum ending ending = DONE;
    struct options options;
    struct outcome outcome;
    memset(&outcome, 0, sizeof outcome);
    if (!options_parse(&options, kernel, argc, argv, outcome.problem, sizeof outcome.problem))
        ending = REFUSED;
    else if (options.help && rank == 0)
        options_usage(stdout, kernel);
    else if (!options.help)
        ending = run(kernel, &options, &outcome);
    if (ending != DONE && rank == 0) fprintf(stderr, "%s: %s\n", kernel->name, outcome.problem);
    MPI_Finalize();
    return ending;
}
