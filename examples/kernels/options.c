#include "options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

void options_usage(FILE *out, const struct kernel *kernel) {
    fprintf(out, "Usage: %s [OPTION]...\n%s\n\n", kernel->name, kernel->summary);
    fprintf(out, "  --size NAME|N     %s:", kernel->size_meaning);
    for (const struct named_size *size = kernel->sizes; size->name != NULL; size++)
        fprintf(out, "%s %s (%d)", size == kernel->sizes ? "" : ",", size->name, size->size);
    fprintf(out, "\n                    or a number of your own from %d [%s]\n", kernel->smallest, kernel->sizes->name);
    fprintf(out, "  --iterations N    %s to time [%ld]\n", kernel->iteration_meaning, kernel->iterations);
    fputs("  --seconds T       instead: as many as take about T seconds\n", out);
    if (kernel->has_full)
        fputs("  --verify KIND     quick: compares the solution with theory; full: also that it is the same, bit for\n"
              "                    bit, as rank 0's alone, which must have memory for all of it [quick]\n",
              out);
    fputs(
        "  --json FILE       write the result as JSON; - is standard output (no table then)\n"
        "  --spoil           for testing the verification: the last rank makes one value it received\n"
        "                    wrong, and the run must fail\n"
        "  --help            show this text\n"
        "\n"
        "Exit code: 0 verified, 1 wrong result or a file could not be written, 2 bad arguments or too little memory.\n",
        out);
}

/* A whole positive number filling all of `text`, or 0. */
static long positive(const char *text, long limit) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 1 || value > limit) return 0;
    return value;
}

static bool parse_size(struct options *options, const struct kernel *kernel, const char *text) {
    if (strlen(text) >= sizeof options->size_name) return false;
    strcpy(options->size_name, text);
    for (const struct named_size *size = kernel->sizes; size->name != NULL; size++)
        if (strcmp(text, size->name) == 0) {
            options->size = size->size;
            return true;
        }
    options->size = (int)positive(text, kernel->largest);
    return options->size >= kernel->smallest;
}

static bool parse_seconds(struct options *options, const char *text) {
    char *end = NULL;
    options->seconds = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(options->seconds) && options->seconds > 0;
}

/* Takes the value of one option. False: the name is unknown, or the value is bad and `wanted` names good ones. */
static bool take(struct options *options, const struct kernel *kernel, const char *name, const char *value,
                 char *wanted, size_t wanted_size) {
    if (strcmp(name, "--size") == 0) {
        snprintf(wanted, wanted_size, "a name from --help or a number from %d to %d", kernel->smallest,
                 kernel->largest);
        return parse_size(options, kernel, value);
    }
    if (strcmp(name, "--iterations") == 0) {
        snprintf(wanted, wanted_size, "a whole number from 1");
        return (options->iterations = positive(value, LONG_MAX)) != 0;
    }
    if (strcmp(name, "--seconds") == 0) {
        snprintf(wanted, wanted_size, "a number above 0");
        return parse_seconds(options, value);
    }
    if (strcmp(name, "--verify") == 0) {
        snprintf(wanted, wanted_size, "quick or full");
        options->full = strcmp(value, "full") == 0;
        return options->full || strcmp(value, "quick") == 0;
    }
    options->json = value;
    return true;
}

static bool takes_value(const struct kernel *kernel, const char *name) {
    static const char *const known[] = {"--size", "--iterations", "--seconds", "--json"};
    for (size_t n = 0; n < sizeof known / sizeof *known; n++)
        if (strcmp(name, known[n]) == 0) return true;
    return kernel->has_full && strcmp(name, "--verify") == 0;
}

bool options_parse(struct options *options, const struct kernel *kernel, int argc, char **argv, char *error,
                   size_t error_size) {
    memset(options, 0, sizeof *options);
    parse_size(options, kernel, kernel->sizes->name);
    for (int n = 1; n < argc; n++) {
        const char *name = argv[n];
        char wanted[96] = "";
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
            options->help = true;
            return true;
        }
        if (strcmp(name, "--spoil") == 0) {
            options->spoil = true;
        } else if (!takes_value(kernel, name)) {
            snprintf(error, error_size, "unknown option '%s' (%s --help lists them)", name, kernel->name);
            return false;
        } else if (n + 1 == argc) {
            snprintf(error, error_size, "%s needs a value", name);
            return false;
        } else if (!take(options, kernel, name, argv[++n], wanted, sizeof wanted)) {
            snprintf(error, error_size, "%s %s: expected %s", name, argv[n], wanted);
            return false;
        }
    }
    if (options->iterations != 0 && options->seconds > 0) {
        snprintf(error, error_size, "--iterations and --seconds exclude each other");
        return false;
    }
    if (options->iterations == 0 && options->seconds <= 0) options->iterations = kernel->iterations;
    return true;
}
