/* Negotiation, addresses, queues, counters, errors. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>

#include "cases.h"

static int ask(uint32_t api, struct fi_info *hints, struct fi_info **reply) {
    if (!hints->fabric_attr->prov_name) hints->fabric_attr->prov_name = strdup("landbridge");
    int r = fi_getinfo(api, NULL, NULL, 0, hints, reply);
    fi_freeinfo(hints);
    return r;
}

void case_hints(void) {
    struct fi_info *reply, *hints;
    /* MPICH: threading must come back as asked. */
    hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_MULTI_RECV | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA | FI_ATOMIC | FI_READ |
                  FI_WRITE | FI_SEND | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
    hints->mode = FI_CONTEXT | FI_ASYNC_IOV | FI_RX_CQ_DATA;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->control_progress = hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->domain_attr->mr_mode = FI_MR_ENDPOINT;
    hints->domain_attr->cq_data_size = 4;
    hints->tx_attr->op_flags = FI_COMPLETION;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_ATOMIC_WAW;
    uint64_t caps = hints->caps;
    EQUAL(ask(FI_VERSION(1, 17), hints, &reply), 0);
    EQUAL(reply->caps & caps, caps);
    EQUAL(reply->mode, 0);
    EQUAL(reply->domain_attr->threading, FI_THREAD_DOMAIN);
    EQUAL(reply->domain_attr->mr_mode, 0);
    CHECK(reply->domain_attr->cq_data_size >= 4);
    EQUAL(reply->tx_attr->op_flags, FI_COMPLETION);
    EQUAL(reply->addr_format, FI_SOCKADDR_IN);
    EQUAL(reply->src_addrlen, 16);
    EQUAL(reply->domain_attr->max_ep_tx_ctx, 1);
    CHECK(reply->next == NULL);
    /* A copy by the core is as good as the original. */
    struct fi_info *copy = fi_dupinfo(reply);
    CHECK(strcmp(copy->domain_attr->name, reply->domain_attr->name) == 0);
    fi_freeinfo(copy);
    fi_freeinfo(reply);
    /* Intel MPI. */
    hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_MULTI_RECV | FI_TAGGED;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    EQUAL(ask(FI_VERSION(1, 5), hints, &reply), 0);
    EQUAL(reply->caps & (FI_RMA | FI_ATOMIC | FI_SOURCE), 0);
    fi_freeinfo(reply);
    /* Open MPI asks for device memory first. */
    for (int device = 1; device >= 0; device--) {
        hints = fi_allocinfo();
        hints->caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM | (device ? FI_HMEM : 0);
        hints->domain_attr->av_type = FI_AV_MAP;
        hints->domain_attr->threading = FI_THREAD_SAFE;
        EQUAL(ask(FI_VERSION(1, 17), hints, &reply), device ? -FI_ENODATA : 0);
    }
    EQUAL(reply->domain_attr->av_type, FI_AV_MAP);
    fi_freeinfo(reply);
    /* No hints at all. */
    hints = fi_allocinfo();
    EQUAL(ask(FI_VERSION(1, 17), hints, &reply), 0);
    CHECK(reply->caps & FI_ATOMIC);
    fi_freeinfo(reply);
    /* Hints that no endpoint of ours fits. */
    for (int i = 0; i < 4; i++) {
        hints = fi_allocinfo();
        if (i == 0) hints->ep_attr->type = FI_EP_MSG;
        if (i == 1) hints->caps = FI_RMA | FI_RMA_EVENT;
        if (i == 2) hints->tx_attr->inject_size = 1 << 20;
        if (i == 3) hints->addr_format = FI_SOCKADDR_IB;
        EQUAL(ask(FI_VERSION(1, 17), hints, &reply), -FI_ENODATA);
    }
}

static struct sockaddr_in *in(void *address) { return address; }

