#include "options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Himeno's names. Its arrays are one larger on every axis (mimax = 33 for XS) to keep rows off powers of two;
 * this lists the grids that it computes on (imax = mimax - 1). */
static const struct {
    const char *name;
    int size[AXES];
} named_sizes[] = {
    {"XS", {32, 32, 64}},   {"S", {64, 64, 128}},     {"M", {128, 128, 256}},
    {"L", {256, 256, 512}}, {"XL", {512, 512, 1024}},
};

const char *options_usage(void) {
    return "Usage: poisson [OPTION]...\n"
           "Solve the three-dimensional Poisson problem of the Himeno benchmark by Jacobi iteration.\n"
           "\n"
           "  --size NAME|IxJxK    XS (32x32x64), S (64x64x128), M (128x128x256), L (256x256x512),\n"
           "                       XL (512x512x1024), or any grid of at least 3 points an axis [S]\n"
           "  --decompose IxJxK    ranks along each axis; the product must be the number of ranks\n"
           "                       [balanced, most ranks along the longest axis]\n"
           "  --iterations N       Jacobi iterations to time [chosen to take about --seconds]\n"
           "  --seconds T          time three iterations, then run as many as fit T seconds [5]\n"
           "  --coefficients KIND  himeno: constant, as published; varied: smooth functions of the\n"
           "                       position, so that every halo point counts [himeno]\n"
           "  --json FILE          write the result as JSON; - is standard output (no table then)\n"
           "  --field FILE         write the pressure, float32 little-endian, K fastest\n"
           "  --help               show this text\n";
}

/* A whole positive number filling all of `text`, or 0. */
static long positive(const char *text, long limit) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 1 || value > limit) return 0;
    return value;
}

static bool parse_triple(const char *text, int out[AXES]) {
    char copy[64];
    if (strlen(text) >= sizeof copy) return false;
    strcpy(copy, text);
    char *rest = copy;
    for (int axis = 0; axis < AXES; axis++) {
        char *stop = strchr(rest, 'x');
        if ((stop != NULL) != (axis < AXES - 1)) return false;
        if (stop != NULL) *stop = '\0';
        out[axis] = (int)positive(rest, 1 << 20);
        if (out[axis] == 0) return false;
        rest = stop + 1;
    }
    return true;
}

static bool parse_size(struct options *options, const char *text) {
    if (strlen(text) >= sizeof options->size_name) return false;
    strcpy(options->size_name, text);
    for (size_t n = 0; n < sizeof named_sizes / sizeof *named_sizes; n++)
        if (strcmp(text, named_sizes[n].name) == 0) {
            memcpy(options->size, named_sizes[n].size, sizeof options->size);
            return true;
        }
    if (!parse_triple(text, options->size)) return false;
    for (int axis = 0; axis < AXES; axis++)
        if (options->size[axis] < 3) return false;
    return true;
}

bool options_parse(struct options *options, int argc, char **argv, char *error, size_t error_size) {
    memset(options, 0, sizeof *options);
    options->seconds = 5.0;
    parse_size(options, "S");
    bool iterations_given = false, seconds_given = false;

    for (int n = 1; n < argc; n++) {
        const char *name = argv[n];
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
            options->help = true;
            return true;
        }
        static const char *const known[] = {"--size",         "--decompose", "--iterations", "--seconds",
                                            "--coefficients", "--json",      "--field"};
        bool is_known = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) is_known = is_known || strcmp(name, known[k]) == 0;
        if (!is_known) {
            snprintf(error, error_size, "unknown option '%s' (poisson --help lists them)", name);
            return false;
        }
        if (n + 1 == argc) {
            snprintf(error, error_size, "%s needs a value", name);
            return false;
        }
        const char *value = argv[++n];
        const char *wanted = NULL;
        if (strcmp(name, "--size") == 0) {
            if (!parse_size(options, value)) wanted = "XS, S, M, L, XL, or IxJxK with each at least 3";
        } else if (strcmp(name, "--decompose") == 0) {
            if (!parse_triple(value, options->decompose)) wanted = "IxJxK, each at least 1";
        } else if (strcmp(name, "--iterations") == 0) {
            options->iterations = positive(value, LONG_MAX);
            iterations_given = true;
            if (options->iterations == 0) wanted = "a whole number from 1";
        } else if (strcmp(name, "--seconds") == 0) {
            char *end = NULL;
            options->seconds = strtod(value, &end);
            seconds_given = true;
            if (end == value || *end != '\0' || !isfinite(options->seconds) || options->seconds <= 0)
                wanted = "a number above 0";
        } else if (strcmp(name, "--coefficients") == 0) {
            options->varied = strcmp(value, "varied") == 0;
            if (!options->varied && strcmp(value, "himeno") != 0) wanted = "himeno or varied";
        } else if (strcmp(name, "--json") == 0) {
            options->json = value;
        } else {
            options->field = value;
        }
        if (wanted != NULL) {
            snprintf(error, error_size, "%s %s: expected %s", name, value, wanted);
            return false;
        }
    }
    if (iterations_given && seconds_given) {
        snprintf(error, error_size, "--iterations and --seconds exclude each other");
        return false;
    }
    return true;
}
