/* Waiting without polling: descriptors, automatic progress. And addresses as text. */
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

static int descriptor_of(struct fid *fid) {
    int fd = -1, object = -1;
    EQUAL(fi_control(fid, FI_GETWAIT, &fd), 0);
    CHECK(fd >= 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    /* Not all versions of libfabric's headers have it. */
    if (fi_control(fid, FI_GETWAITOBJ, &object) == 0) EQUAL(object, FI_WAIT_FD);
    return fd;
}

static int poll_for(int fd, int millis) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, millis);
}

static double cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* Waits on a descriptor until `fid` has something, as a program does. `has` returns true if it has. */
static int wait_for(struct node *node, struct fid *fid, int fd, bool (*has)(struct node *), double seconds) {
    int rounds = 0;
    for (double end = now() + seconds; now() < end; rounds++) {
        if (has(node)) return rounds;
        int r = fi_trywait(node->fabric, &fid, 1);
        if (r == 0)
            poll_for(fd, 1000);
        else
            EQUAL(r, -FI_EAGAIN);
    }
    return -rounds;
}

static struct fi_cq_tagged_entry taken;

static bool has_received(struct node *node) {
    ssize_t r = fi_cq_read(node->rx, &taken, 1);
    if (r != 1) EQUAL(r, -FI_EAGAIN);
    return r == 1;
}

static bool has_counted(struct node *node) { return fi_cntr_read(node->received) == 1; }

struct sender {
    struct node *node;
    char *bytes;
    size_t length;
};

static void *send_later(void *argument) {
    struct sender *sender = argument;
    struct timespec t = {0, 100000000};
    nanosleep(&t, NULL);
    struct node *node = sender->node;
    EQUAL(RETRY(node, NULL, fi_send(node->ep, sender->bytes, sender->length, NULL, node->peer, NULL)), 0);
    struct fi_cq_tagged_entry entry;
    for (double end = now() + 10; now() < end;) {
        ssize_t r = fi_cq_read(node->tx, &entry, 1);
        if (r == 1) return NULL;
        EQUAL(r, -FI_EAGAIN);
    }
    fail(__FILE__, __LINE__, "the message was sent");
}

void case_wait_fd(void) {
    enum fi_wait_obj kinds[] = {FI_WAIT_FD, FI_WAIT_UNSPEC};
    for (int kind = 0; kind < 2; kind++) {
        struct node n[2];
        open_pair(&n[0], &n[1], &(struct options){.wait = kinds[kind]});
        int fd = descriptor_of(&n[1].rx->fid);
        struct fid *fid = &n[1].rx->fid;
        size_t length = 3 << 20;
        char *out = malloc(length), *in = calloc(1, length);
        fill(out, length, 5);
        /* Idle: a wait costs nothing but a few looks a second. */
        double before = cpu();
        int rounds = -wait_for(&n[1], fid, fd, has_received, 2);
        CHECK(rounds > 0 && rounds < 60);
        CHECK(cpu() - before < 0.5);
        /* A message of several parts arrives; the other end runs in another thread. */
        EQUAL(fi_recv(n[1].ep, in, length, NULL, FI_ADDR_UNSPEC, NULL), 0);
        struct sender sender = {&n[0], out, length};
        pthread_t thread;
        pthread_create(&thread, NULL, send_later, &sender);
        CHECK(wait_for(&n[1], fid, fd, has_received, 10) >= 0);
        pthread_join(thread, NULL);
        CHECK(is_filled(in, length, 5));
        /* The same by a blocking read. */
        EQUAL(fi_recv(n[1].ep, in, length, NULL, FI_ADDR_UNSPEC, NULL), 0);
        pthread_create(&thread, NULL, send_later, &sender);
        EQUAL(fi_cq_sread(n[1].rx, &taken, 1, NULL, -1), 1);
        pthread_join(thread, NULL);
        /* With something left to read there is nothing to wait for. */
        int small[2];
        for (int i = 0; i < 2; i++) {
            EQUAL(fi_recv(n[1].ep, &small[i], 4, NULL, FI_ADDR_UNSPEC, NULL), 0);
            EQUAL(RETRY(&n[0], NULL, fi_inject(n[0].ep, &i, 4, n[0].peer)), 0);
        }
        for (int left = 2; left > 0; left--) {
            CHECK(wait_for(&n[1], fid, fd, has_received, 10) >= 0);
            if (left == 2) {
                for (double end = now() + 10; fi_trywait(n[1].fabric, &fid, 1) == 0 && now() < end;)
                    drive(&n[0], &n[1]);
                EQUAL(fi_trywait(n[1].fabric, &fid, 1), -FI_EAGAIN);
            }
        }
        free(out);
        free(in);
        close_pair(&n[0], &n[1]);
    }
    /* Without a descriptor there is nothing to wait on. */
    struct node a;
    int fd;
    open_node(&a, &(struct options){.wait = FI_WAIT_NONE});
    struct fid *fid = &a.rx->fid;
    EQUAL(fi_trywait(a.fabric, &fid, 1), -FI_EINVAL);
    EQUAL(fi_control(fid, FI_GETWAIT, &fd), -FI_EINVAL);
    fid = &a.ep->fid;
    EQUAL(fi_trywait(a.fabric, &fid, 1), -FI_EINVAL);
    close_node(&a);
}

