/* The operations that Landbridge covers, called from C through the MPI that this was compiled for. Every value is
 * checked. covered [BYTES]: only a broadcast and a sum of this many bytes, by counts above an int's where MPI has them.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void require(int right, const char *what, int64_t size, int root) {
    if (right) return;
    fprintf(stderr, "covered: WRONG: rank %d: %s of %lld, root %d\n", rank, what, (long long)size, root);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void *memory(int64_t bytes) {
    void *got = calloc(1, bytes ? bytes : 1);
    if (!got) {
        fprintf(stderr, "covered: no memory for %lld bytes\n", (long long)bytes);
        MPI_Abort(MPI_COMM_WORLD, 4);
    }
    return got;
}

static int value(int source, int target, int64_t at) {
    return (int)((source * 7919 + target * 104729 + at * 31) & 0xffff);
}

static void filled(int *data, int count, int source, int target) {
    for (int at = 0; at < count; at++) data[at] = value(source, target, at);
}

static int is_filled(const int *data, int count, int source, int target) {
    for (int at = 0; at < count; at++)
        if (data[at] != value(source, target, at)) return 0;
    return 1;
}

/* The sum over all ranks of filled(rank, 0). */
static int is_sum(const int *data, int count) {
    for (int at = 0; at < count; at++) {
        int sum = 0;
        for (int source = 0; source < ranks; source++) sum += value(source, 0, at);
        if (data[at] != sum) return 0;
    }
    return 1;
}

static void every_operation(int count, int root) {
    MPI_Comm world = MPI_COMM_WORLD;
    int *one = memory(sizeof(int) * count), *other = memory(sizeof(int) * count);
    int *all = memory(sizeof(int) * count * ranks), *back = memory(sizeof(int) * count * ranks);

    if (rank == root) filled(one, count, root, 0);
    MPI_Bcast(one, count, MPI_INT, root, world);
    require(is_filled(one, count, root, 0), "MPI_Bcast", count, root);

    filled(one, count, rank, 0);
    MPI_Reduce(one, other, count, MPI_INT, MPI_SUM, root, world);
    require(rank != root || is_sum(other, count), "MPI_Reduce", count, root);
    MPI_Allreduce(one, other, count, MPI_INT, MPI_SUM, world);
    require(is_sum(other, count), "MPI_Allreduce", count, root);
    memcpy(other, one, sizeof(int) * count);
    MPI_Allreduce(MPI_IN_PLACE, other, count, MPI_INT, MPI_SUM, world);
    require(is_sum(other, count), "MPI_Allreduce in place", count, root);

    MPI_Gather(one, count, MPI_INT, all, count, MPI_INT, root, world);
    for (int source = 0; source < ranks && rank == root; source++)
        require(is_filled(all + (size_t)source * count, count, source, 0), "MPI_Gather", count, root);
    memset(all, 0, sizeof(int) * count * ranks);
    MPI_Allgather(one, count, MPI_INT, all, count, MPI_INT, world);
    for (int source = 0; source < ranks; source++)
        require(is_filled(all + (size_t)source * count, count, source, 0), "MPI_Allgather", count, root);

    for (int target = 0; target < ranks; target++) filled(all + (size_t)target * count, count, rank, target);
    MPI_Scatter(all, count, MPI_INT, other, count, MPI_INT, root, world);
    require(is_filled(other, count, root, rank), "MPI_Scatter", count, root);
    MPI_Alltoall(all, count, MPI_INT, back, count, MPI_INT, world);
    for (int source = 0; source < ranks; source++)
        require(is_filled(back + (size_t)source * count, count, source, rank), "MPI_Alltoall", count, root);
    MPI_Barrier(world);
    free(one), free(other), free(all), free(back);
}

static void long_ones(int64_t bytes) {
    MPI_Comm world = MPI_COMM_WORLD;
    unsigned char *data = memory(bytes);
    int root = ranks - 1;
    for (int64_t at = 0; at < bytes && rank == root; at++) data[at] = (unsigned char)(at >> 5 ^ at >> 19);
#if MPI_VERSION >= 4
    MPI_Bcast_c(data, bytes, MPI_UNSIGNED_CHAR, root, world);
#else
    MPI_Datatype block;
    MPI_Type_contiguous(1 << 20, MPI_UNSIGNED_CHAR, &block);
    MPI_Type_commit(&block);
    MPI_Bcast(data, (int)(bytes >> 20), block, root, world);
    MPI_Type_free(&block);
    bytes = bytes >> 20 << 20;
#endif
    for (int64_t at = 0; at < bytes; at++)
        require(data[at] == (unsigned char)(at >> 5 ^ at >> 19), "a broadcast, at", at, root);
#if MPI_VERSION >= 4
    for (int64_t at = 0; at < bytes; at++) data[at] = (unsigned char)(rank + at % 251);
    MPI_Allreduce_c(MPI_IN_PLACE, data, bytes, MPI_UNSIGNED_CHAR, MPI_MAX, world);
    for (int64_t at = 0; at < bytes; at++)
        require(data[at] == (unsigned char)(ranks - 1 + at % 251), "a maximum, at", at, root);
#endif
    free(data);
}

/* Whether this process has loaded Landbridge's collectives. */
static int has_layer(void) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, "liblandbridge-layer") != NULL;
    if (maps) fclose(maps);
    return found;
}

int main(int words, char **word) {
    int provided;
    MPI_Init_thread(&words, &word, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (words > 1) {
        long_ones(atoll(word[1]));
    } else {
        static const int counts[] = {0, 1, 1000, 30011, 100003};
        for (size_t at = 0; at < sizeof counts / sizeof *counts; at++)
            for (int root = 0; root < ranks; root++) every_operation(counts[at], root);
    }
    int loaded = has_layer(), all = 0, length;
    MPI_Allreduce(&loaded, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Get_library_version(library, &length);
    library[strcspn(library, "\r\n")] = 0;
    if (rank == 0) printf("covered: good, layer on %d of %d ranks, %s\n", all, ranks, library);
    MPI_Finalize();
    return 0;
}
