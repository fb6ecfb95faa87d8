/* A program that uses libfabric without an MPI and sleeps while it waits. Started by PMI-1, like fabric_ring.c. Ranks
 * work in pairs (0 and size/2, 1 and size/2 + 1, ...), so that across two sites of equal size all pairs reach across,
 * and on one node none does.
 *
 * `fd`: completion queues with FI_WAIT_FD. The second of a pair waits in poll() for a message that comes after two idle
 * seconds, then for many that are answered, then for a long one; it prints the processor time that the idle wait took.
 * `auto`: FI_PROGRESS_AUTO. The second of a pair exposes memory and sleeps in usleep() while the first one writes to it
 * and reads from it; the first one waits in fi_cq_sread().
 * `sst`: the calls of ADIOS2's SST: FI_THREAD_SAFE, automatic control, old modes and registration, FI_AV_MAP,
 * a queue with FI_WAIT_UNSPEC; reads of the writer's memory while the writer waits in fi_cq_sread(), until another
 * thread ends that by fi_cq_signal().
 * `mercury`: the calls of Mercury's na_ofi, with addresses as FI_ADDR_STR: FI_WAIT_FD, multi-receive buffers,
 * FI_INJECT_COMPLETE; requests with answers and transfers by RMA, waiting in poll(). */
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        long r_ = (call);                                                                                              \
        if (r_ < 0) {                                                                                                  \
            fprintf(stderr, "%d: %s: %ld\n", __LINE__, #call, r_);                                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%d: not so: %s\n", __LINE__, #condition);                                                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { LONG = 8 << 20, ROUNDS = 200, LIMIT = 60 };

static FILE *server;
static char space[256];

/* One command of PMI-1; the answer's value of `key` goes to `value`. */
static void pmi(const char *command, const char *key, char *value, size_t room) {
    char line[1024];
    fprintf(server, "cmd=%s\n", command);
    fflush(server);
    if (!fgets(line, sizeof line, server)) {
        fprintf(stderr, "PMI ended after %s\n", command);
        exit(1);
    }
    if (!key) return;
    char *found = strstr(line, key);
    REQUIRE(found);
    found += strlen(key);
    snprintf(value, room, "%.*s", (int)strcspn(found, " \n"), found);
}

static void put(const char *what, int rank, const char *value) {
    char command[1024];
    snprintf(command, sizeof command, "put kvsname=%s key=%s-%d value=%s", space, what, rank, value);
    pmi(command, NULL, NULL, 0);
}

static void get(const char *what, int rank, char *value, size_t room) {
    char command[1024];
    snprintf(command, sizeof command, "get kvsname=%s key=%s-%d", space, what, rank);
    pmi(command, "value=", value, room);
}

static void barrier(void) { pmi("barrier_in", NULL, NULL, 0); }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t peer;
static int cq_fd = -1;

static void open_all(int version, struct fi_info *hints, struct fi_cq_attr *cq_attr, enum fi_av_type type) {
    CHECK(fi_getinfo(version, NULL, NULL, 0, hints, &info));
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    struct fi_av_attr av_attr = {.type = type};
    CHECK(fi_av_open(domain, &av_attr, &av, NULL));
    CHECK(fi_cq_open(domain, cq_attr, &cq, NULL));
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &av->fid, 0));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(ep));
    if (cq_attr->wait_obj == FI_WAIT_FD) CHECK(fi_control(&cq->fid, FI_GETWAIT, &cq_fd));
}

