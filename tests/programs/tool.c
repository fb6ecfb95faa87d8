/* A profiling tool: counts MPI_Bcast, and reaches MPI by PMPI_Bcast as the linker finds it. */
#include <mpi.h>
#include <stdio.h>

static int calls;

int MPI_Bcast(void *buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm) {
    calls++;
    return PMPI_Bcast(buffer, count, datatype, root, comm);
}

#if MPI_VERSION >= 4
int MPI_Bcast_c(void *buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm) {
    calls++;
    return PMPI_Bcast_c(buffer, count, datatype, root, comm);
}
#endif

int MPI_Finalize(void) {
    printf("tool: %d calls\n", calls);
    fflush(stdout);
    return PMPI_Finalize();
}
