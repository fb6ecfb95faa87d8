/* A message from one machine to others over plain TCP, in the ways of figure 9 of Lee and Han, "A Two-Phase Scheduling
 * Algorithm for Efficient Collective Communications of MPICH-G2".
 *
 *   spread serve PORT                                     takes part until it is killed
 *   spread root PORT ROUNDS REPEATS PACKET SIZES HOST...  SIZES is a list such as 100000,200000
 *
 * `block` and `acknowledged` store the whole message and send it down a binomial tree, to one child after the other;
 * `acknowledged` waits for a child's answer before the next one's turn. `packet` sends packets down the same tree, to
 * all children in turns, as they arrive. `chain` sends packets down a chain.
 *
 * The root plans each way anew, in turns, round by round: it sends every host a line over a control connection, hosts
 * connect to their children and answer one byte. A message is its size (8 bytes, big endian) and its bytes. A host that
 * has it all sends the root one byte; a time ends when all have. The first message of a plan is not measured. Prints
 * one JSON object per way and size with all times in seconds.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_HOSTS = 64, MOST_SIZES = 64, MOST_BYTES = 64 << 20, LINE = 4096, WAIT_SECONDS = 30 };
enum { BLOCK, ACKNOWLEDGED, PACKET, CHAIN, WAYS };
static const char *const NAMES[WAYS] = {"block", "acknowledged", "packet", "chain"};

static char message[MOST_BYTES];

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* 0, or -1 at the end of the stream. */
static int get(int fd, void *into, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, (char *)into + done, bytes - done);
        if (n < 0) fail("read");
        if (n == 0) return -1;
        done += (size_t)n;
    }
    return 0;
}

static void put(int fd, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *)from + done, bytes - done);
        if (n <= 0) fail("write");
        done += (size_t)n;
    }
}

static void must_get(int fd, void *into, size_t bytes) {
    if (get(fd, into, bytes)) {
        fprintf(stderr, "spread: a host closed its connection\n");
        exit(2);
    }
}

static void prepare(int fd) {
    int on = 1;
    struct timeval wait = {.tv_sec = WAIT_SECONDS};
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("TCP_NODELAY");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait)) fail("SO_RCVTIMEO");
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait)) fail("SO_SNDTIMEO");
}

static int dial(const char *host, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) {
        fprintf(stderr, "spread: %s is no IPv4 address\n", host);
        exit(2);
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    prepare(fd);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) fail(host);
    return fd;
}

/* Passes a message on to children in blocks; the caller has all of it. */
static void pass_blocks(const int *children, int count, uint64_t size, int is_acknowledged) {
    uint64_t header = htobe64(size);
    for (int i = 0; i < count; i++) {
        char answer;
        put(children[i], &header, sizeof header);
        put(children[i], message, size);
        if (is_acknowledged) must_get(children[i], &answer, 1);
    }
}

/* Sends packets to children in turns, from `parent` as they arrive, or from memory if there is no parent. */
static void pass_packets(int parent, const int *children, int count, uint64_t size, size_t packet) {
    uint64_t header = htobe64(size);
    for (int i = 0; i < count; i++) put(children[i], &header, sizeof header);
    for (uint64_t done = 0; done < size;) {
        size_t bytes = size - done < packet ? (size_t)(size - done) : packet;
        if (parent >= 0) must_get(parent, message + done, bytes);
        for (int i = 0; i < count; i++) put(children[i], message + done, bytes);
        done += bytes;
    }
}

/* One plan at a host: messages until the parent closes its connection. */
static void take_part(int control, int parent, const int *children, int count, int way, size_t packet) {
    uint64_t size;
    while (!get(parent, &size, sizeof size)) {
        size = be64toh(size);
        if (size > MOST_BYTES) {
            fprintf(stderr, "spread: a message of %llu bytes\n", (unsigned long long)size);
            exit(2);
        }
        if (way == PACKET || way == CHAIN) {
            pass_packets(parent, children, count, size, packet);
        } else {
            must_get(parent, message, size);
            if (way == ACKNOWLEDGED) put(parent, "k", 1);
        }
        put(control, "d", 1);
        if (way == BLOCK || way == ACKNOWLEDGED) pass_blocks(children, count, size, way == ACKNOWLEDGED);
    }
}

/* A line without its end; 0 at the end of the stream. */
static int get_line(int fd, char *line) {
    for (int i = 0; i < LINE; i++) {
        if (get(fd, line + i, 1)) return 0;
        if (line[i] == '\n') {
            line[i] = 0;
            return 1;
        }
    }
    fprintf(stderr, "spread: a line is longer than %d bytes\n", LINE);
    exit(2);
}

static void serve(int port) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (listener < 0) fail("socket");
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on)) fail("SO_REUSEADDR");
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 16)) fail("listen");
    for (;;) {
        char line[LINE];
        int control = accept(listener, NULL, NULL);
        if (control < 0) fail("accept");
        prepare(control);
        while (get_line(control, line)) {
            int children[MOST_HOSTS], count = 0, way = atoi(strtok(line, " "));
            size_t packet = (size_t)atol(strtok(NULL, " "));
            for (char *host; count < MOST_HOSTS && (host = strtok(NULL, " "));) children[count++] = dial(host, port);
            put(control, "r", 1);
            int parent = accept(listener, NULL, NULL);
            if (parent < 0) fail("accept");
            prepare(parent);
            take_part(control, parent, children, count, way, packet);
            close(parent);
            for (int i = 0; i < count; i++) close(children[i]);
            put(control, "e", 1);
        }
        close(control);
    }
}