void case_wait_fd_counters(void) {
    struct node n[2];
    open_pair(&n[0], &n[1], &(struct options){.wait = FI_WAIT_FD, .counters = true});
    int fd = descriptor_of(&n[1].received->fid), in;
    struct fid *fid = &n[1].received->fid;
    EQUAL(fi_recv(n[1].ep, &in, 4, NULL, FI_ADDR_UNSPEC, NULL), 0);
    int out = 9;
    struct sender sender = {&n[0], (char *)&out, sizeof out};
    pthread_t thread;
    pthread_create(&thread, NULL, send_later, &sender);
    CHECK(wait_for(&n[1], fid, fd, has_counted, 10) >= 0);
    pthread_join(thread, NULL);
    EQUAL(in, 9);
    /* A change that the program has not read is news, also one of its own. */
    EQUAL(fi_cntr_add(n[1].received, 1), 0);
    EQUAL(fi_trywait(n[1].fabric, &fid, 1), -FI_EAGAIN);
    EQUAL(fi_cntr_read(n[1].received), 2);
    EQUAL(fi_cntr_wait(n[1].received, 3, 50), -FI_ETIMEDOUT);
    close_pair(&n[0], &n[1]);
}

void case_wait_fd_events(void) {
    struct node a;
    open_node(&a, &(struct options){0});
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_FD};
    struct fid_eq *eq;
    EQUAL(fi_eq_open(a.fabric, &attr, &eq, NULL), 0);
    struct fid *fid = &eq->fid;
    int fd = descriptor_of(fid);
    EQUAL(fi_trywait(a.fabric, &fid, 1), 0);
    EQUAL(poll_for(fd, 20), 0);
    struct fi_eq_entry entry = {.data = 7};
    uint32_t event;
    EQUAL(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0), sizeof entry);
    EQUAL(poll_for(fd, 1000), 1);
    EQUAL(fi_trywait(a.fabric, &fid, 1), -FI_EAGAIN);
    EQUAL(fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0), sizeof entry);
    EQUAL(fi_trywait(a.fabric, &fid, 1), 0);
    EQUAL(poll_for(fd, 20), 0);
    EQUAL(fi_close(&eq->fid), 0);
    close_node(&a);
}

