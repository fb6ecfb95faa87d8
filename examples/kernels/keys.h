/* The keys to be sorted: made anew from their number, by any rank, and summed up so that none can be lost. */
#ifndef KERNELS_KEYS_H
#define KERNELS_KEYS_H

#include <stdint.h>

/* Key `index` of a set: an integer from 0 to below `range` (at most 2^30), the mean of four uniform ones, as in the NAS
 * Parallel Benchmarks' integer sort: many keys near the middle, few at the ends. */
uint32_t key_make(uint64_t set, uint64_t index, uint32_t range);

/* A sum that differs between two multisets of keys, and does not depend on their order. */
struct digest {
    uint64_t count, sum, xor; /* of keys, and of their hashes */
};

struct digest digest_of(const uint32_t *keys, int count);

#endif