/* The children of a rank, the first served first: 0 is the root, host i is rank i + 1. */
static int children_of(int rank, int ranks, int way, int *into) {
    int count = 0;
    if (way == CHAIN) {
        if (rank + 1 < ranks) into[count++] = rank + 1;
        return count;
    }
    int mask = 1;
    while (mask < ranks && !(rank & mask)) mask <<= 1;
    for (mask >>= 1; mask; mask >>= 1)
        if (rank + mask < ranks) into[count++] = rank + mask;
    return count;
}

/* All hosts answer one byte. */
static void gather(const int *controls, int hosts, char expected) {
    for (int i = 0; i < hosts; i++) {
        char answer;
        must_get(controls[i], &answer, 1);
        if (answer != expected) {
            fprintf(stderr, "spread: host %d answered %d instead of %d\n", i, answer, expected);
            exit(2);
        }
    }
}

static double once(const int *controls, int hosts, const int *children, int count, int way, size_t packet,
                   uint64_t size) {
    double start = now();
    if (way == PACKET || way == CHAIN)
        pass_packets(-1, children, count, size, packet);
    else
        pass_blocks(children, count, size, way == ACKNOWLEDGED);
    gather(controls, hosts, 'd');
    return now() - start;
}

static void root(int port, int rounds, int repeats, size_t packet, char *list, int hosts, char **names) {
    uint64_t sizes[MOST_SIZES];
    int count = 0, controls[MOST_HOSTS];
    for (char *word = strtok(list, ","); word && count < MOST_SIZES; word = strtok(NULL, ",")) {
        sizes[count] = strtoull(word, NULL, 10);
        if (!sizes[count] || sizes[count] > MOST_BYTES) {
            fprintf(stderr, "spread: size %s is not from 1 to %d\n", word, MOST_BYTES);
            exit(2);
        }
        count++;
    }
    double *times = calloc((size_t)WAYS * count * rounds * repeats, sizeof *times);
    if (!times) fail("calloc");
    for (int i = 0; i < hosts; i++) controls[i] = dial(names[i], port);
    for (int round = 0; round < rounds; round++) {
        for (int turn = 0; turn < WAYS; turn++) {
            int way = (round + turn) % WAYS, ranks[MOST_HOSTS], mine[MOST_HOSTS];
            for (int i = 0; i < hosts; i++) {
                char line[LINE];
                int used = snprintf(line, sizeof line, "%d %zu", way, packet);
                int below = children_of(i + 1, hosts + 1, way, ranks);
                for (int j = 0; j < below; j++)
                    used += snprintf(line + used, sizeof line - (size_t)used, " %s", names[ranks[j] - 1]);
                put(controls[i], line, (size_t)used);
                put(controls[i], "\n", 1);
            }
            gather(controls, hosts, 'r');
            int below = children_of(0, hosts + 1, way, ranks);
            for (int j = 0; j < below; j++) mine[j] = dial(names[ranks[j] - 1], port);
            once(controls, hosts, mine, below, way, packet, sizes[count - 1]);
            for (int size = 0; size < count; size++)
                for (int repeat = 0; repeat < repeats; repeat++)
                    times[((way * count + size) * rounds + round) * repeats + repeat] =
                        once(controls, hosts, mine, below, way, packet, sizes[size]);
            for (int j = 0; j < below; j++) close(mine[j]);
            gather(controls, hosts, 'e');
        }
    }
    for (int way = 0; way < WAYS; way++)
        for (int size = 0; size < count; size++) {
            printf("{\"way\": \"%s\", \"bytes\": %llu, \"seconds\": [", NAMES[way], (unsigned long long)sizes[size]);
            for (int i = 0; i < rounds * repeats; i++)
                printf("%s%.9f", i ? ", " : "", times[(way * count + size) * rounds * repeats + i]);
            printf("]}\n");
        }
    free(times);
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    if (count == 3 && !strcmp(words[1], "serve")) {
        serve(atoi(words[2]));
    } else if (count > 7 && count - 7 < MOST_HOSTS && !strcmp(words[1], "root")) {
        int rounds = atoi(words[3]), repeats = atoi(words[4]);
        long packet = atol(words[5]);
        if (rounds < 1 || repeats < 1 || packet < 1) {
            fprintf(stderr, "spread: ROUNDS, REPEATS and PACKET are at least 1\n");
            return 2;
        }
        root(atoi(words[2]), rounds, repeats, (size_t)packet, words[6], count - 7, words + 7);
    } else {
        fprintf(stderr, "usage: spread serve PORT | spread root PORT ROUNDS REPEATS PACKET SIZES HOST...\n");
        return 2;
    }
    return 0;
}
