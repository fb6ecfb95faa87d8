#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG_BOX = 20, TAG_PLANE = 21 };
enum { FLOP_PER_POINT = 34 }; /* as the benchmark counts */

struct spread {
    double max, mean;
};

static struct spread spread_of(const struct grid *grid, double mine) {
    struct spread all = {0.0, 0.0};
    MPI_Reduce(&mine, &all.max, 1, MPI_DOUBLE, MPI_MAX, 0, grid->comm);
    MPI_Reduce(&mine, &all.mean, 1, MPI_DOUBLE, MPI_SUM, 0, grid->comm);
    all.mean /= grid->ranks;
    return all;
}

static bool agree(const struct grid *grid, bool good_on_root) {
    int good = good_on_root;
    MPI_Bcast(&good, 1, MPI_INT, 0, grid->comm);
    return good != 0;
}

bool report_write(const struct grid *grid, const struct options *options, const struct outcome *outcome, char *error,
                  size_t error_size) {
    double total = outcome->seconds_computing + outcome->seconds_communicating;
    struct spread computing = spread_of(grid, outcome->seconds_computing);
    struct spread communicating = spread_of(grid, outcome->seconds_communicating);
    struct spread share = spread_of(grid, total > 0 ? outcome->seconds_communicating / total : 0.0);
    int64_t *bytes = NULL;
    bool good = true;
    if (grid->rank == 0) bytes = calloc((size_t)grid->ranks, sizeof *bytes);
    good = agree(grid, grid->rank != 0 || bytes != NULL);
    if (!good) {
        snprintf(error, error_size, "out of memory for the report");
        return false;
    }
    MPI_Gather(&grid->bytes_sent, 1, MPI_INT64_T, bytes, 1, MPI_INT64_T, 0, grid->comm);

    if (grid->rank == 0) {
        const int *s = grid->size, *r = grid->ranks_along;
        double points = (double)(s[0] - 2) * (s[1] - 2) * (s[2] - 2);
        double mflops = points * FLOP_PER_POINT * (double)outcome->iterations / outcome->seconds / 1e6;
        bool json_to_stdout = options->json != NULL && strcmp(options->json, "-") == 0;
        if (!json_to_stdout) {
            int64_t most = 0;
            for (int n = 0; n < grid->ranks; n++) most = bytes[n] > most ? bytes[n] : most;
            printf("grid            %s (%d x %d x %d), %s coefficients, float32\n", options->size_name, s[0], s[1],
                   s[2], options->varied ? "varied" : "Himeno's");
            printf("ranks           %d as %d x %d x %d\n", grid->ranks, r[0], r[1], r[2]);
            printf("iterations      %ld in %.3f s\n", outcome->iterations, outcome->seconds);
            printf("residual        %.9e\n", outcome->residual);
            printf("speed           %.1f MFLOPS\n", mflops);
            printf("computing       %.3f s (slowest rank %.3f s)\n", computing.mean, computing.max);
            printf("communicating   %.3f s (slowest rank %.3f s)\n", communicating.mean, communicating.max);
            printf("share of comm.  %.1f %% (highest rank %.1f %%)\n", 100 * share.mean, 100 * share.max);
            printf("halo sent       %.2f MB by the busiest rank\n", (double)most / 1e6);
        }
        if (options->json != NULL) {
            FILE *out = json_to_stdout ? stdout : fopen(options->json, "w");
            good = out != NULL;
            if (good) {
                fprintf(out, "{\"size\": [%d, %d, %d], \"size_name\": \"%s\", \"coefficients\": \"%s\", ", s[0], s[1],
                        s[2], options->size_name, options->varied ? "varied" : "himeno");
                fprintf(out, "\"ranks\": %d, \"decomposition\": [%d, %d, %d], \"iterations\": %ld, ", grid->ranks, r[0],
                        r[1], r[2], outcome->iterations);
                fprintf(out, "\"residual\": %.17g, \"mflops\": %.6g, \"seconds\": %.6f, ", outcome->residual, mflops,
                        outcome->seconds);
                fprintf(out, "\"seconds_computing\": {\"max\": %.6f, \"mean\": %.6f}, ", computing.max, computing.mean);
                fprintf(out, "\"seconds_communicating\": {\"max\": %.6f, \"mean\": %.6f}, ", communicating.max,
                        communicating.mean);
                fprintf(out, "\"share_communicating\": {\"max\": %.6f, \"mean\": %.6f}, \"bytes_sent\": [", share.max,
                        share.mean);
                for (int n = 0; n < grid->ranks; n++) fprintf(out, "%s%" PRId64, n > 0 ? ", " : "", bytes[n]);
                fprintf(out, "]}\n");
                good = fflush(out) == 0 && !ferror(out);
                int saved = errno;
                if (!json_to_stdout) good = fclose(out) == 0 && good;
                errno = saved != 0 ? saved : errno;
            }
            if (!good) snprintf(error, error_size, "cannot write %s: %s", options->json, strerror(errno));
        }
        free(bytes);
    }
    return agree(grid, good);
}

