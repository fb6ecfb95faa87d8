/* A parallel bucket sort of integers, as the integer sort (IS) of the NAS Parallel Benchmarks describes it (Bailey et
 * al., "The NAS Parallel Benchmarks", RNR-94-007, 1994): a histogram over buckets, summed over all ranks, deals the
 * buckets out so that ranks get about equally many keys; one exchange of everybody with everybody brings keys to their
 * owners; each rank sorts its own by counting. */
#ifndef KERNELS_BUCKETS_H
#define KERNELS_BUCKETS_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traffic.h"

struct buckets {
    MPI_Comm comm;
    int rank, ranks;
    int count;           /* buckets */
    int shift;           /* a key's bucket is key >> shift */
    int *here, *all;     /* keys in each bucket: of this rank, of all ranks */
    int *first;          /* of each rank's buckets, and one more; they lie in the order of the ranks */
    int *to, *to_at;     /* keys for each rank, and where they start in `out` */
    int *from, *from_at; /* keys of each rank, and where they start in `in` */
    uint32_t *out;       /* this rank's keys, bucket by bucket */
    uint32_t *in;        /* received keys: sorted in the end */
    int in_count, in_space;
    bool strayed; /* a key came that belongs to another rank: `in` is not sorted */
    int *times;   /* how often each key came */
    size_t times_space;
};

/* Collective. For at most `most` keys a rank, all below `range` (a power of two). False on every rank if memory is
 * short on one. */
bool buckets_create(struct buckets *buckets, MPI_Comm comm, uint32_t range, int most);

/* Collective. Afterwards `in` has this rank's part of all ranks' keys in order: none is below those of the ranks
 * before. False on every rank if memory is short on one. */
bool buckets_sort(struct buckets *buckets, const uint32_t *keys, int count, struct traffic *traffic);

void buckets_free(struct buckets *buckets);

#endif