void case_addresses(void) {
    struct options options = {0};
    struct fi_info *reply, *hints = hints_for(&options);
    EQUAL(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "7777", 0, hints, &reply), 0);
    EQUAL(ntohs(in(reply->dest_addr)->sin_port), 7777);
    EQUAL(in(reply->dest_addr)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    EQUAL(ntohs(in(reply->src_addr)->sin_port), 0);
    fi_freeinfo(reply);
    EQUAL(fi_getinfo(FI_VERSION(1, 17), NULL, "7778", FI_SOURCE, hints, &reply), 0);
    EQUAL(ntohs(in(reply->src_addr)->sin_port), 7778);
    CHECK(!reply->dest_addr);
    /* In hints too. */
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(7779), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    fi_freeinfo(reply);
    hints->dest_addr = malloc(sizeof address);
    memcpy(hints->dest_addr, &address, sizeof address);
    hints->dest_addrlen = sizeof address;
    EQUAL(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &reply), 0);
    EQUAL(ntohs(in(reply->dest_addr)->sin_port), 7779);
    fi_freeinfo(reply);
    CHECK(fi_getinfo(FI_VERSION(1, 17), "no.such.host.invalid", "1", 0, hints, &reply) < 0);
    CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "70000", 0, hints, &reply) < 0);
    fi_freeinfo(hints);
}

void case_names(void) {
    struct node a, b;
    struct options options = {0};
    open_node(&a, &options);
    char name[64], again[64], text[128];
    size_t length = 4;
    EQUAL(fi_getname(&a.ep->fid, name, &length), -FI_ETOOSMALL);
    EQUAL(length, 16);
    EQUAL(fi_getname(&a.ep->fid, name, &length), 0);
    CHECK(in(name)->sin_port != 0);
    /* In the vector and back. */
    fi_addr_t numbers[8];
    EQUAL(fi_av_insert(a.av, name, 1, numbers, 0, NULL), 1);
    length = 16;
    EQUAL(fi_av_lookup(a.av, numbers[0], again, &length), 0);
    CHECK(memcmp(name, again, 16) == 0);
    EQUAL(fi_av_lookup(a.av, 4711, again, &length), -FI_EINVAL);
    length = sizeof text;
    CHECK(fi_av_straddr(a.av, name, text, &length) == text);
    CHECK(strstr(text, "127.0.0.1") && length == strlen(text) + 1 && !strchr(text, ' '));
    /* The text is an address again; the same address at another site, or of another rank, has another text. */
    EQUAL(fi_av_insertsvc(a.av, text, NULL, numbers, 0, NULL), 1);
    length = 16;
    EQUAL(fi_av_lookup(a.av, numbers[0], again, &length), 0);
    CHECK(memcmp(name, again, 16) == 0);
    char other[16], others[100];
    for (int byte = 8; byte < 16; byte++) {
        memcpy(other, name, 16);
        other[byte] ^= 1;
        length = sizeof others;
        fi_av_straddr(a.av, other, others, &length);
        CHECK(strcmp(text, others) != 0 && !strchr(others, ' '));
        EQUAL(fi_av_insertsvc(a.av, others, NULL, numbers, 0, NULL), 1);
        length = 16;
        EQUAL(fi_av_lookup(a.av, numbers[0], again, &length), 0);
        CHECK(memcmp(other, again, 16) == 0);
        struct fi_info *found;
        EQUAL(fi_getinfo(FI_VERSION(1, 9), others, NULL, 0, a.info, &found), 0);
        CHECK(found->dest_addrlen == 16 && memcmp(found->dest_addr, other, 16) == 0);
        fi_freeinfo(found);
    }
    EQUAL(fi_av_insertsvc(a.av, "landbridge://127.0.0.1:1/2", NULL, numbers, 0, NULL), 0);
    EQUAL(fi_av_insertsvc(a.av, "127.0.0.1", NULL, numbers, 0, NULL), -FI_EINVAL);
    length = 8;
    fi_av_straddr(a.av, name, text, &length);
    EQUAL(strlen(text), 7);
    /* Text that is no address is not inserted, and is reported. */
    char two[32];
    memcpy(two, name, 16);
    memset(two + 16, 0x77, 16);
    int errors[2] = {1, 0};
    EQUAL(fi_av_insert(a.av, two, 2, numbers, FI_SYNC_ERR, errors), 1);
    EQUAL(errors[0], 0);
    CHECK(errors[1] != 0);
    EQUAL(numbers[1], FI_ADDR_NOTAVAIL);
    /* By name. */
    EQUAL(fi_av_insertsvc(a.av, "127.0.0.1", "5000", numbers, 0, NULL), 1);
    EQUAL(fi_av_insertsym(a.av, "127.0.0.1", 2, "5000", 3, numbers, 0, NULL), 6);
    length = 16;
    EQUAL(fi_av_lookup(a.av, numbers[5], again, &length), 0);
    EQUAL(ntohs(in(again)->sin_port), 5002);
    EQUAL(ntohl(in(again)->sin_addr.s_addr), INADDR_LOOPBACK + 1);
    /* Where to listen, chosen by the user. */
    struct fi_info *hints = hints_for(&options);
    EQUAL(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &b.info), 0);
    fi_freeinfo(hints);
    struct fid_ep *ep;
    EQUAL(fi_endpoint(a.domain, b.info, &ep, NULL), 0);
    struct sockaddr_in taken;
    memcpy(&taken, name, sizeof taken);
    EQUAL(fi_setname(&ep->fid, &taken, sizeof taken), 0);
    EQUAL(fi_ep_bind(ep, &a.av->fid, 0), 0);
    EQUAL(fi_ep_bind(ep, &a.tx->fid, FI_TRANSMIT | FI_RECV), 0);
    EQUAL(fi_enable(ep), -FI_EADDRNOTAVAIL);
    taken.sin_port = 0;
    EQUAL(fi_setname(&ep->fid, &taken, sizeof taken), 0);
    EQUAL(fi_enable(ep), 0);
    CHECK(fi_setname(&ep->fid, &taken, sizeof taken) < 0);
    EQUAL(fi_close(&ep->fid), 0);
    fi_freeinfo(b.info);
    close_node(&a);
}