static void to_little_endian(float *values, size_t count) {
    const uint16_t probe = 1;
    if (*(const unsigned char *)&probe == 1) return;
    for (size_t n = 0; n < count; n++) {
        unsigned char *raw = (unsigned char *)&values[n], swapped[4] = {raw[3], raw[2], raw[1], raw[0]};
        memcpy(raw, swapped, sizeof swapped);
    }
}

static bool write_at(int file, const void *data, size_t size, off_t offset) {
    const char *next = data;
    while (size > 0) {
        ssize_t done = pwrite(file, next, size, offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        next += done;
        size -= (size_t)done;
        offset += done;
    }
    return true;
}

/* The owned points of local plane `i`, without ghosts. */
static void pack_plane(const struct grid *grid, int i, float *plane) {
    for (int j = 1; j <= grid->owned[1]; j++)
        memcpy(plane + (size_t)(j - 1) * (size_t)grid->owned[2], grid->p + grid_at(grid, i, j, 1),
               (size_t)grid->owned[2] * sizeof *plane);
}

bool report_field(const struct grid *grid, const char *path, char *error, size_t error_size) {
    int file = -1;
    bool good = true;
    size_t most =
        (size_t)(grid->size[1] / grid->ranks_along[1] + 1) * (size_t)(grid->size[2] / grid->ranks_along[2] + 1);
    float *plane = malloc(most * sizeof *plane);
    if (grid->rank == 0) {
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        good = file >= 0;
        if (!good) snprintf(error, error_size, "cannot write %s: %s", path, strerror(errno));
    }
    int mine = plane != NULL, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, grid->comm);
    if (!all) snprintf(error, error_size, "out of memory for a plane of the field");
    if (!agree(grid, good && all)) {
        if (file >= 0) close(file);
        free(plane);
        return false;
    }

    int box[2 * AXES]; /* first, owned */
    memcpy(box, grid->first, sizeof grid->first);
    memcpy(box + AXES, grid->owned, sizeof grid->owned);
    if (grid->rank != 0) {
        MPI_Send(box, 2 * AXES, MPI_INT, 0, TAG_BOX, grid->comm);
        for (int i = 1; i <= grid->owned[0]; i++) {
            pack_plane(grid, i, plane);
            MPI_Send(plane, grid->owned[1] * grid->owned[2], MPI_FLOAT, 0, TAG_PLANE, grid->comm);
        }
    } else {
        for (int from = 0; from < grid->ranks; from++) {
            if (from != 0) MPI_Recv(box, 2 * AXES, MPI_INT, from, TAG_BOX, grid->comm, MPI_STATUS_IGNORE);
            const int *first = box, *owned = box + AXES;
            for (int i = 0; i < owned[0]; i++) {
                if (from == 0)
                    pack_plane(grid, i + 1, plane);
                else
                    MPI_Recv(plane, owned[1] * owned[2], MPI_FLOAT, from, TAG_PLANE, grid->comm, MPI_STATUS_IGNORE);
                to_little_endian(plane, (size_t)owned[1] * (size_t)owned[2]);
                bool full_rows = owned[2] == grid->size[2]; /* then the plane's rows lie together in the file */
                int pieces = full_rows ? 1 : owned[1];
                size_t piece = (size_t)owned[2] * (size_t)(full_rows ? owned[1] : 1);
                for (int j = 0; j < pieces && good; j++) {
                    off_t at = ((off_t)(first[0] + i) * grid->size[1] + first[1] + j) * grid->size[2] + first[2];
                    good = write_at(file, plane + (size_t)j * piece, piece * sizeof *plane, at * (off_t)sizeof *plane);
                    if (!good) snprintf(error, error_size, "cannot write %s: %s", path, strerror(errno));
                }
            }
        }
        if (close(file) != 0 && good) {
            good = false;
            snprintf(error, error_size, "cannot write %s: %s", path, strerror(errno));
        }
    }
    free(plane);
    return agree(grid, good);
}
