/* Point-to-point semantics that a provider can get wrong, between the first and the last rank. Exit code 1 names the
 * check. Compiled once with MPICH's wrapper; runs on Intel MPI too, which keeps the same ABI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, last;

static void require(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "semantics: rank %d: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* A receive too small for its message fails with MPI_ERR_TRUNCATE, and the next message is not harmed. */
static void truncation(int count) {
    int next = 0;
    int *data = calloc((size_t)count, sizeof *data);
    require(data != NULL, "out of memory");
    if (rank == 0) {
        MPI_Send(data, count, MPI_INT, last, 1, MPI_COMM_WORLD);
        next = 42;
        MPI_Send(&next, 1, MPI_INT, last, 1, MPI_COMM_WORLD);
    } else if (rank == last) {
        int class = MPI_SUCCESS;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        int error = MPI_Recv(data, count / 2, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
        MPI_Error_class(error, &class);
        require(class == MPI_ERR_TRUNCATE, "a truncated receive did not fail with MPI_ERR_TRUNCATE");
        MPI_Recv(&next, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        require(next == 42, "the message after a truncated one is wrong");
    }
    free(data);
}

/* A cancelled receive reports it, and its message goes to the next one. */
static void cancel(void) {
    if (rank == last) {
        int lost = 0, got = 0, cancelled = 0;
        MPI_Request request;
        MPI_Status status;
        MPI_Irecv(&lost, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, &request);
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
        MPI_Test_cancelled(&status, &cancelled);
        require(cancelled, "an unmatched receive was not cancelled");
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Recv(&got, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        require(got == 7 && lost == 0, "a cancelled receive took the message");
    } else {
        int value = 7;
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) MPI_Send(&value, 1, MPI_INT, last, 2, MPI_COMM_WORLD);
    }
}

/* Wildcards: any source, any tag, in the order sent; zero-byte messages; a probe gives the length first. */
static void wildcards(int count) {
    int *data = calloc((size_t)count, sizeof *data);
    require(data != NULL, "out of memory");
    for (int round = 0; round < 50; round++) {
        int length = round % 5 == 0 ? 0 : count / (1 + round % 7);
        if (rank == 0) {
            for (int n = 0; n < length; n++) data[n] = round + n;
            MPI_Send(data, length, MPI_INT, last, 100 + round, MPI_COMM_WORLD);
        } else if (rank == last) {
            MPI_Status status;
            int got = -1;
            memset(data, 0xff, (size_t)count * sizeof *data);
            if (round % 2 == 0) {
                MPI_Message message;
                MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
                MPI_Get_count(&status, MPI_INT, &got);
                require(got == length, "a probe told the wrong length");
                MPI_Mrecv(data, got, MPI_INT, &message, &status);
            } else {
                MPI_Recv(data, count, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
                MPI_Get_count(&status, MPI_INT, &got);
            }
            require(got == length && status.MPI_TAG == 100 + round && status.MPI_SOURCE == 0, "messages overtook");
            for (int n = 0; n < length; n++) require(data[n] == round + n, "a message has wrong content");
        }
    }
    free(data);
}

/* A synchronous send completes only after its receive has begun. */
static void synchronous(void) {
    int value = 1, done = 0;
    if (rank == 0) {
        MPI_Request request;
        MPI_Issend(&value, 1, MPI_INT, last, 3, MPI_COMM_WORLD, &request);
        double end = MPI_Wtime() + 0.2;
        while (MPI_Wtime() < end) {
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
            require(!done, "a synchronous send completed before its receive");
        }
        MPI_Send(&value, 1, MPI_INT, last, 4, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else if (rank == last) {
        MPI_Recv(&value, 1, MPI_INT, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(&value, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    last = ranks - 1;
    require(ranks > 1, "needs at least two ranks");
    const int counts[] = {10, 5000, 500000}; /* 40 B, 20 kB, 2 MB: eager to rendezvous */
    for (int n = 0; n < 3; n++) {
        truncation(counts[n]);
        wildcards(counts[n]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    cancel();
    MPI_Barrier(MPI_COMM_WORLD);
    synchronous();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) puts("semantics: all good");
    MPI_Finalize();
    return EXIT_SUCCESS;
}