void case_busy(void) {
    struct node a;
    open_node(&a, &(struct options){.counters = true});
    EQUAL(fi_close(&a.fabric->fid), -FI_EBUSY);
    EQUAL(fi_close(&a.domain->fid), -FI_EBUSY);
    EQUAL(fi_close(&a.tx->fid), -FI_EBUSY);
    EQUAL(fi_close(&a.av->fid), -FI_EBUSY);
    EQUAL(fi_close(&a.sent->fid), -FI_EBUSY);
    /* An endpoint lacks an object that it needs. */
    struct fid_ep *ep;
    EQUAL(fi_endpoint(a.domain, a.info, &ep, NULL), 0);
    EQUAL(fi_send(ep, NULL, 0, NULL, 0, NULL), -FI_EOPBADSTATE);
    EQUAL(fi_enable(ep), -FI_ENOAV);
    EQUAL(fi_ep_bind(ep, &a.av->fid, 0), 0);
    EQUAL(fi_enable(ep), -FI_ENOCQ);
    EQUAL(fi_ep_bind(ep, &a.rx->fid, FI_READ), -FI_EBADFLAGS);
    /* Counts nothing without FI_RMA_EVENT; libfabric's own providers take it. */
    EQUAL(fi_ep_bind(ep, &a.sent->fid, FI_REMOTE_WRITE), 0);
    EQUAL(fi_ep_bind(ep, &a.sent->fid, FI_SOURCE), -FI_EBADFLAGS);
    EQUAL(fi_close(&ep->fid), 0);
    close_node(&a);
}

void case_options(void) {
    struct node a;
    open_node(&a, &(struct options){0});
    size_t value = 0, length = 4;
    EQUAL(fi_getopt(&a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &length), -FI_ETOOSMALL);
    length = sizeof value;
    EQUAL(fi_getopt(&a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &value, &length), 0);
    EQUAL(value, a.info->tx_attr->size);
    EQUAL(fi_getopt(&a.ep->fid, FI_OPT_ENDPOINT, 4711, &value, &length), -FI_ENOPROTOOPT);
    EQUAL(fi_setopt(&a.ep->fid, FI_OPT_ENDPOINT, 4711, &value, length), -FI_ENOPROTOOPT);
    EQUAL(fi_setopt(&a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, 4), -FI_EINVAL);
    close_node(&a);
}

