/* A hash of 64 bits: the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
 * generators", OOPSLA 2014). Every input bit reaches every output bit, so it serves as a counter-based generator
 * (random number n is mix(n)) and makes sums of it over a set depend on each of its members. */
#ifndef KERNELS_MIX_H
#define KERNELS_MIX_H

#include <stdint.h>
#include <string.h>

static inline uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* One value's share of a field's checksum: its bits and its place. Summed in any order. */
static inline uint64_t mix_value(double value, uint64_t place) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return mix(bits ^ mix(place));
}

#endif