static void close_all(void) {
    CHECK(fi_close(&ep->fid));
    CHECK(fi_close(&cq->fid));
    CHECK(fi_close(&av->fid));
    CHECK(fi_close(&domain->fid));
    CHECK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

/* Exchanges addresses. */
static void meet(int rank, int other) {
    char name[256] = "", text[600] = "";
    size_t length = sizeof name;
    CHECK(fi_getname(&ep->fid, name, &length));
    for (size_t i = 0; i < length; i++) sprintf(text + 2 * i, "%02x", (unsigned char)name[i]);
    put("address", rank, text);
    barrier();
    get("address", other, text, sizeof text);
    memset(name, 0, sizeof name);
    for (size_t i = 0; i < strlen(text) / 2; i++) sscanf(text + 2 * i, "%2hhx", (unsigned char *)&name[i]);
    /* Text in a row, as Mercury and SST pass it. */
    CHECK(fi_av_insert(av, name, 1, &peer, 0, NULL) - 1);
}

/* The next completion, waiting in poll(); counts wake-ups that found nothing. */
static struct fi_cq_tagged_entry next_by_fd(int *idle) {
    struct fi_cq_tagged_entry entry;
    for (double end = now() + LIMIT; now() < end;) {
        ssize_t r = fi_cq_read(cq, &entry, 1);
        if (r == 1) return entry;
        if (r != -FI_EAGAIN) CHECK(r);
        struct fid *fids[] = {&cq->fid};
        int t = fi_trywait(fabric, fids, 1);
        if (t == -FI_EAGAIN) continue;
        CHECK(t);
        struct pollfd one = {.fd = cq_fd, .events = POLLIN};
        poll(&one, 1, 10000);
        if (idle) ++*idle;
    }
    fprintf(stderr, "no completion within %d s\n", LIMIT);
    exit(1);
}

/* Waits for completions of both kinds, in any order. */
static void wait_by_fd(uint64_t flags, int count) {
    while (count > 0)
        if (next_by_fd(NULL).flags & flags) count--;
}

static void with_fd(int rank, int other, bool second) {
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD};
    open_all(FI_VERSION(1, 9), hints, &attr, FI_AV_TABLE);
    meet(rank, other);
    char *bytes = calloc(1, LONG);
    int number = -1;
    if (second) {
        CHECK(fi_recv(ep, &number, sizeof number, NULL, FI_ADDR_UNSPEC, NULL));
        barrier();
        int wakes = 0;
        double before = cpu(), start = now();
        while (!(next_by_fd(&wakes).flags & FI_RECV));
        REQUIRE(number == 0 && now() - start > 1.5);
        printf("idle: %.3f s of processor time, %d wakes in %.1f s\n", cpu() - before, wakes, now() - start);
    } else {
        barrier();
        sleep(2);
        number = 0;
        CHECK(fi_send(ep, &number, sizeof number, NULL, peer, NULL));
        wait_by_fd(FI_SEND, 1);
    }
    for (int i = 1; i <= ROUNDS; i++) {
        if (second) {
            CHECK(fi_recv(ep, &number, sizeof number, NULL, FI_ADDR_UNSPEC, NULL));
            CHECK(fi_send(ep, &i, sizeof i, NULL, peer, NULL));
            wait_by_fd(FI_SEND | FI_RECV, 2);
            REQUIRE(number == i);
        } else {
            CHECK(fi_recv(ep, &number, sizeof number, NULL, FI_ADDR_UNSPEC, NULL));
            wait_by_fd(FI_RECV, 1);
            REQUIRE(number == i);
            CHECK(fi_send(ep, &i, sizeof i, NULL, peer, NULL));
            wait_by_fd(FI_SEND, 1);
        }
    }
    for (size_t i = 0; i < LONG && !second; i++) bytes[i] = (char)(i * 7 + (i >> 12));
    if (second)
        CHECK(fi_recv(ep, bytes, LONG, NULL, FI_ADDR_UNSPEC, NULL));
    else
        CHECK(fi_send(ep, bytes, LONG, NULL, peer, NULL));
    wait_by_fd(FI_SEND | FI_RECV, 1);
    for (size_t i = 0; i < LONG; i++) REQUIRE(bytes[i] == (char)(i * 7 + (i >> 12)));
    free(bytes);
    fi_freeinfo(hints);
}

static void wait_by_sread(int count) {
    struct fi_cq_data_entry entry;
    while (count > 0) {
        ssize_t r = fi_cq_sread(cq, &entry, 1, NULL, LIMIT * 1000);
        CHECK(r);
        count -= (int)r;
    }
}

/* Registers `bytes` and puts key and address where the other one finds them. */
static struct fid_mr *expose(int rank, char *bytes, uint64_t access) {
    struct fid_mr *mr;
    char text[64];
    CHECK(fi_mr_reg(domain, bytes, LONG, access, 0, 11 + rank, 0, &mr, NULL));
    uint64_t base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)bytes : 0;
    snprintf(text, sizeof text, "%lx/%lx", (unsigned long)fi_mr_key(mr), (unsigned long)base);
    put("memory", rank, text);
    return mr;
}

static void find_memory(int other, uint64_t *key, uint64_t *base) {
    char text[64];
    get("memory", other, text, sizeof text);
    unsigned long k, b;
    REQUIRE(sscanf(text, "%lx/%lx", &k, &b) == 2);
    *key = k;
    *base = b;
}