static void *later(void *argument) {
    struct timespec t = {0, 50000000};
    nanosleep(&t, NULL);
    struct node *nodes = argument;
    int out = 3;
    EQUAL(fi_inject(nodes[0].ep, &out, 4, nodes[0].peer), 0);
    for (double end = now() + 0.2; now() < end;) drive(&nodes[0], NULL);
    return NULL;
}

static void *signaller(void *argument) {
    struct timespec t = {0, 50000000};
    nanosleep(&t, NULL);
    EQUAL(fi_cq_signal(((struct node *)argument)->rx), 0);
    return NULL;
}

void case_waiting(void) {
    struct node n[2];
    open_pair(&n[0], &n[1], &(struct options){.counters = true});
    struct fi_cq_tagged_entry entry;
    double start = now();
    EQUAL(fi_cq_sread(n[1].rx, &entry, 1, NULL, 30), -FI_EAGAIN);
    CHECK(now() - start >= 0.03);
    EQUAL(fi_cntr_wait(n[1].received, 1, 30), -FI_ETIMEDOUT);
    pthread_t thread;
    int in;
    /* A waiting reader gives way to a sender, and wakes for arrivals. */
    EQUAL(fi_recv(n[1].ep, &in, 4, NULL, FI_ADDR_UNSPEC, NULL), 0);
    pthread_create(&thread, NULL, later, n);
    EQUAL(fi_cq_sread(n[1].rx, &entry, 1, NULL, 10000), 1);
    EQUAL(in, 3);
    pthread_join(thread, NULL);
    EQUAL(fi_recv(n[1].ep, &in, 4, NULL, FI_ADDR_UNSPEC, NULL), 0);
    pthread_create(&thread, NULL, later, n);
    EQUAL(fi_cntr_wait(n[1].received, 2, -1), 0);
    pthread_join(thread, NULL);
    EQUAL(fi_cq_read(n[1].rx, &entry, 1), 1);
    pthread_create(&thread, NULL, signaller, &n[1]);
    EQUAL(fi_cq_sread(n[1].rx, &entry, 1, NULL, -1), -FI_EAGAIN);
    pthread_join(thread, NULL);
    close_pair(&n[0], &n[1]);
}

void case_events(void) {
    struct node a;
    open_node(&a, &(struct options){0});
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
    struct fid_eq *eq;
    EQUAL(fi_eq_open(a.fabric, &attr, &eq, NULL), 0);
    uint32_t event = 0;
    struct fi_eq_entry entry = {.data = 7};
    EQUAL(fi_eq_read(eq, &event, &entry, sizeof entry, 0), -FI_EAGAIN);
    EQUAL(fi_eq_sread(eq, &event, &entry, sizeof entry, 20, 0), -FI_EAGAIN);
    EQUAL(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0), sizeof entry);
    entry.data = 0;
    EQUAL(fi_eq_read(eq, &event, &entry, 4, 0), -FI_ETOOSMALL);
    EQUAL(fi_eq_read(eq, &event, &entry, sizeof entry, FI_PEEK), sizeof entry);
    EQUAL(fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0), sizeof entry);
    EQUAL(entry.data, 7);
    EQUAL(event, FI_NOTIFY);
    EQUAL(fi_close(&a.fabric->fid), -FI_EBUSY);
    EQUAL(fi_close(&eq->fid), 0);
    close_node(&a);
}

