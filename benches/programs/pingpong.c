/* Latency and throughput between ranks, with MPI's plain calls only, so that any MPI of the same ABI runs it.
 *
 *   pingpong latency SECONDS SIZE...   2 ranks: half round trips of each size, every iteration timed
 *   pingpong stream SECONDS SIZE...    2n ranks: rank i sends to rank i+n, a bounded number of messages in flight
 *
 * Rank 0 prints one JSON object per size and line. SECONDS is the time spent on each size; the number of iterations is
 * found from a warm-up, so that fast and slow paths get equally long measurements. Payloads are checked (not in the
 * timed part).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG = 7, UNDER_WAY = 64, MOST_SAMPLES = 200000 };
static const size_t BYTES_UNDER_WAY = 8u << 20;

static int rank, ranks;

static void fail(const char *what, const char *value) {
    fprintf(stderr, "pingpong: %s: %s\n", what, value);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static char *buffer_of(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes ? bytes : 1)) fail("out of memory", "a message buffer");
    memset(memory, 0, bytes ? bytes : 1);
    return memory;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static char pattern(size_t at, int round) { return (char)(at * 31 + (size_t)round * 7 + 1); }

/* One exchange whose bytes are compared: a fast path that delivers nothing must not win. */
static void check(char *out, char *in, int bytes, int peer) {
    for (int i = 0; i < bytes; i++) out[i] = pattern((size_t)i, rank);
    memset(in, 0, (size_t)bytes);
    MPI_Sendrecv(out, bytes, MPI_CHAR, peer, TAG, in, bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < bytes; i++)
        if (in[i] != pattern((size_t)i, peer)) fail("wrong bytes arrived", "in the check before the measurement");
}

static void exchange(char *out, char *in, int bytes, int count, double *half_s) {
    for (int i = 0; i < count; i++) {
        double start = MPI_Wtime();
        if (rank == 0) {
            MPI_Send(out, bytes, MPI_CHAR, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(in, bytes, MPI_CHAR, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, bytes, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, bytes, MPI_CHAR, 0, TAG, MPI_COMM_WORLD);
        }
        if (half_s) half_s[i] = (MPI_Wtime() - start) / 2;
    }
}

static void latency(int bytes, double seconds) {
    char *out = buffer_of((size_t)bytes), *in = buffer_of((size_t)bytes);
    check(out, in, bytes, 1 - rank);
    int count = 4;
    for (double took = 0;; count *= 2) { /* warm-up, a fifth of the time */
        double start = MPI_Wtime();
        exchange(out, in, bytes, count, NULL);
        took = MPI_Wtime() - start;
        MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (took > seconds / 10 || count > MOST_SAMPLES / 2) {
            count = (int)(count * (seconds / took));
            break;
        }
    }
    if (count < 5) count = 5;
    if (count > MOST_SAMPLES) count = MOST_SAMPLES;
    double *half_s = malloc(sizeof *half_s * (size_t)count);
    if (!half_s) fail("out of memory", "samples");
    exchange(out, in, bytes, count, half_s);
    if (rank == 0) {
        double sum = 0;
        for (int i = 0; i < count; i++) sum += half_s[i];
        qsort(half_s, (size_t)count, sizeof *half_s, ascending);
        printf("{\"size\": %d, \"iterations\": %d, \"min_us\": %.3f, \"p50_us\": %.3f, \"p90_us\": %.3f, \"mean_us\": "
               "%.3f}\n",
               bytes, count, half_s[0] * 1e6, half_s[count / 2] * 1e6, half_s[(long)count * 9 / 10] * 1e6,
               sum / count * 1e6);
        fflush(stdout);
    }
    free(half_s);
    free(out);
    free(in);
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Sends or receives `count` messages, at most `window` in flight; ends when the receiver has them all. */
static void pass(char *buffer, int bytes, long count, int window, int sending, int peer) {
    MPI_Request requests[UNDER_WAY];
    for (int i = 0; i < window; i++) requests[i] = MPI_REQUEST_NULL;
    for (long i = 0; i < count; i++) {
        int slot = (int)(i % window);
        char *place = buffer + (size_t)slot * (size_t)bytes;
        MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
        if (sending)
            MPI_Isend(place, bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD, &requests[slot]);
        else
            MPI_Irecv(place, bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD, &requests[slot]);
    }
    MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
    if (sending)
        MPI_Recv(NULL, 0, MPI_CHAR, peer, TAG + 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(NULL, 0, MPI_CHAR, peer, TAG + 1, MPI_COMM_WORLD);
}

static void stream(int bytes, double seconds) {
    int pairs = ranks / 2, sending = rank < pairs, peer = sending ? rank + pairs : rank - pairs;
    int window =
        bytes && BYTES_UNDER_WAY / (size_t)bytes < UNDER_WAY ? (int)(BYTES_UNDER_WAY / (size_t)bytes) : UNDER_WAY;
    if (window < 2) window = 2;
    char *buffer = buffer_of((size_t)bytes * (size_t)window), *in = buffer_of((size_t)bytes);
    check(buffer, in, bytes, peer);
    double took = 0, cpu[2] = {0, 0}, cpus[2]; /* of senders, of receivers: processor time, spinning included */
    long count = window;
    for (int last = 0;;) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime(), own, before = cpu_s();
        pass(buffer, bytes, count, window, sending, peer);
        own = MPI_Wtime() - start;
        cpu[sending ? 0 : 1] = cpu_s() - before;
        MPI_Allreduce(&own, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (last || took > seconds) break;
        last = took > seconds / 5;
        count = last ? (long)((double)count * (seconds / took)) : count * 2;
    }
    MPI_Reduce(cpu, cpus, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        double messages = (double)count * pairs;
        printf("{\"size\": %d, \"streams\": %d, \"messages\": %.0f, \"seconds\": %.3f, \"mbit_s\": %.2f, "
               "\"messages_s\": %.0f, "
               "\"sender_cpu_us\": %.3f, \"receiver_cpu_us\": %.3f}\n",
               bytes, pairs, messages, took, messages * bytes * 8 / took / 1e6, messages / took,
               cpus[0] / messages * 1e6, cpus[1] / messages * 1e6);
        fflush(stdout);
    }
    free(buffer);
    free(in);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4) fail("usage", "pingpong latency|stream SECONDS SIZE...");
    double seconds = atof(argv[2]);
    if (!(seconds > 0 && seconds < 3600)) fail("seconds must be over 0 and under 3600, not", argv[2]);
    int is_latency = !strcmp(argv[1], "latency");
    if (!is_latency && strcmp(argv[1], "stream")) fail("unknown measurement", argv[1]);
    if (is_latency ? ranks != 2 : ranks < 2 || ranks % 2) fail("wrong number of ranks for", argv[1]);
    for (int i = 3; i < argc; i++) {
        char *end;
        long bytes = strtol(argv[i], &end, 10);
        if (*end || bytes < 0 || bytes > 1 << 30) fail("not a size in bytes", argv[i]);
        if (is_latency)
            latency((int)bytes, seconds);
        else
            stream((int)bytes, seconds);
    }
    MPI_Finalize();
    return 0;
}
