/* The mover of Reid and Stumm, "Overlapping Data Transfer With Application Execution on Clusters", that pulls over
 * TCP: the receiver asks for each block, blocks until it is there, writes it through the page cache and sleeps until
 * the next one is due. One fsync at the end. A child process serves the source on the loopback interface. With
 * --copy the receiver reads the source itself, in the same blocks at the same rate. With --uncached it writes past the
 * page cache (RWF_DONTCACHE), and fails where that cannot be: no receiver over TCP takes less of a processor. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *USAGE =
    "usage: pull_mover [--copy] [--uncached] [--block BYTES] [--rate BYTES_PER_S] SOURCE TARGET\n";

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

struct request {
    uint64_t at;
    uint64_t length;
};

static void fail(const char *what) {
    fprintf(stderr, "pull_mover: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double cpu(int who) {
    struct rusage used;
    getrusage(who, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static double positive(const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 1) || value > 1e15) {
        fprintf(stderr, "pull_mover: %s is no positive number\n%s", text, USAGE);
        exit(2);
    }
    return value;
}

static void read_whole(int file, char *block, size_t length, off_t at) {
    for (size_t done = 0; done < length;) {
        ssize_t found = pread(file, block + done, length - done, at + (off_t)done);
        if (found <= 0) fail("reading the source");
        done += (size_t)found;
    }
}

static void write_whole(int file, char *block, size_t length, off_t at, int flags) {
    for (size_t done = 0; done < length;) {
        struct iovec rest = {block + done, length - done};
        ssize_t written = pwritev2(file, &rest, 1, at + (off_t)done, flags);
        if (written < 0) fail("writing the target");
        done += (size_t)written;
    }
}

/* Answers requests until the receiver closes the connection. */
static void serve(int connection, int source, char *block) {
    struct request asked;
    while (recv(connection, &asked, sizeof asked, MSG_WAITALL) == sizeof asked) {
        read_whole(source, block, asked.length, (off_t)asked.at);
        for (size_t done = 0; done < asked.length;) {
            ssize_t sent = send(connection, block + done, asked.length - done, MSG_NOSIGNAL);
            if (sent < 0) fail("sending");
            done += (size_t)sent;
        }
    }
}

/* A connection to a child that serves the source. */
static int connected(int source, char *block) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, size) || listen(listening, 1) ||
        getsockname(listening, (struct sockaddr *)&address, &size))
        fail("listening");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        int connection = accept(listening, NULL, NULL);
        if (connection < 0) fail("accept");
        serve(connection, source, block);
        exit(0);
    }
    close(listening);
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, size)) fail("connect");
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return connection;
}

int main(int argc, char **argv) {
    static const struct option known[] = {{"copy", 0, NULL, 'c'},
                                          {"uncached", 0, NULL, 'u'},
                                          {"block", 1, NULL, 'b'},
                                          {"rate", 1, NULL, 'r'},
                                          {NULL, 0, NULL, 0}};
    double rate = 0;
    size_t block_size = 4 << 20;
    int copies = 0, flags = 0, found;
    while ((found = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (found) {
        case 'c': copies = 1; break;
        case 'u': flags = RWF_DONTCACHE; break;
        case 'b': block_size = (size_t)positive(optarg); break;
        case 'r': rate = positive(optarg); break;
        default: fputs(USAGE, stderr); return 2;
        }
    }
    if (argc - optind != 2) {
        fputs(USAGE, stderr);
        return 2;
    }
    double begin = now();
    int source = open(argv[optind], O_RDONLY | O_CLOEXEC);
    if (source < 0) fail(argv[optind]);
    int target = open(argv[optind + 1], O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
    if (target < 0) fail(argv[optind + 1]);
    struct stat about;
    if (fstat(source, &about)) fail(argv[optind]);
    char *block = malloc(block_size);
    if (!block) fail("memory");
    int connection = copies ? -1 : connected(source, block);

    size_t all = (size_t)about.st_size;
    for (size_t done = 0; done < all;) {
        size_t length = all - done < block_size ? all - done : block_size;
        if (copies) {
            read_whole(source, block, length, (off_t)done);
        } else {
            struct request asked = {done, length};
            if (send(connection, &asked, sizeof asked, MSG_NOSIGNAL) != sizeof asked) fail("asking");
            if (recv(connection, block, length, MSG_WAITALL) != (ssize_t)length) fail("receiving");
        }
        write_whole(target, block, length, (off_t)done, flags);
        done += length;
        double left = rate > 0 ? begin + (double)done / rate - now() : 0;
        if (left > 0 && done < all) {
            struct timespec nap = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
            nanosleep(&nap, NULL);
        }
    }
    double moved = now();
    if (fsync(target) || close(target)) fail("fsync");
    double synced = now() - moved;
    if (connection >= 0) close(connection);
    int status = 0;
    if (!copies && (wait(&status) < 0 || status)) return 1;
    printf("{\"mover\":\"%s\",\"bytes\":%zu,\"seconds\":%.6f,\"fsync_s\":%.6f,\"sender_cpu_s\":%.6f,"
           "\"receiver_cpu_s\":%.6f}\n",
           copies ? "copy" : "pull", all, now() - begin, synced, cpu(RUSAGE_CHILDREN), cpu(RUSAGE_SELF));
    free(block);
    return 0;
}
