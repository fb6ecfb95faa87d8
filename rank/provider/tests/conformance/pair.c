#include "pair.h"

void fail(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    exit(1);
}

void fail_equal(const char *file, int line, const char *what, long long actual, long long expected) {
    fprintf(stderr, "%s:%d: %s is %lld (%s), expected %lld\n", file, line, what, actual,
            actual < 0 && actual > -300 ? fi_strerror((int)-actual) : "-", expected);
    exit(1);
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

struct fi_info *hints_for(const struct options *options) {
    struct fi_info *hints = fi_allocinfo();
    CHECK(hints);
    hints->fabric_attr->prov_name = strdup("landbridge");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = options->caps
                      ? options->caps
                      : FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE;
    hints->tx_attr->op_flags = options->tx_flags;
    hints->domain_attr->av_type = options->av_type;
    hints->domain_attr->mr_mode = options->mr_mode;
    hints->domain_attr->control_progress = options->progress;
    hints->domain_attr->data_progress = options->progress;
    hints->addr_format = options->format_of_addresses;
    return hints;
}

static uint32_t api(const struct options *options) {
    return options->api ? options->api : FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
}

static void open_counter(struct node *node, struct fid_cntr **counter, uint64_t flags, enum fi_wait_obj wait) {
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = wait};
    EQUAL(fi_cntr_open(node->domain, &attr, counter, NULL), 0);
    EQUAL(fi_ep_bind(node->ep, &(*counter)->fid, flags), 0);
}

void open_node(struct node *node, const struct options *options) {
    memset(node, 0, sizeof *node);
    struct fi_info *hints = hints_for(options);
    EQUAL(fi_getinfo(api(options), NULL, NULL, 0, hints, &node->info), 0);
    fi_freeinfo(hints);
    CHECK(strcmp(node->info->fabric_attr->prov_name, "landbridge") == 0);
    EQUAL(fi_fabric(node->info->fabric_attr, &node->fabric, NULL), 0);
    EQUAL(fi_domain(node->fabric, node->info, &node->domain, NULL), 0);
    struct fi_av_attr av_attr = {.type = options->av_type};
    EQUAL(fi_av_open(node->domain, &av_attr, &node->av, NULL), 0);
    CHECK(av_attr.type != FI_AV_UNSPEC);
    struct fi_cq_attr cq_attr = {.format = options->format ? options->format : FI_CQ_FORMAT_TAGGED,
                                 .wait_obj = options->wait};
    EQUAL(fi_cq_open(node->domain, &cq_attr, &node->tx, NULL), 0);
    EQUAL(fi_cq_open(node->domain, &cq_attr, &node->rx, NULL), 0);
    EQUAL(fi_endpoint(node->domain, node->info, &node->ep, NULL), 0);
    EQUAL(fi_ep_bind(node->ep, &node->av->fid, 0), 0);
    EQUAL(fi_ep_bind(node->ep, &node->tx->fid, FI_TRANSMIT | options->bind_flags), 0);
    EQUAL(fi_ep_bind(node->ep, &node->rx->fid, FI_RECV | options->bind_flags), 0);
    if (options->counters) {
        open_counter(node, &node->sent, FI_SEND, options->wait);
        open_counter(node, &node->received, FI_RECV, options->wait);
        open_counter(node, &node->reads, FI_READ, options->wait);
        open_counter(node, &node->writes, FI_WRITE, options->wait);
    }
    EQUAL(fi_enable(node->ep), 0);
}

#define CLOSE(object)                                                                                                  \
    do {                                                                                                               \
        if (object) EQUAL(fi_close(&(object)->fid), 0);                                                                \
        object = NULL;                                                                                                 \
    } while (0)

void close_node(struct node *node) {
    CLOSE(node->ep);
    CLOSE(node->sent);
    CLOSE(node->received);
    CLOSE(node->reads);
    CLOSE(node->writes);
    CLOSE(node->tx);
    CLOSE(node->rx);
    CLOSE(node->av);
    CLOSE(node->domain);
    CLOSE(node->fabric);
    fi_freeinfo(node->info);
}

fi_addr_t introduce(struct node *node, struct node *other) {
    char name[128];
    size_t length = sizeof name;
    fi_addr_t number = FI_ADDR_NOTAVAIL;
    EQUAL(fi_getname(&other->ep->fid, name, &length), 0);
    EQUAL(length, node->info->addr_format == FI_ADDR_STR ? strlen(name) + 1 : 16);
    EQUAL(fi_av_insert(node->av, name, 1, &number, 0, NULL), 1);
    return number;
}

void open_pair(struct node *a, struct node *b, const struct options *options) {
    open_node(a, options);
    open_node(b, options);
    /* So that the two know each other by different numbers. */
    introduce(a, a);
    a->peer = introduce(a, b);
    b->peer = introduce(b, a);
}

void close_pair(struct node *a, struct node *b) {
    close_node(a);
    close_node(b);
}

void drive(struct node *a, struct node *b) {
    struct node *nodes[] = {a, b};
    for (int i = 0; i < 2; i++) {
        if (nodes[i] && nodes[i]->ep) {
            /* Reading nothing drives the endpoint, and takes nothing. */
            fi_cq_read(nodes[i]->tx, NULL, 0);
            fi_cq_read(nodes[i]->rx, NULL, 0);
        }
    }
}

struct done next(struct fid_cq *cq, struct node *a, struct node *b) {
    struct done done;
    memset(&done, 0, sizeof done);
    for (double end = now() + 10; now() < end; drive(a, b)) {
        ssize_t r = fi_cq_readfrom(cq, &done.entry, 1, &done.source);
        if (r == 1) return done;
        if (r == -FI_EAVAIL) {
            /* A reader that has not taken the error gets it again. */
            EQUAL(fi_cq_read(cq, &done.entry, 1), -FI_EAVAIL);
            /* As long as the newest layout. */
            struct {
                struct fi_cq_err_entry entry;
                uint64_t more[8];
            } longer;
            memset(&longer, 0, sizeof longer);
            longer.entry.err_data = done.text;
            longer.entry.err_data_size = sizeof done.text;
            EQUAL(fi_cq_readerr(cq, &longer.entry, 0), 1);
            done.error = longer.entry;
            CHECK(done.error.err != 0);
            return done;
        }
        EQUAL(r, -FI_EAGAIN);
    }
    fail(__FILE__, __LINE__, "a completion within ten seconds");
}

struct done good(struct fid_cq *cq, struct node *a, struct node *b) {
    struct done done = next(cq, a, b);
    if (done.error.err) fprintf(stderr, "failed: %s\n", done.text);
    EQUAL(done.error.err, 0);
    return done;
}

struct done bad(struct fid_cq *cq, struct node *a, struct node *b, int err) {
    struct done done = next(cq, a, b);
    EQUAL(done.error.err, err);
    return done;
}

void quiet(struct fid_cq *cq, struct node *a, struct node *b) {
    struct fi_cq_tagged_entry entry;
    for (double end = now() + 0.05; now() < end; drive(a, b)) EQUAL(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
}

void fill(void *buffer, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++) ((uint8_t *)buffer)[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + seed);
}

bool is_filled(const void *buffer, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        if (((const uint8_t *)buffer)[i] != (uint8_t)(i * 7 + (i >> 8) * 13 + seed)) return false;
    return true;
}
