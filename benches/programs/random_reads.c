/* The victim of a mover's disk traffic: reads of 4 KiB at random places of a file, past the page cache, one at a time.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 4096 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fputs("usage: random_reads FILE SECONDS\n", stderr);
        return 2;
    }
    double seconds = strtod(argv[2], NULL);
    struct stat about;
    void *block;
    int file = open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file < 0 || fstat(file, &about) || about.st_size < SIZE || posix_memalign(&block, SIZE, SIZE)) {
        fprintf(stderr, "random_reads: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    uint64_t state = 88172645463325252ULL, places = (uint64_t)about.st_size / SIZE;
    long done = 0;
    double begin = now(), took = 0;
    for (; took < seconds; done++, took = now() - begin) {
        /* xorshift64: the same places in every run. */
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if (pread(file, block, SIZE, (off_t)(state % places * SIZE)) != SIZE) {
            fprintf(stderr, "random_reads: reading %s: %s\n", argv[1], strerror(errno));
            return 1;
        }
    }
    printf("{\"reads\":%ld,\"seconds\":%.6f,\"iops\":%.1f}\n", done, took, (double)done / took);
    return 0;
}
