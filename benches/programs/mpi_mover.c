/* The mover of Reid and Stumm, "Overlapping Data Transfer With Application Execution on Clusters", that pushes with
 * MPI: rank 0 sends a file in blocks by MPI_Send to each other rank, or by MPI_Bcast, and sleeps between blocks for as
 * long as it estimates that a rate is kept. Receivers sleep for the same estimate before they ask MPI for the next
 * block, because most MPI libraries spin while they wait. They write through the page cache, with one fsync at the end.
 */

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *USAGE =
    "usage: mpi_mover [--mode send|bcast] [--block BYTES] [--rate BYTES_PER_S | --interval SECONDS]\n"
    "                 [--ceiling BYTES_PER_S] [--bytes N] [--deadline SECONDS] SOURCE TARGET\n"
    "Rank 0 reads SOURCE; rank 1 writes TARGET, any further rank r writes TARGET.r\n";

static struct {
    int broadcast;
    double block;    /* bytes */
    double rate;     /* bytes per second; 0: as fast as it goes */
    double ceiling;  /* bytes per second that a mover that is late may reach */
    double bytes;    /* of the file that are moved; 0: all */
    double deadline; /* seconds from the beginning; 0: none */
} options = {0, 4 << 20, 0, HUGE_VAL, 0, 0};

static void fail(const char *what) {
    fprintf(stderr, "mpi_mover: %s: %s\n", what, errno ? strerror(errno) : "wrong");
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static double positive(const char *name, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0) || value > 1e15) {
        fprintf(stderr, "mpi_mover: --%s %s is no positive number\n%s", name, text, USAGE);
        MPI_Abort(MPI_COMM_WORLD, 2);
        exit(2);
    }
    return value;
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"mode", 1, NULL, 'm'},    {"block", 1, NULL, 'b'}, {"rate", 1, NULL, 'r'},     {"interval", 1, NULL, 'i'},
        {"ceiling", 1, NULL, 'c'}, {"bytes", 1, NULL, 'n'}, {"deadline", 1, NULL, 'd'}, {NULL, 0, NULL, 0}};
    double interval = 0;
    int found;
    while ((found = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (found) {
        case 'm':
            if (strcmp(optarg, "send") && strcmp(optarg, "bcast")) fail("--mode is send or bcast");
            options.broadcast = optarg[0] == 'b';
            break;
        case 'b': options.block = floor(positive("block", optarg)); break;
        case 'r': options.rate = positive("rate", optarg); break;
        case 'i': interval = positive("interval", optarg); break;
        case 'c': options.ceiling = positive("ceiling", optarg); break;
        case 'n': options.bytes = floor(positive("bytes", optarg)); break;
        case 'd': options.deadline = positive("deadline", optarg); break;
        default: fail(USAGE);
        }
    }
    if (argc - optind != 2 || options.block < 1 || options.block > 1 << 30) fail(USAGE);
    if (interval > 0) options.rate = options.block / interval;
}

/* When the next block is due, if `done` of `all` bytes have been moved `at` seconds after the beginning. Without a
 * deadline the rate is constant and lost time is made up for at the ceiling. A deadline sets the rate that is needed
 * from here, between the rate and the ceiling. */
static double due(double done, double all, double at) {
    double rate = options.rate;
    if (options.deadline > 0) {
        double left = options.deadline - at;
        double needed = left > 0 ? (all - done) / left : options.ceiling;
        rate = needed > rate ? needed : rate;
        return rate > 0 ? at + options.block / fmin(rate, options.ceiling) : at;
    }
    return rate > 0 ? fmax(done / rate, at + (isinf(options.ceiling) ? 0 : options.block / options.ceiling)) : at;
}

static void sleep_until(double begin, double at) {
    double left = begin + at - MPI_Wtime();
    if (left <= 0) return;
    struct timespec nap = {(time_t)left, (long)((left - floor(left)) * 1e9)};
    nanosleep(&nap, NULL);
}

static void transfer(int file, char *block, size_t length, off_t at, int reads) {
    for (size_t done = 0; done < length;) {
        ssize_t moved = reads ? pread(file, block + done, length - done, at + (off_t)done)
                              : pwrite(file, block + done, length - done, at + (off_t)done);
        if (moved <= 0) fail(reads ? "reading the source" : "writing the target");
        done += (size_t)moved;
    }
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    errno = 0;
    parse(argc, argv);
    if (size < 2) fail("needs 2 ranks or more");

    char path[4096];
    snprintf(path, sizeof path, rank > 1 ? "%s.%d" : "%s", argv[optind + (rank > 0)], rank);
    int file = rank ? open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666) : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(path);
    double all = options.bytes;
    if (rank == 0) {
        struct stat about;
        if (fstat(file, &about)) fail(path);
        all = all > 0 ? fmin(all, (double)about.st_size) : (double)about.st_size;
    }
    MPI_Bcast(&all, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    char *block = malloc((size_t)options.block);
    if (!block) fail("memory");

    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime(), cpu_before = cpu();
    for (double done = 0; done < all;) {
        int length = (int)fmin(options.block, all - done);
        if (rank == 0) transfer(file, block, (size_t)length, (off_t)done, 1);
        if (options.broadcast) {
            MPI_Bcast(block, length, MPI_BYTE, 0, MPI_COMM_WORLD);
        } else if (rank == 0) {
            for (int to = 1; to < size; to++) MPI_Send(block, length, MPI_BYTE, to, 0, MPI_COMM_WORLD);
        } else {
            MPI_Recv(block, length, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        if (rank) transfer(file, block, (size_t)length, (off_t)done, 0);
        done += length;
        if (done < all) sleep_until(begin, due(done, all, MPI_Wtime() - begin));
    }
    double moved = MPI_Wtime();
    if (rank && fsync(file)) fail("fsync");
    double mine[2] = {rank ? 0 : cpu() - cpu_before, rank ? cpu() - cpu_before : 0}, most[2], synced;
    double took = MPI_Wtime() - moved;
    MPI_Reduce(mine, most, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&took, &synced, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"mover\":\"%s\",\"ranks\":%d,\"bytes\":%.0f,\"seconds\":%.6f,\"fsync_s\":%.6f,\"sender_cpu_s\":%.6f,"
               "\"receiver_cpu_s\":%.6f}\n",
               options.broadcast ? "bcast" : "send", size, all, MPI_Wtime() - begin, synced, most[0], most[1]);
    if (close(file)) fail("close");
    free(block);
    MPI_Finalize();
    return 0;
}