void case_formats(void) {
    enum fi_cq_format formats[] = {FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED};
    size_t sizes[] = {sizeof(struct fi_cq_entry), sizeof(struct fi_cq_msg_entry), sizeof(struct fi_cq_data_entry),
                      sizeof(struct fi_cq_tagged_entry)};
    for (int f = 0; f < 4; f++) {
        struct node a, b;
        open_pair(&a, &b, &(struct options){.format = formats[f]});
        int out = 1, in[3];
        for (int i = 0; i < 3; i++) {
            EQUAL(fi_trecv(b.ep, &in[i], 4, NULL, FI_ADDR_UNSPEC, 30 + i, 0, &in[i]), 0);
            EQUAL(fi_tinjectdata(a.ep, &out, 4, 50 + i, a.peer, 30 + i), 0);
        }
        char raw[4 * sizeof(struct fi_cq_tagged_entry)];
        memset(raw, 0xEE, sizeof raw);
        size_t got = 0;
        for (double end = now() + 10; got < 3 && now() < end; drive(&a, &b)) {
            ssize_t r = fi_cq_read(b.rx, raw + got * sizes[f], 3 - got);
            if (r > 0)
                got += r;
            else
                EQUAL(r, -FI_EAGAIN);
        }
        EQUAL(got, 3);
        for (int i = 0; i < 3; i++) {
            struct fi_cq_tagged_entry entry;
            memcpy(&entry, raw + i * sizes[f], sizes[f]);
            CHECK(entry.op_context == &in[i]);
            if (f >= 1) EQUAL(entry.len, 4);
            if (f >= 2) EQUAL(entry.data, 50 + i);
            if (f >= 3) EQUAL(entry.tag, 30 + i);
        }
        EQUAL((uint8_t)raw[3 * sizes[f]], 0xEE);
        close_pair(&a, &b);
    }
}

void case_av_remove(void) {
    struct node a, b, c;
    struct options options = {0};
    open_pair(&a, &b, &options);
    open_node(&c, &options);
    introduce(&c, &a);
    int out = 1, in;
    EQUAL(fi_tinject(a.ep, &out, 4, a.peer, 1), 0);
    EQUAL(fi_trecv(b.ep, &in, 4, NULL, b.peer, 1, 0, NULL), 0);
    EQUAL(good(b.rx, &a, &b).source, b.peer);
    /* Who is removed is no destination, and no known source. */
    fi_addr_t old = a.peer;
    EQUAL(fi_av_remove(a.av, &a.peer, 1, 0), 0);
    EQUAL(fi_tinject(a.ep, &out, 4, old, 1), -FI_EINVAL);
    EQUAL(fi_av_remove(a.av, &old, 1, 0), -FI_EINVAL);
    EQUAL(fi_tinject(b.ep, &out, 4, b.peer, 1), 0);
    EQUAL(fi_trecv(a.ep, &in, 4, NULL, FI_ADDR_UNSPEC, 1, 0, NULL), 0);
    EQUAL(good(a.rx, &a, &b).source, FI_ADDR_NOTAVAIL);
    /* The number is given to somebody else, and means him. */
    EQUAL(introduce(&a, &c), old);
    EQUAL(fi_tinject(a.ep, &out, 4, old, 1), 0);
    EQUAL(fi_trecv(c.ep, &in, 4, NULL, FI_ADDR_UNSPEC, 1, 0, NULL), 0);
    good(c.rx, &a, &c);
    /* Back again under a new number. */
    a.peer = introduce(&a, &b);
    CHECK(a.peer != old);
    EQUAL(fi_tinject(b.ep, &out, 4, b.peer, 1), 0);
    EQUAL(fi_trecv(a.ep, &in, 4, NULL, a.peer, 1, 0, NULL), 0);
    EQUAL(good(a.rx, &a, &b).source, a.peer);
    close_node(&c);
    close_pair(&a, &b);
}

static void count(struct fid_cntr *counter, uint64_t expected, struct node *a, struct node *b) {
    for (double end = now() + 10; fi_cntr_read(counter) != expected && now() < end;) drive(a, b);
    EQUAL(fi_cntr_read(counter), expected);
}