/* The target calls nothing while its memory is written and read. */
void case_automatic(void) {
    struct node n[2];
    open_pair(&n[0], &n[1], &(struct options){.progress = FI_PROGRESS_AUTO, .wait = FI_WAIT_FD});
    EQUAL(n[0].info->domain_attr->data_progress, FI_PROGRESS_AUTO);
    EQUAL(n[0].info->domain_attr->control_progress, FI_PROGRESS_AUTO);
    size_t length = 5 << 20;
    char *region = calloc(1, length), *out = malloc(length), *in = calloc(1, length);
    fill(out, length, 3);
    struct fid_mr *mr;
    EQUAL(fi_mr_reg(n[1].domain, region, length, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 77, 0, &mr, NULL), 0);
    uint64_t key = fi_mr_key(mr);
    for (int round = 0; round < 20; round++) {
        memset(region, 0, length);
        EQUAL(fi_write(n[0].ep, out, length, NULL, n[0].peer, 0, key, NULL), 0);
        EQUAL(fi_cq_sread(n[0].tx, &taken, 1, NULL, 20000), 1);
        EQUAL(fi_read(n[0].ep, in, length, NULL, n[0].peer, 0, key, NULL), 0);
        EQUAL(fi_cq_sread(n[0].tx, &taken, 1, NULL, 20000), 1);
        CHECK(is_filled(in, length, 3));
        CHECK(is_filled(region, length, 3));
    }
    /* A completion that the thread makes ends the wait of the program. */
    int fd = descriptor_of(&n[1].rx->fid), small;
    struct fid *fid = &n[1].rx->fid;
    EQUAL(fi_recv(n[1].ep, &small, 4, NULL, FI_ADDR_UNSPEC, NULL), 0);
    EQUAL(fi_trywait(n[1].fabric, &fid, 1), 0);
    EQUAL(poll_for(fd, 300), 0);
    int four = 4;
    EQUAL(fi_inject(n[0].ep, &four, 4, n[0].peer), 0);
    EQUAL(poll_for(fd, 10000), 1);
    CHECK(has_received(&n[1]));
    EQUAL(small, 4);
    /* Idle, the threads cost nothing but a few looks a second. */
    double before = cpu();
    struct timespec second = {1, 0};
    nanosleep(&second, NULL);
    CHECK(cpu() - before < 0.3);
    EQUAL(fi_close(&mr->fid), 0);
    free(region);
    free(out);
    free(in);
    close_pair(&n[0], &n[1]);
}

void case_text_addresses(void) {
    struct node n[2];
    open_pair(&n[0], &n[1], &(struct options){.format_of_addresses = FI_ADDR_STR});
    EQUAL(n[0].info->addr_format, FI_ADDR_STR);
    EQUAL(n[0].info->src_addrlen, strlen(n[0].info->src_addr) + 1);
    char name[2][128], text[128], row[256];
    for (int i = 0; i < 2; i++) {
        size_t length = 4;
        EQUAL(fi_getname(&n[i].ep->fid, name[i], &length), -FI_ETOOSMALL);
        EQUAL(fi_getname(&n[i].ep->fid, name[i], &length), 0);
        EQUAL(strncmp(name[i], "fi_sockaddr_in://", 17), 0);
    }
    /* In a row, as libfabric's shm reads them, and as an array of pointers, by the manual. */
    int length = sprintf(row, "%s", name[0]) + 1;
    strcpy(row + length, name[1]);
    const char *pointers[] = {name[1], name[0], "nonsense"};
    fi_addr_t numbers[3];
    EQUAL(fi_av_insert(n[0].av, row, 2, numbers, 0, NULL), 2);
    size_t room = sizeof text;
    EQUAL(fi_av_lookup(n[0].av, numbers[1], text, &room), 0);
    EQUAL(strcmp(text, name[1]), 0);
    EQUAL(room, strlen(text) + 1);
    EQUAL(fi_av_insert(n[0].av, pointers, 3, numbers, 0, NULL), 2);
    EQUAL(numbers[2], FI_ADDR_NOTAVAIL);
    room = sizeof text;
    CHECK(fi_av_straddr(n[0].av, name[1], text, &room));
    EQUAL(strcmp(text, name[1]), 0);
    int out = 8, in = 0;
    EQUAL(fi_recv(n[1].ep, &in, 4, NULL, FI_ADDR_UNSPEC, NULL), 0);
    EQUAL(RETRY(&n[0], &n[1], fi_inject(n[0].ep, &out, 4, numbers[0])), 0);
    good(n[1].rx, &n[0], &n[1]);
    EQUAL(in, 8);
    /* As a hint and as the source of an endpoint. */
    struct options options = {.format_of_addresses = FI_ADDR_STR};
    struct fi_info *hints = hints_for(&options), *reply;
    hints->dest_addr = strdup(name[1]);
    hints->dest_addrlen = strlen(name[1]) + 1;
    EQUAL(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &reply), 0);
    EQUAL(strcmp(reply->dest_addr, name[1]), 0);
    fi_freeinfo(reply);
    fi_freeinfo(hints);
    close_pair(&n[0], &n[1]);
}