static void with_auto(int rank, int other, bool second) {
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA;
    hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_UNSPEC};
    open_all(FI_VERSION(1, 9), hints, &attr, FI_AV_TABLE);
    REQUIRE(info->domain_attr->data_progress == FI_PROGRESS_AUTO);
    char *bytes = calloc(1, LONG);
    struct fid_mr *mr = second ? expose(rank, bytes, FI_REMOTE_READ | FI_REMOTE_WRITE) : NULL;
    meet(rank, other);
    if (second) {
        volatile char *last = bytes + LONG - 1;
        double before = cpu();
        for (double end = now() + LIMIT; !*last && now() < end;) usleep(10000);
        REQUIRE(*last == 9);
        sleep(1);
        printf("the target slept, %.3f s of processor time\n", cpu() - before);
    } else {
        uint64_t key, base;
        find_memory(other, &key, &base);
        char *back = calloc(1, LONG);
        sleep(1);
        for (size_t i = 0; i < LONG; i++) bytes[i] = (char)(i * 5);
        bytes[LONG - 1] = 0;
        CHECK(fi_write(ep, bytes, LONG, NULL, peer, base, key, NULL));
        wait_by_sread(1);
        CHECK(fi_read(ep, back, LONG, NULL, peer, base, key, NULL));
        wait_by_sread(1);
        REQUIRE(memcmp(bytes, back, LONG) == 0);
        char nine = 9;
        CHECK(fi_write(ep, &nine, 1, NULL, peer, base + LONG - 1, key, NULL));
        wait_by_sread(1);
        free(back);
    }
    barrier();
    if (mr) CHECK(fi_close(&mr->fid));
    free(bytes);
    fi_freeinfo(hints);
}

static void *served(void *argument) {
    struct fi_cq_data_entry entry;
    /* SST's thread: reads with a time limit, so that it drives the provider, until the test stops it. */
    while (!*(volatile bool *)argument)
        if (fi_cq_sread(cq, &entry, 1, NULL, -1) == 1) fprintf(stderr, "a completion out of nothing\n");
    return NULL;
}

static void with_sst(int rank, int other, bool second) {
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_SEND | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RMA | FI_READ | FI_WRITE;
    hints->mode = FI_CONTEXT | 1ULL << 55 | FI_CONTEXT2 | FI_MSG_PREFIX | FI_ASYNC_IOV | FI_RX_CQ_DATA;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL;
    hints->domain_attr->control_progress = FI_PROGRESS_AUTO;
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_UNSPEC};
    CHECK(fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, hints, &info));
    /* SST sets its own modes, keeping the provider's address format. */
    info->domain_attr->mr_mode = FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL |
                                 (info->domain_attr->mr_mode & (FI_MR_ENDPOINT | FI_MR_VIRT_ADDR));
    struct fi_info *changed = info;
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    struct fi_av_attr av_attr = {.type = FI_AV_MAP};
    CHECK(fi_av_open(domain, &av_attr, &av, NULL));
    CHECK(fi_cq_open(domain, &attr, &cq, NULL));
    CHECK(fi_endpoint(domain, changed, &ep, NULL));
    CHECK(fi_ep_bind(ep, &av->fid, 0));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(ep));
    char *bytes = calloc(1, LONG);
    for (size_t i = 0; i < LONG && second; i++) bytes[i] = (char)(i * 3 + rank);
    struct fid_mr *mr = expose(rank, bytes, second ? FI_WRITE | FI_REMOTE_READ : FI_READ);
    meet(rank, other);
    bool stop = false;
    if (second) {
        pthread_t thread;
        double before = cpu();
        pthread_create(&thread, NULL, served, &stop);
        /* Until the reader has all. */
        barrier();
        stop = true;
        CHECK(fi_cq_signal(cq));
        pthread_join(thread, NULL);
        printf("the writer was read, %.3f s of processor time\n", cpu() - before);
    } else {
        uint64_t key, base;
        find_memory(other, &key, &base);
        CHECK(fi_read(ep, bytes, LONG, fi_mr_desc(mr), peer, base, key, NULL));
        wait_by_sread(1);
        for (size_t i = 0; i < LONG; i++) REQUIRE(bytes[i] == (char)(i * 3 + other));
        sleep(1);
        barrier();
    }
    CHECK(fi_close(&mr->fid));
    free(bytes);
    fi_freeinfo(hints);
}