void case_counters(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){.counters = true, .bind_flags = FI_SELECTIVE_COMPLETION});
    long out = 1, in, target = 0;
    struct fid_mr *mr;
    EQUAL(fi_mr_reg(b.domain, &target, 8, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL), 0);
    for (int i = 0; i < 3; i++) {
        EQUAL(fi_recv(b.ep, &in, 8, NULL, FI_ADDR_UNSPEC, NULL), 0);
        EQUAL(fi_inject(a.ep, &out, 8, a.peer), 0);
    }
    EQUAL(fi_send(a.ep, &out, 8, NULL, a.peer, NULL), 0);
    count(a.sent, 4, &a, &b);
    count(b.received, 3, &a, &b);
    EQUAL(fi_write(a.ep, &out, 8, NULL, a.peer, 0, 1, NULL), 0);
    EQUAL(fi_inject_write(a.ep, &out, 8, a.peer, 0, 1), 0);
    EQUAL(fi_atomic(a.ep, &out, 1, NULL, a.peer, 0, 1, FI_INT64, FI_SUM, NULL), 0);
    count(a.writes, 3, &a, &b);
    /* Counted when done, not when sent. */
    EQUAL(target, 2);
    EQUAL(fi_read(a.ep, &in, 8, NULL, a.peer, 0, 1, NULL), 0);
    EQUAL(fi_fetch_atomic(a.ep, &out, 1, NULL, &in, NULL, a.peer, 0, 1, FI_INT64, FI_SUM, NULL), 0);
    count(a.reads, 2, &a, &b);
    /* Errors are counted apart, and reported. */
    EQUAL(fi_read(a.ep, &in, 8, NULL, a.peer, 0, 99, NULL), 0);
    bad(a.tx, &a, &b, FI_ENOKEY);
    EQUAL(fi_cntr_readerr(a.reads), 1);
    EQUAL(fi_cntr_read(a.reads), 2);
    EQUAL(fi_cntr_add(a.reads, 5), 0);
    EQUAL(fi_cntr_read(a.reads), 7);
    EQUAL(fi_cntr_set(a.reads, 1), 0);
    EQUAL(fi_cntr_read(a.reads), 1);
    EQUAL(fi_cntr_adderr(a.reads, 2), 0);
    EQUAL(fi_cntr_readerr(a.reads), 3);
    EQUAL(fi_cntr_seterr(a.reads, 0), 0);
    EQUAL(fi_cntr_readerr(a.reads), 0);
    struct fi_cq_tagged_entry entry;
    EQUAL(fi_cq_read(a.tx, &entry, 1), -FI_EAGAIN);
    EQUAL(fi_close(&mr->fid), 0);
    close_pair(&a, &b);
}

void case_lost_peer(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    /* Nobody listens there: within the time to connect, an error that names the address. */
    fi_addr_t nobody;
    EQUAL(fi_av_insertsvc(a.av, "127.0.0.1", "1", &nobody, 0, NULL), 1);
    int out = 1, in;
    static char large[5000000];
    EQUAL(fi_tsend(a.ep, &out, 4, NULL, nobody, 1, &out), 0);
    struct done lost = bad(a.tx, &a, &b, FI_ECONNRESET);
    CHECK(lost.error.op_context == &out);
    CHECK(strstr(lost.text, "127.0.0.1:1"));
    CHECK(strstr(fi_cq_strerror(a.tx, lost.error.prov_errno, NULL, NULL, 0), "127.0.0.1:1"));
    /* A peer that goes away: operations that wait for it fail, those that wait for any peer do not. */
    EQUAL(fi_tinject(a.ep, &out, 4, a.peer, 1), 0);
    EQUAL(fi_trecv(b.ep, &in, 4, NULL, FI_ADDR_UNSPEC, 1, 0, NULL), 0);
    good(b.rx, &a, &b);
    EQUAL(fi_tsend(a.ep, large, sizeof large, NULL, a.peer, 2, large), 0);
    for (int i = 0; i < 20; i++) drive(&a, &b);
    EQUAL(fi_trecv(a.ep, &in, 4, NULL, FI_ADDR_UNSPEC, 3, 0, NULL), 0);
    EQUAL(fi_close(&b.ep->fid), 0);
    b.ep = NULL;
    CHECK(bad(a.tx, &a, &b, FI_ECONNRESET).error.op_context == large);
    quiet(a.rx, &a, &b);
    /* And messages that are sent to it later. */
    EQUAL(fi_tsend(a.ep, &out, 4, NULL, a.peer, 1, &out), 0);
    lost = bad(a.tx, &a, &b, FI_ECONNRESET);
    CHECK(strlen(lost.text) > 10);
    close_pair(&a, &b);
}

