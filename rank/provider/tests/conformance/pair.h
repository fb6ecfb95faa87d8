/* Two (or three) endpoints of one process, and ways to wait for events between them. */
#ifndef PAIR_H
#define PAIR_H

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

/* Ends the case at the first thing that is not as it should be. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fail(__FILE__, __LINE__, #condition);                                                        \
    } while (0)

#define EQUAL(actual, expected)                                                                                        \
    do {                                                                                                               \
        long long a_ = (long long)(actual), e_ = (long long)(expected);                                                \
        if (a_ != e_) fail_equal(__FILE__, __LINE__, #actual, a_, e_);                                                 \
    } while (0)

void fail(const char *file, int line, const char *what) __attribute__((noreturn));
void fail_equal(const char *file, int line, const char *what, long long actual, long long expected)
    __attribute__((noreturn));

struct options {
    uint64_t caps;       /* 0: all */
    uint64_t tx_flags;   /* op_flags */
    uint64_t bind_flags; /* FI_SELECTIVE_COMPLETION or 0 */
    enum fi_av_type av_type;
    enum fi_cq_format format;
    int mr_mode;
    uint32_t api; /* 0: that of the headers */
    bool counters;
    enum fi_wait_obj wait; /* of queues and counters */
    enum fi_progress progress;
    uint32_t format_of_addresses;
};

struct node {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *tx, *rx;
    struct fid_cntr *sent, *received, *reads, *writes;
    struct fid_ep *ep;
    fi_addr_t peer; /* the other node of a pair */
};

/* One completion, with the fields of all formats. */
struct done {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error; /* error.err != 0: it failed */
    char text[512];               /* then: why */
    fi_addr_t source;
};

struct fi_info *hints_for(const struct options *options);
void open_node(struct node *node, const struct options *options);
void close_node(struct node *node);
/* Puts the address of `other` into the vector of `node`. */
fi_addr_t introduce(struct node *node, struct node *other);
void open_pair(struct node *a, struct node *b, const struct options *options);
void close_pair(struct node *a, struct node *b);

/* The next completion of a queue, within ten seconds. `a` and `b` (which may be null) are driven meanwhile. */
struct done next(struct fid_cq *cq, struct node *a, struct node *b);
/* The same, which must not be an error. */
struct done good(struct fid_cq *cq, struct node *a, struct node *b);
/* The same, which must be this error. */
struct done bad(struct fid_cq *cq, struct node *a, struct node *b, int err);
/* Drives both for a while; nothing may complete on `cq`. */
void quiet(struct fid_cq *cq, struct node *a, struct node *b);
void drive(struct node *a, struct node *b);
double now(void);

/* Repeats a call while it answers FI_EAGAIN. */
#define RETRY(a, b, call)                                                                                              \
    ({                                                                                                                 \
        ssize_t r_;                                                                                                    \
        double end_ = now() + 10;                                                                                      \
        while ((r_ = (call)) == -FI_EAGAIN && now() < end_) drive(a, b);                                               \
        r_;                                                                                                            \
    })

void fill(void *buffer, size_t length, unsigned seed);
bool is_filled(const void *buffer, size_t length, unsigned seed);

#endif
