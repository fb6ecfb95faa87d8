/* Runs one case: `conformance NAME`. Without a name: lists them, and the library's version. */
#include "cases.h"

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
#define CASE(name) {#name, case_##name}
    CASE(hints),          CASE(addresses),
    CASE(names),          CASE(busy),
    CASE(options),        CASE(waiting),
    CASE(events),         CASE(formats),
    CASE(tagged),         CASE(untagged),
    CASE(matching),       CASE(self_),
    CASE(peek_tagged),    CASE(peek_untagged),
    CASE(cancel),         CASE(truncation),
    CASE(multi_recv),     CASE(selective),
    CASE(delivery),       CASE(confirmation),
    CASE(directed),       CASE(flood),
    CASE(av_remove),      CASE(counters),
    CASE(lost_peer),      CASE(refusals),
    CASE(threads),        CASE(rma),
    CASE(rma_errors),     CASE(registration),
    CASE(atomics),        CASE(atomic_forms),
    CASE(wait_fd),        CASE(wait_fd_counters),
    CASE(wait_fd_events), CASE(automatic),
    CASE(text_addresses),
};

int main(int argc, char **argv) {
    if (argc < 2) {
        printf("libfabric %d.%d\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
        for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) puts(CASES[i].name);
        return 0;
    }
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (strcmp(argv[1], CASES[i].name) == 0) {
            CASES[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no case is called %s\n", argv[1]);
    return 2;
}