/* Arguments that make no sense are refused by the call, not later. */
void case_refusals(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    static char buffer[100000];
    struct iovec iov[5] = {{buffer, 1}, {buffer, 1}, {buffer, 1}, {buffer, 1}, {buffer, 1}};
    struct fi_msg msg = {.msg_iov = iov, .iov_count = 1, .addr = a.peer};
    struct fi_msg_tagged tmsg = {.msg_iov = iov, .iov_count = 1, .addr = a.peer};
    EQUAL(fi_send(a.ep, buffer, 1, NULL, 4711, NULL), -FI_EINVAL);
    EQUAL(fi_send(a.ep, NULL, 1, NULL, a.peer, NULL), -FI_EINVAL);
    EQUAL(fi_sendv(a.ep, iov, NULL, 5, a.peer, NULL), -FI_EINVAL);
    EQUAL(fi_recvv(a.ep, iov, NULL, 5, a.peer, NULL), -FI_EINVAL);
    EQUAL(fi_recv(a.ep, buffer, 1, NULL, 4711, NULL), -FI_EINVAL);
    EQUAL(fi_inject(a.ep, buffer, a.info->tx_attr->inject_size + 1, a.peer), -FI_EMSGSIZE);
    EQUAL(fi_sendmsg(a.ep, &msg, FI_FENCE), -FI_EBADFLAGS);
    EQUAL(fi_recvmsg(a.ep, &msg, FI_CLAIM), -FI_ENOENT);
    EQUAL(fi_trecvmsg(a.ep, &tmsg, FI_MULTI_RECV), -FI_EBADFLAGS);
    EQUAL(fi_barrier(a.ep, 0, NULL), -FI_ENOSYS);
    EQUAL(fi_connect(a.ep, buffer, NULL, 0), -FI_ENOSYS);
    struct fi_cq_attr cq_attr = {.wait_obj = FI_WAIT_MUTEX_COND};
    struct fid_cq *cq;
    EQUAL(fi_cq_open(a.domain, &cq_attr, &cq, NULL), -FI_ENOSYS);
    struct fi_av_attr av_attr = {.name = "shared", .flags = FI_READ};
    struct fid_av *av;
    EQUAL(fi_av_open(a.domain, &av_attr, &av, NULL), -FI_ENOSYS);
    EQUAL(fi_cq_read(a.tx, NULL, 1), -FI_EINVAL);
    struct fi_cq_err_entry error = {0};
    EQUAL(fi_cq_readerr(a.tx, &error, 0), -FI_EAGAIN);
    quiet(a.tx, &a, &b);
    quiet(a.rx, &a, &b);
    close_pair(&a, &b);
}

struct worker {
    struct node *n;
    uint64_t tag;
    bool sends;
};

enum { ROUNDS = 2000 };
static int received[2][ROUNDS];
static volatile int finished;

static void *work(void *argument) {
    struct worker *w = argument;
    for (int i = 0; i < ROUNDS; i++) {
        ssize_t r;
        /* Completions of all threads come from one queue; each counts only how many there were. */
        if (w->sends) {
            while ((r = fi_tinject(w->n->ep, &i, 4, w->n->peer, w->tag)) == -FI_EAGAIN) fi_cq_read(w->n->tx, NULL, 0);
            EQUAL(r, 0);
        } else {
            EQUAL(fi_trecv(w->n->ep, &received[w->tag][i], 4, NULL, w->n->peer, w->tag, 0, NULL), 0);
            struct fi_cq_tagged_entry entry;
            double end = now() + 20;
            while ((r = fi_cq_sread(w->n->rx, &entry, 1, NULL, 100)) == -FI_EAGAIN) CHECK(now() < end);
            EQUAL(r, 1);
            EQUAL(entry.len, 4);
        }
    }
    __atomic_fetch_add(&finished, !w->sends, __ATOMIC_SEQ_CST);
    for (double end = now() + 30; w->sends && finished < 2 && now() < end;) drive(w->n, NULL);
    return NULL;
}

void case_threads(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    struct worker workers[] = {{&a, 0, true}, {&a, 1, true}, {&b, 0, false}, {&b, 1, false}};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, &workers[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < ROUNDS; i++) {
        EQUAL(received[0][i], i);
        EQUAL(received[1][i], i);
    }
    close_pair(&a, &b);
}