static void with_mercury(int rank, int other, bool second) {
    struct fi_info *hints = fi_allocinfo();
    hints->mode = FI_ASYNC_IOV | FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_MULTI_RECV;
    hints->tx_attr->op_flags = FI_INJECT_COMPLETE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL | FI_MR_ENDPOINT;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->tx_attr->size = hints->rx_attr->size = 4096;
    hints->addr_format = FI_ADDR_STR;
    struct fi_cq_attr attr = {
        .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD, .wait_cond = FI_CQ_COND_NONE, .size = 8192};
    open_all(FI_VERSION(1, 9), hints, &attr, FI_AV_MAP);
    REQUIRE(info->addr_format == FI_ADDR_STR);
    size_t least = 4096;
    CHECK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    char *pool = calloc(1, 1 << 20), *bytes = calloc(1, LONG), request[64], answer[64];
    struct fi_context pool_context, request_context, answer_context, pull_context;
    struct iovec iov = {pool, 1 << 20};
    struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &pool_context};
    CHECK(fi_recvmsg(ep, &msg, FI_MULTI_RECV));
    struct fid_mr *mr = expose(rank, bytes, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
    meet(rank, other);
    for (size_t i = 0; i < LONG && !second; i++) bytes[i] = (char)(i * 11 + 1);
    barrier();
    for (int i = 0; i < ROUNDS; i++) {
        if (second) {
            /* The server: takes a request, pulls the client's data in the last round, and answers by tag. */
            struct fi_cq_tagged_entry entry;
            do entry = next_by_fd(NULL);
            while (!(entry.flags & FI_RECV));
            REQUIRE(entry.op_context == &pool_context && atoi(entry.buf) == i);
            if (i == ROUNDS - 1) {
                uint64_t key, base;
                find_memory(other, &key, &base);
                CHECK(fi_read(ep, bytes, LONG, fi_mr_desc(mr), peer, base, key, &pull_context));
                while (next_by_fd(NULL).op_context != &pull_context);
                for (size_t at = 0; at < LONG; at++) REQUIRE(bytes[at] == (char)(at * 11 + 1));
            }
            snprintf(answer, sizeof answer, "%d", 1000 + i);
            CHECK(fi_tsend(ep, answer, sizeof answer, NULL, peer, i, &answer_context));
            while (next_by_fd(NULL).op_context != &answer_context);
        } else {
            CHECK(fi_trecv(ep, answer, sizeof answer, NULL, peer, i, 0, &answer_context));
            snprintf(request, sizeof request, "%d", i);
            CHECK(fi_send(ep, request, sizeof request, NULL, peer, &request_context));
            wait_by_fd(FI_SEND | FI_RECV, 2);
            REQUIRE(atoi(answer) == 1000 + i);
        }
    }
    CHECK(fi_cancel(&ep->fid, &pool_context));
    barrier();
    CHECK(fi_close(&mr->fid));
    free(bytes);
    fi_freeinfo(hints);
}

int main(int argc, char **argv) {
    const char *descriptor = getenv("PMI_FD"), *what = argc > 1 ? argv[1] : "";
    if (!descriptor) {
        fprintf(stderr, "not started by PMI-1\n");
        return 1;
    }
    int rank = atoi(getenv("PMI_RANK")), size = atoi(getenv("PMI_SIZE"));
    server = fdopen(atoi(descriptor), "r+");
    pmi("init pmi_version=1 pmi_subversion=1", NULL, NULL, 0);
    pmi("get_my_kvsname", "kvsname=", space, sizeof space);
    REQUIRE(size % 2 == 0);
    bool second = rank >= size / 2;
    int other = second ? rank - size / 2 : rank + size / 2;
    if (strcmp(what, "fd") == 0)
        with_fd(rank, other, second);
    else if (strcmp(what, "auto") == 0)
        with_auto(rank, other, second);
    else if (strcmp(what, "sst") == 0)
        with_sst(rank, other, second);
    else if (strcmp(what, "mercury") == 0)
        with_mercury(rank, other, second);
    else
        return fprintf(stderr, "say fd, auto, sst or mercury\n"), 2;
    printf("rank %d of %d: %s good over %s\n", rank, size, what, info->fabric_attr->prov_name);
    fflush(stdout);
    barrier();
    close_all();
    pmi("finalize", NULL, NULL, 0);
    return 0;
}
