#include "keys.h"

#include "mix.h"

uint32_t key_make(uint64_t set, uint64_t index, uint32_t range) {
    const uint64_t start = mix(set), low = UINT64_C(0xffffffff);
    uint64_t first = mix(start ^ (2 * index)), second = mix(start ^ (2 * index + 1));
    uint64_t four = (first >> 32) + (first & low) + (second >> 32) + (second & low); /* below 2^34 */
    return (uint32_t)((four * range) >> 34);
}

struct digest digest_of(const uint32_t *keys, int count) {
    struct digest digest = {(uint64_t)count, 0, 0};
    for (int n = 0; n < count; n++) {
        uint64_t hash = mix(keys[n]);
        digest.sum += hash;
        digest.xor ^= hash;
    }
    return digest;
}
