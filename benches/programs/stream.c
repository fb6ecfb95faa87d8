/* The same measurements over plain TCP, for paths that know nothing of MPI: direct, socat, ssh.
 *
 *   stream serve PORT                                  answers any number of connections until it is killed
 *   stream latency HOST PORT SECONDS SIZE              half round trips
 *   stream stream HOST PORT SECONDS STREAMS SIZE       STREAMS connections, writes of SIZE bytes, one way
 *
 * A connection begins with one byte: 'p' echoes messages of the size that follows (4 bytes, big endian); 's' counts
 * the 8-byte (big endian) total that follows and answers one byte when it is all there. Clients print one JSON object.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SIZE = 64 << 20, MOST_STREAMS = 64, MOST_SAMPLES = 200000 };

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int get(int fd, void *into, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, (char *)into + done, bytes - done);
        if (n <= 0) return -1;
        done += (size_t)n;
    }
    return 0;
}

static int put(int fd, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *)from + done, bytes - done);
        if (n <= 0) return -1;
        done += (size_t)n;
    }
    return 0;
}

static void no_delay(int fd) {
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("TCP_NODELAY");
}

static void *serve_one(void *argument) {
    int fd = (int)(intptr_t)argument;
    char kind = 0, *buffer = NULL;
    uint32_t size;
    uint64_t total;
    no_delay(fd);
    if (get(fd, &kind, 1)) goto out;
    if (kind == 'p' && !get(fd, &size, 4) && (size = ntohl(size)) <= MOST_SIZE && (buffer = malloc(size + 1u)))
        while (!get(fd, buffer, size) && !put(fd, buffer, size)) {
        }
    if (kind == 's' && (buffer = malloc(1 << 20)))
        while (!get(fd, &total, 8)) {
            for (uint64_t left = be64toh(total); left;) {
                ssize_t n = read(fd, buffer, left < 1 << 20 ? left : 1 << 20);
                if (n <= 0) goto out;
                left -= (uint64_t)n;
            }
            if (put(fd, "d", 1)) break;
        }
out:
    free(buffer);
    close(fd);
    return NULL;
}

static void serve(const char *port) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on)) fail("socket");
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 64)) fail("listen");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) fail("accept");
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)fd)) fail("pthread_create");
        pthread_detach(thread);
    }
}

static int dial(const char *host, const char *port) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found)) fail("getaddrinfo");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen)) fail("connect");
    freeaddrinfo(found);
    no_delay(fd);
    return fd;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void latency(const char *host, const char *port, double seconds, size_t size) {
    int fd = dial(host, port);
    uint32_t wire_size = htonl((uint32_t)size);
    char *out = malloc(size), *in = malloc(size);
    double *half_s = malloc(sizeof *half_s * MOST_SAMPLES);
    if (!out || !in || !half_s) fail("malloc");
    for (size_t i = 0; i < size; i++) out[i] = (char)(i * 31 + 1);
    if (put(fd, "p", 1) || put(fd, &wire_size, 4)) fail("write");
    int count = 0;
    double begin = now();
    for (int round = 0; now() - begin < seconds * 1.1 && count < MOST_SAMPLES; round++) {
        double start = now();
        if (put(fd, out, size) || get(fd, in, size)) fail("exchange");
        double half = (now() - start) / 2;
        if (memcmp(out, in, size)) {
            fprintf(stderr, "stream: wrong bytes came back\n");
            exit(2);
        }
        if (start - begin > seconds * 0.1) half_s[count++] = half; /* the first tenth is warm-up */
    }
    if (!count) fail("no exchange within the time");
    qsort(half_s, (size_t)count, sizeof *half_s, ascending);
    double sum = 0;
    for (int i = 0; i < count; i++) sum += half_s[i];
    printf("{\"size\": %zu, \"iterations\": %d, \"min_us\": %.3f, \"p50_us\": %.3f, \"p90_us\": %.3f, \"mean_us\": "
           "%.3f}\n",
           size, count, half_s[0] * 1e6, half_s[count / 2] * 1e6, half_s[(long)count * 9 / 10] * 1e6,
           sum / count * 1e6);
}

struct push {
    const char *host, *port;
    size_t size;
    double seconds;
    uint64_t bytes;
    pthread_barrier_t *barrier;
};

/* Doubles the amount until a pass lasts a fifth of the time; then all streams start together and send for the whole of
   it. */
static void *push(void *argument) {
    struct push *self = argument;
    int fd = dial(self->host, self->port);
    char *out = calloc(1, self->size), done;
    if (!out || put(fd, "s", 1)) fail("write");
    uint64_t writes = 1 + (1u << 20) / self->size;
    for (int last = 0;;) {
        uint64_t total = htobe64(writes * self->size);
        if (last) pthread_barrier_wait(self->barrier);
        double start = now();
        if (put(fd, &total, 8)) fail("write");
        for (uint64_t i = 0; i < writes; i++)
            if (put(fd, out, self->size)) fail("write");
        if (get(fd, &done, 1)) fail("read");
        double took = now() - start;
        if (last) break;
        last = took > self->seconds / 5;
        writes = last ? (uint64_t)((double)writes * self->seconds / took) + 1 : writes * 2;
    }
    self->bytes = writes * self->size;
    pthread_barrier_wait(self->barrier);
    close(fd);
    return NULL;
}

static void stream(const char *host, const char *port, double seconds, int streams, size_t size) {
    pthread_t threads[MOST_STREAMS];
    struct push pushes[MOST_STREAMS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)streams + 1);
    for (int i = 0; i < streams; i++) {
        pushes[i] = (struct push){.host = host, .port = port, .size = size, .seconds = seconds, .barrier = &barrier};
        if (pthread_create(&threads[i], NULL, push, &pushes[i])) fail("pthread_create");
    }
    pthread_barrier_wait(&barrier);
    double start = now();
    pthread_barrier_wait(&barrier);
    double took = now() - start, bytes = 0;
    for (int i = 0; i < streams; i++) {
        pthread_join(threads[i], NULL);
        bytes += (double)pushes[i].bytes;
    }
    printf("{\"size\": %zu, \"streams\": %d, \"seconds\": %.3f, \"mbit_s\": %.2f}\n", size, streams, took,
           bytes * 8 / took / 1e6);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    size_t size = argc > 5 ? strtoul(argv[argc - 1], NULL, 10) : 1;
    if (size < 1 || size > MOST_SIZE) fail("size");
    if (argc == 3 && !strcmp(argv[1], "serve"))
        serve(argv[2]);
    else if (argc == 6 && !strcmp(argv[1], "latency"))
        latency(argv[2], argv[3], atof(argv[4]), size);
    else if (argc == 7 && !strcmp(argv[1], "stream") && atoi(argv[5]) > 0 && atoi(argv[5]) <= MOST_STREAMS)
        stream(argv[2], argv[3], atof(argv[4]), atoi(argv[5]), size);
    else {
        fprintf(stderr,
                "usage: stream serve PORT | latency HOST PORT SECONDS SIZE | stream HOST PORT SECONDS STREAMS SIZE\n");
        return 2;
    }
    return 0;
}
