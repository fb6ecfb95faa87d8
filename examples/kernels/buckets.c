#include "buckets.h"

#include <stdlib.h>
#include <string.h>

#include "kernel.h"

enum { FEWEST_BUCKETS = 1024, BUCKETS_PER_RANK = 16 };

bool buckets_create(struct buckets *b, MPI_Comm comm, uint32_t range, int most) {
    memset(b, 0, sizeof *b);
    b->comm = comm;
    MPI_Comm_rank(comm, &b->rank);
    MPI_Comm_size(comm, &b->ranks);
    b->count = FEWEST_BUCKETS;
    while (b->count < BUCKETS_PER_RANK * b->ranks) b->count *= 2;
    while ((uint32_t)b->count > range) b->count /= 2;
    while ((uint64_t)b->count << b->shift < range) b->shift++;
    size_t ranks = (size_t)b->ranks, count = (size_t)b->count;
    int **const of_buckets[] = {&b->here, &b->all};
    int **const of_ranks[] = {&b->first, &b->to, &b->to_at, &b->from, &b->from_at};
    bool good = (b->out = calloc((size_t)most + 1, sizeof *b->out)) != NULL;
    for (size_t n = 0; n < sizeof of_buckets / sizeof *of_buckets; n++)
        good = (*of_buckets[n] = calloc(count, sizeof(int))) != NULL && good;
    for (size_t n = 0; n < sizeof of_ranks / sizeof *of_ranks; n++)
        good = (*of_ranks[n] = calloc(ranks + 1, sizeof(int))) != NULL && good;
    return kernel_everywhere(comm, good);
}

static void sum_histogram(struct buckets *b, const uint32_t *keys, int count, struct traffic *traffic) {
    memset(b->here, 0, (size_t)b->count * sizeof *b->here);
    for (int n = 0; n < count; n++) b->here[keys[n] >> b->shift]++;
    double begin = MPI_Wtime();
    MPI_Allreduce(b->here, b->all, b->count, MPI_INT, MPI_SUM, b->comm);
    traffic->seconds += MPI_Wtime() - begin;
    traffic->bytes += b->ranks > 1 ? b->count * (int64_t)sizeof(int) : 0;
}

/* Contiguous runs of buckets: each rank's ends with the bucket that fills its share of all keys. */
static void deal_out(struct buckets *b) {
    int64_t total = 0, before = 0;
    for (int n = 0; n < b->count; n++) total += b->all[n];
    int next = 0;
    for (int rank = 0; rank < b->ranks; rank++) {
        b->first[rank] = next;
        while (next < b->count && before < total * (rank + 1) / b->ranks) before += b->all[next++];
    }
    b->first[b->ranks] = b->count;
}

/* Puts the keys into `out` bucket by bucket, hence rank by rank. Uses up `here`. */
static void order_by_bucket(struct buckets *b, const uint32_t *keys, int count) {
    int at = 0;
    for (int rank = 0; rank < b->ranks; rank++) {
        b->to_at[rank] = at;
        for (int n = b->first[rank]; n < b->first[rank + 1]; n++) {
            int size = b->here[n];
            b->here[n] = at;
            at += size;
        }
        b->to[rank] = at - b->to_at[rank];
    }
    for (int n = 0; n < count; n++) b->out[b->here[keys[n] >> b->shift]++] = keys[n];
}

static bool make_space(struct buckets *b) {
    size_t span = (size_t)(b->first[b->rank + 1] - b->first[b->rank]) << b->shift;
    if (b->in_count > b->in_space || b->in == NULL) {
        free(b->in);
        b->in_space = b->in_count;
        b->in = malloc(((size_t)b->in_space + 1) * sizeof *b->in);
    }
    if (span > b->times_space || b->times == NULL) {
        free(b->times);
        b->times_space = span;
        b->times = malloc((span + 1) * sizeof *b->times);
    }
    return kernel_everywhere(b->comm, b->in != NULL && b->times != NULL);
}

/* One received key, not this rank's own. */
static void spoil(struct buckets *b, struct traffic *traffic) {
    for (int rank = 0; rank < b->ranks; rank++)
        if (rank != b->rank && b->from[rank] > 0) {
            b->in[b->from_at[rank]] ^= 1;
            traffic->spoil = false;
            return;
        }
}

static bool exchange(struct buckets *b, struct traffic *traffic) {
    double begin = MPI_Wtime();
    MPI_Alltoall(b->to, 1, MPI_INT, b->from, 1, MPI_INT, b->comm);
    b->in_count = 0;
    for (int rank = 0; rank < b->ranks; rank++) {
        b->from_at[rank] = b->in_count;
        b->in_count += b->from[rank];
        if (rank != b->rank) traffic->bytes += (int64_t)sizeof(int) + b->to[rank] * (int64_t)sizeof *b->out;
    }
    bool good = make_space(b);
    if (good) MPI_Alltoallv(b->out, b->to, b->to_at, MPI_UINT32_T, b->in, b->from, b->from_at, MPI_UINT32_T, b->comm);
    traffic->seconds += MPI_Wtime() - begin;
    if (good && traffic->spoil) spoil(b, traffic);
    return good;
}

/* False if a key came that belongs to another rank's buckets. */
static bool sort_by_counting(struct buckets *b) {
    const int64_t low = (int64_t)b->first[b->rank] << b->shift, high = (int64_t)b->first[b->rank + 1] << b->shift;
    memset(b->times, 0, (size_t)(high - low) * sizeof *b->times);
    for (int n = 0; n < b->in_count; n++) {
        if (b->in[n] < low || b->in[n] >= high) return false;
        b->times[b->in[n] - low]++;
    }
    int at = 0;
    for (int64_t key = low; key < high; key++)
        for (int n = b->times[key - low]; n > 0; n--) b->in[at++] = (uint32_t)key;
    return true;
}

bool buckets_sort(struct buckets *b, const uint32_t *keys, int count, struct traffic *traffic) {
    sum_histogram(b, keys, count, traffic);
    deal_out(b);
    order_by_bucket(b, keys, count);
    if (!exchange(b, traffic)) return false;
    b->strayed = !sort_by_counting(b);
    return true;
}

void buckets_free(struct buckets *b) {
    int *const all[] = {b->here, b->all, b->first, b->to, b->to_at, b->from, b->from_at, b->times};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) free(all[n]);
    free(b->out);
    free(b->in);
}
