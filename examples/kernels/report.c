#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

struct spread {
    double max, mean;
};

/* The outcomes of all ranks together. Of use on rank 0. */
struct total {
    int ranks;
    double seconds; /* slowest rank */
    struct spread communicating, share;
    int64_t *bytes; /* sent, by rank */
};

void outcome_add(struct outcome *outcome, const char *name, double value) {
    outcome->figures[outcome->figure_count++] = (struct figure){name, value};
}

static struct spread spread_of(double mine, int ranks) {
    struct spread all = {0.0, 0.0};
    MPI_Reduce(&mine, &all.max, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&mine, &all.mean, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    all.mean /= ranks;
    return all;
}

static struct total total_of(const struct outcome *outcome, int64_t *bytes, int ranks) {
    struct total total = {.ranks = ranks, .bytes = bytes};
    const struct traffic *traffic = &outcome->traffic;
    total.seconds = spread_of(outcome->seconds, ranks).max;
    total.communicating = spread_of(traffic->seconds, ranks);
    total.share = spread_of(outcome->seconds > 0 ? traffic->seconds / outcome->seconds : 0.0, ranks);
    MPI_Gather(&traffic->bytes, 1, MPI_INT64_T, bytes, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    return total;
}

static double rate(const struct outcome *outcome, const struct total *total) {
    return total->seconds > 0 ? outcome->work / total->seconds / 1e6 : 0.0;
}

static void write_table(const struct kernel *kernel, const struct options *options, const struct outcome *outcome,
                        const struct total *total) {
    int64_t most = 0;
    for (int n = 0; n < total->ranks; n++) most = total->bytes[n] > most ? total->bytes[n] : most;
    printf("size            %s (%d)\n", options->size_name, options->size);
    printf("ranks           %d\n", total->ranks);
    printf("iterations      %ld in %.3f s\n", outcome->iterations, total->seconds);
    printf("speed           %.3f million %s a second\n", rate(outcome, total), kernel->unit);
    printf("communicating   %.3f s (slowest rank %.3f s)\n", total->communicating.mean, total->communicating.max);
    printf("share of comm.  %.1f %% (highest rank %.1f %%)\n", 100 * total->share.mean, 100 * total->share.max);
    printf("sent            %.2f MB by the busiest rank\n", (double)most / 1e6);
    for (int n = 0; n < outcome->figure_count; n++)
        printf("%-15s %.6g\n", outcome->figures[n].name, outcome->figures[n].value);
    printf("checksum        %016" PRIx64 "\n", outcome->checksum);
    printf("verified        %s\n", outcome->verified ? "yes" : "NO");
}

/* JSON knows neither NaN nor infinity. */
static void write_figure(FILE *out, const struct figure *figure) {
    if (isfinite(figure->value))
        fprintf(out, "\"%s\": %.17g, ", figure->name, figure->value);
    else
        fprintf(out, "\"%s\": null, ", figure->name);
}

static void write_json(FILE *out, const struct kernel *kernel, const struct options *options,
                       const struct outcome *outcome, const struct total *total) {
    fprintf(out, "{\"kernel\": \"%s\", \"size\": %d, \"size_name\": \"%s\", \"ranks\": %d, \"iterations\": %ld, ",
            kernel->name, options->size, options->size_name, total->ranks, outcome->iterations);
    fprintf(out, "\"seconds\": %.6f, \"rate\": %.6g, \"rate_unit\": \"million %s a second\", ", total->seconds,
            rate(outcome, total), kernel->unit);
    fprintf(out, "\"seconds_communicating\": {\"max\": %.6f, \"mean\": %.6f}, ", total->communicating.max,
            total->communicating.mean);
    fprintf(out, "\"share_communicating\": {\"max\": %.6f, \"mean\": %.6f}, ", total->share.max, total->share.mean);
    for (int n = 0; n < outcome->figure_count; n++) write_figure(out, &outcome->figures[n]);
    fprintf(out, "\"checksum\": \"%016" PRIx64 "\", \"verified\": %s, \"bytes_sent\": [", outcome->checksum,
            outcome->verified ? "true" : "false");
    for (int n = 0; n < total->ranks; n++) fprintf(out, "%s%" PRId64, n > 0 ? ", " : "", total->bytes[n]);
    fprintf(out, "]}\n");
}

static bool write_all(const struct kernel *kernel, const struct options *options, const struct outcome *outcome,
                      const struct total *total) {
    if (options->json == NULL) {
        write_table(kernel, options, outcome, total);
        return true;
    }
    if (strcmp(options->json, "-") == 0) {
        write_json(stdout, kernel, options, outcome, total);
        return fflush(stdout) == 0;
    }
    write_table(kernel, options, outcome, total);
    FILE *out = fopen(options->json, "w");
    if (out == NULL) return false;
    write_json(out, kernel, options, outcome, total);
    bool good = !ferror(out);
    return fclose(out) == 0 && good;
}

bool report_write(const struct kernel *kernel, const struct options *options, struct outcome *outcome) {
    int rank = 0, ranks = 0, good = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int64_t *bytes = rank == 0 ? calloc((size_t)ranks, sizeof *bytes) : NULL;
    if (!kernel_everywhere(MPI_COMM_WORLD, rank != 0 || bytes != NULL)) {
        snprintf(outcome->problem, sizeof outcome->problem, "out of memory for the report");
        return false;
    }
    struct total total = total_of(outcome, bytes, ranks);
    if (rank == 0 && !write_all(kernel, options, outcome, &total)) {
        size_t said = strlen(outcome->problem);
        snprintf(outcome->problem + said, sizeof outcome->problem - said, "%scannot write %s: %s", said > 0 ? "; " : "",
                 options->json, strerror(errno));
        good = 0;
    }
    free(bytes);
    MPI_Bcast(&good, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return good != 0;
}
