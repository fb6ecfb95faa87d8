/* Tagged and untagged messages in all variants. */
#include "cases.h"

static const size_t SIZES[] = {0, 1, 8, 1000, 16384, 16385, 100000, 300000, 5000000};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Sends with variant `v` of the nine calls. Whether the call gives a completion. */
static bool send_tagged(struct node *n, int v, void *buf, size_t len, uint64_t tag, void *context, struct node *other) {
    size_t third = len / 3;
    struct iovec iov[4] = {{buf, third},
                           {(char *)buf + third, 0},
                           {(char *)buf + third, third},
                           {(char *)buf + 2 * third, len - 2 * third}};
    struct fi_msg_tagged msg = {
        .msg_iov = iov, .iov_count = 4, .addr = n->peer, .tag = tag, .context = context, .data = 99};
    switch (v) {
    case 0: EQUAL(RETRY(n, other, fi_tsend(n->ep, buf, len, NULL, n->peer, tag, context)), 0); return true;
    case 1: EQUAL(RETRY(n, other, fi_tsendv(n->ep, iov, NULL, 4, n->peer, tag, context)), 0); return true;
    case 2: EQUAL(RETRY(n, other, fi_tsendmsg(n->ep, &msg, 0)), 0); return true;
    case 3: EQUAL(RETRY(n, other, fi_tsendmsg(n->ep, &msg, FI_REMOTE_CQ_DATA)), 0); return true;
    case 4: EQUAL(RETRY(n, other, fi_tsenddata(n->ep, buf, len, NULL, 99, n->peer, tag, context)), 0); return true;
    case 5: EQUAL(RETRY(n, other, fi_tinject(n->ep, buf, len, n->peer, tag)), 0); return false;
    case 6: EQUAL(RETRY(n, other, fi_tinjectdata(n->ep, buf, len, 99, n->peer, tag)), 0); return false;
    default: EQUAL(RETRY(n, other, fi_tsendmsg(n->ep, &msg, FI_INJECT)), 0); return true;
    }
}

static bool send_untagged(struct node *n, int v, void *buf, size_t len, void *context, struct node *other) {
    size_t third = len / 3;
    struct iovec iov[3] = {{buf, third}, {(char *)buf + third, third}, {(char *)buf + 2 * third, len - 2 * third}};
    struct fi_msg msg = {.msg_iov = iov, .iov_count = 3, .addr = n->peer, .context = context, .data = 99};
    switch (v) {
    case 0: EQUAL(RETRY(n, other, fi_send(n->ep, buf, len, NULL, n->peer, context)), 0); return true;
    case 1: EQUAL(RETRY(n, other, fi_sendv(n->ep, iov, NULL, 3, n->peer, context)), 0); return true;
    case 2: EQUAL(RETRY(n, other, fi_sendmsg(n->ep, &msg, 0)), 0); return true;
    case 3: EQUAL(RETRY(n, other, fi_sendmsg(n->ep, &msg, FI_REMOTE_CQ_DATA)), 0); return true;
    case 4: EQUAL(RETRY(n, other, fi_senddata(n->ep, buf, len, NULL, 99, n->peer, context)), 0); return true;
    case 5: EQUAL(RETRY(n, other, fi_inject(n->ep, buf, len, n->peer)), 0); return false;
    case 6: EQUAL(RETRY(n, other, fi_injectdata(n->ep, buf, len, 99, n->peer)), 0); return false;
    default: EQUAL(RETRY(n, other, fi_sendmsg(n->ep, &msg, FI_INJECT)), 0); return true;
    }
}

static void post(struct node *n, int v, bool tagged, void *buf, size_t len, uint64_t tag, void *context) {
    size_t half = len / 2;
    struct iovec iov[2] = {{buf, half}, {(char *)buf + half, len - half}};
    struct fi_msg_tagged tmsg = {.msg_iov = iov, .iov_count = 2, .addr = n->peer, .tag = tag, .context = context};
    struct fi_msg msg = {.msg_iov = iov, .iov_count = 2, .addr = n->peer, .context = context};
    if (tagged && v == 0)
        EQUAL(fi_trecv(n->ep, buf, len, NULL, FI_ADDR_UNSPEC, tag, 0, context), 0);
    else if (tagged && v == 1)
        EQUAL(fi_trecvv(n->ep, iov, NULL, 2, n->peer, tag, 0, context), 0);
    else if (tagged)
        EQUAL(fi_trecvmsg(n->ep, &tmsg, 0), 0);
    else if (v == 0)
        EQUAL(fi_recv(n->ep, buf, len, NULL, FI_ADDR_UNSPEC, context), 0);
    else if (v == 1)
        EQUAL(fi_recvv(n->ep, iov, NULL, 2, n->peer, context), 0);
    else
        EQUAL(fi_recvmsg(n->ep, &msg, 0), 0);
}

/* Every way to send, to every way to receive, of every size, expected and unexpected. */
static void variants(bool tagged) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    char *out = malloc(5000000), *in = malloc(5000000);
    int sc, rc;
    unsigned seed = 0;
    for (size_t s = 0; s < COUNT(SIZES); s++)
        for (int sv = 0; sv < 8; sv++)
            for (int rv = 0; rv < 3; rv++)
                for (int early = 0; early < 2; early++) {
                    size_t len = SIZES[s];
                    if ((sv >= 5 && len > a.info->tx_attr->inject_size) || (len > 1000000 && sv > 1)) continue;
                    uint64_t tag = 0xABCD000000000000ull + seed;
                    fill(out, len, ++seed);
                    memset(in, 0xEE, len);
                    if (early) post(&b, rv, tagged, in, len, tag, &rc);
                    bool completes =
                        tagged ? send_tagged(&a, sv, out, len, tag, &sc, &b) : send_untagged(&a, sv, out, len, &sc, &b);
                    if (sv >= 5) memset(out, 0x11, len); /* injected: ours again */
                    if (!early) {
                        for (int i = 0; i < 20; i++) drive(&a, &b);
                        post(&b, rv, tagged, in, len, tag, &rc);
                    }
                    struct done got = good(b.rx, &a, &b);
                    CHECK(got.entry.op_context == &rc);
                    EQUAL(got.entry.len, len);
                    CHECK(is_filled(in, len, seed));
                    uint64_t kind = tagged ? FI_TAGGED : FI_MSG;
                    EQUAL(got.entry.flags & (FI_RECV | FI_TAGGED | FI_MSG | FI_SEND), FI_RECV | kind);
                    EQUAL(got.source, b.peer);
                    if (tagged) EQUAL(got.entry.tag, tag);
                    bool data = sv == 3 || sv == 4 || sv == 6;
                    EQUAL(!!(got.entry.flags & FI_REMOTE_CQ_DATA), data);
                    if (data) EQUAL(got.entry.data, 99);
                    if (completes) {
                        struct done sent = good(a.tx, &a, &b);
                        CHECK(sent.entry.op_context == &sc);
                        EQUAL(sent.entry.flags & (FI_RECV | FI_TAGGED | FI_MSG | FI_SEND), FI_SEND | kind);
                    }
                    EQUAL(fi_cq_read(a.tx, &got.entry, 1), -FI_EAGAIN);
                }
    free(out);
    free(in);
    close_pair(&a, &b);
}

void case_tagged(void) { variants(true); }
void case_untagged(void) { variants(false); }

void case_matching(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){.av_type = FI_AV_MAP});
    int in[6] = {0}, context[6];
    /* Ignored bits, in the order of posting; tagged and untagged do not mix; first come, first matched. */
    EQUAL(fi_trecv(b.ep, &in[0], 4, NULL, FI_ADDR_UNSPEC, 0x70, 0x0F, &context[0]), 0);
    EQUAL(fi_trecv(b.ep, &in[1], 4, NULL, FI_ADDR_UNSPEC, 0x75, 0, &context[1]), 0);
    EQUAL(fi_trecv(b.ep, &in[2], 4, NULL, FI_ADDR_UNSPEC, 0, ~0ull, &context[2]), 0);
    EQUAL(fi_recv(b.ep, &in[3], 4, NULL, FI_ADDR_UNSPEC, &context[3]), 0);
    int out[] = {10, 11, 12, 13};
    EQUAL(fi_inject(a.ep, &out[3], 4, a.peer), 0);
    EQUAL(fi_tinject(a.ep, &out[0], 4, a.peer, 0x75), 0);
    EQUAL(fi_tinject(a.ep, &out[1], 4, a.peer, 0x75), 0);
    EQUAL(fi_tinject(a.ep, &out[2], 4, a.peer, 0xFFFFFFFFFFFFFFFFull), 0);
    for (int i = 0; i < 4; i++) good(b.rx, &a, &b);
    EQUAL(in[0], 10);
    EQUAL(in[1], 11);
    EQUAL(in[2], 12);
    EQUAL(in[3], 13);
    /* Unexpected ones in the order of sending, for exact and wild receives. */
    for (int i = 0; i < 4; i++) EQUAL(fi_tinject(a.ep, &out[i], 4, a.peer, 0x100 + (i & 1)), 0);
    uint64_t tags[] = {0x101, 0x100, 0x100, 0x101}, ignores[] = {0, 1, 0, 1};
    int expected[] = {11, 10, 12, 13};
    for (int i = 0; i < 4; i++) {
        EQUAL(fi_trecv(b.ep, &in[i], 4, NULL, FI_ADDR_UNSPEC, tags[i], ignores[i], &context[i]), 0);
        CHECK(good(b.rx, &a, &b).entry.op_context == &context[i]);
        EQUAL(in[i], expected[i]);
    }
    close_pair(&a, &b);
}

void case_self_(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    char *out = malloc(400000), *in = malloc(400000);
    for (size_t len = 0; len <= 400000; len += 100000) {
        fill(out, len, 5);
        EQUAL(fi_tsend(a.ep, out, len, NULL, 0, 3, NULL), 0);
        EQUAL(fi_trecv(a.ep, in, len, NULL, 0, 3, 0, NULL), 0);
        struct done got = good(a.rx, &a, NULL);
        EQUAL(got.entry.len, len);
        EQUAL(got.source, 0);
        CHECK(is_filled(in, len, 5));
        good(a.tx, &a, NULL);
    }
    free(out);
    free(in);
    close_pair(&a, &b);
}

static ssize_t recv_flags(struct node *n, bool tagged, void *buf, size_t len, uint64_t tag, void *context,
                          uint64_t flags) {
    struct iovec iov = {buf, len};
    struct fi_msg_tagged tmsg = {
        .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context};
    struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = context};
    return tagged ? fi_trecvmsg(n->ep, &tmsg, flags) : fi_recvmsg(n->ep, &msg, flags);
}

static void peek(bool tagged) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    static char out[300000], in[300000];
    struct fi_context ctx, other;
    size_t sizes[] = {5, 300000};
    for (int s = 0; s < 2; s++) {
        size_t len = sizes[s];
        uint64_t tag = tagged ? 7 : 0;
        EQUAL(recv_flags(&b, tagged, NULL, 0, tag, &ctx, FI_PEEK), 0);
        CHECK(bad(b.rx, &a, &b, FI_ENOMSG).error.op_context == &ctx);
        for (int i = 0; i < 4; i++) {
            fill(out, len, i);
            if (tagged)
                EQUAL(fi_tsenddata(a.ep, out, len, NULL, 40 + i, a.peer, 7, NULL), 0);
            else
                EQUAL(fi_senddata(a.ep, out, len, NULL, 40 + i, a.peer, NULL), 0);
            /* Small ones are complete when sent; for the large ones the buffer must stay as it is. */
            if (s == 0)
                good(a.tx, &a, &b);
            else
                break;
        }
        struct done got;
        /* Peek until it has arrived; it then stays where it is. */
        for (double end = now() + 10;;) {
            EQUAL(recv_flags(&b, tagged, NULL, 0, tag, &ctx, FI_PEEK), 0);
            got = next(b.rx, &a, &b);
            if (!got.error.err) break;
            EQUAL(got.error.err, FI_ENOMSG);
            CHECK(now() < end);
        }
        EQUAL(got.entry.len, len);
        EQUAL(got.entry.data, 40);
        EQUAL(got.source, b.peer);
        if (tagged) EQUAL(got.entry.tag, 7);
        CHECK(got.entry.op_context == &ctx);
        if (tagged) {
            EQUAL(recv_flags(&b, true, NULL, 0, 8, &ctx, FI_PEEK), 0);
            bad(b.rx, &a, &b, FI_ENOMSG);
        }
        /* Claimed: nobody else gets it. */
        EQUAL(recv_flags(&b, tagged, NULL, 0, tag, &ctx, FI_PEEK | FI_CLAIM), 0);
        EQUAL(good(b.rx, &a, &b).entry.data, 40);
        CHECK(recv_flags(&b, tagged, in, len, tag, &other, FI_CLAIM) < 0);
        if (s == 1) {
            EQUAL(recv_flags(&b, tagged, NULL, 0, tag, &ctx, FI_PEEK), 0);
            bad(b.rx, &a, &b, FI_ENOMSG);
            memset(in, 0, len);
            EQUAL(recv_flags(&b, tagged, in, len, tag, &ctx, FI_CLAIM), 0);
            got = good(b.rx, &a, &b);
            EQUAL(got.entry.len, len);
            CHECK(is_filled(in, len, 0));
            good(a.tx, &a, &b);
            continue;
        }
        EQUAL(recv_flags(&b, tagged, in, len, tag, &other, 0), 0);
        EQUAL(good(b.rx, &a, &b).entry.data, 41);
        CHECK(is_filled(in, len, 1));
        EQUAL(recv_flags(&b, tagged, in, len, tag, &ctx, FI_CLAIM), 0);
        EQUAL(good(b.rx, &a, &b).entry.data, 40);
        CHECK(is_filled(in, len, 0));
        /* Discarded: by a peek, and after a claim. */
        EQUAL(recv_flags(&b, tagged, NULL, 0, tag, &ctx, FI_PEEK | FI_DISCARD), 0);
        EQUAL(good(b.rx, &a, &b).entry.data, 42);
        EQUAL(recv_flags(&b, tagged, NULL, 0, tag, &ctx, FI_PEEK | FI_CLAIM), 0);
        EQUAL(good(b.rx, &a, &b).entry.data, 43);
        EQUAL(recv_flags(&b, tagged, NULL, 0, tag, &ctx, FI_CLAIM | FI_DISCARD), 0);
        good(b.rx, &a, &b);
        EQUAL(recv_flags(&b, tagged, NULL, 0, tag, &ctx, FI_PEEK), 0);
        bad(b.rx, &a, &b, FI_ENOMSG);
    }
    CHECK(recv_flags(&b, tagged, in, 5, 7, &ctx, FI_DISCARD) < 0);
    close_pair(&a, &b);
}

void case_peek_tagged(void) { peek(true); }
void case_peek_untagged(void) { peek(false); }

void case_cancel(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    int in[2], x, y;
    EQUAL(fi_trecv(b.ep, &in[0], 4, NULL, FI_ADDR_UNSPEC, 1, 0, &x), 0);
    EQUAL(fi_trecv(b.ep, &in[1], 4, NULL, FI_ADDR_UNSPEC, 1, 0, &y), 0);
    EQUAL(fi_cancel(&b.ep->fid, &x), 0);
    struct done gone = bad(b.rx, &a, &b, FI_ECANCELED);
    CHECK(gone.error.op_context == &x);
    EQUAL(gone.error.flags & (FI_RECV | FI_TAGGED), FI_RECV | FI_TAGGED);
    EQUAL(fi_cancel(&b.ep->fid, &x), -FI_ENOENT);
    int out = 77;
    EQUAL(fi_tinject(a.ep, &out, 4, a.peer, 1), 0);
    CHECK(good(b.rx, &a, &b).entry.op_context == &y);
    EQUAL(in[1], 77);
    EQUAL(fi_cancel(&b.ep->fid, &y), -FI_ENOENT);
    EQUAL(fi_recv(b.ep, &in[0], 4, NULL, FI_ADDR_UNSPEC, &x), 0);
    EQUAL(fi_cancel(&b.ep->fid, &x), 0);
    bad(b.rx, &a, &b, FI_ECANCELED);
    close_pair(&a, &b);
}

void case_truncation(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    size_t sizes[] = {100, 1000000};
    char *out = malloc(1000000), *in = malloc(1000000);
    for (int early = 0; early < 2; early++)
        for (int s = 0; s < 2; s++)
            for (int keep = 0; keep < 2; keep++) {
                size_t len = sizes[s], room = keep ? len / 3 : 0;
                fill(out, len, 3);
                memset(in, 0xEE, len);
                if (early) EQUAL(fi_trecv(b.ep, in, room, NULL, FI_ADDR_UNSPEC, 5, 0, in), 0);
                EQUAL(fi_tsend(a.ep, out, len, NULL, a.peer, 5, NULL), 0);
                if (!early) {
                    for (int i = 0; i < 20; i++) drive(&a, &b);
                    EQUAL(fi_trecv(b.ep, in, room, NULL, FI_ADDR_UNSPEC, 5, 0, in), 0);
                }
                struct done cut = bad(b.rx, &a, &b, FI_ETRUNC);
                CHECK(cut.error.op_context == in);
                EQUAL(cut.error.olen, len - room);
                EQUAL(cut.error.len, room);
                EQUAL(cut.error.tag, 5);
                CHECK(is_filled(in, room, 3));
                CHECK((uint8_t)in[room] == 0xEE);
                good(a.tx, &a, &b);
                /* Later messages are not disturbed. */
                fill(out, len, 4);
                EQUAL(fi_tsend(a.ep, out, len, NULL, a.peer, 5, NULL), 0);
                EQUAL(fi_trecv(b.ep, in, len, NULL, FI_ADDR_UNSPEC, 5, 0, in), 0);
                good(b.rx, &a, &b);
                CHECK(is_filled(in, len, 4));
                good(a.tx, &a, &b);
            }
    free(out);
    free(in);
    close_pair(&a, &b);
}

void case_multi_recv(void) {
    for (int selective = 0; selective < 2; selective++) {
        struct node a, b;
        open_pair(&a, &b, &(struct options){.bind_flags = selective ? FI_SELECTIVE_COMPLETION : 0});
        size_t least = 256, length = sizeof least;
        EQUAL(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
        least = 0;
        EQUAL(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &length), 0);
        EQUAL(least, 256);
        static char pool[2][1024];
        struct iovec iov[2] = {{pool[0], 1024}, {pool[1], 1024}};
        for (int i = 0; i < 2; i++) {
            struct fi_msg msg = {.msg_iov = &iov[i], .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = pool[i]};
            uint64_t flags = FI_MULTI_RECV | (selective ? 0 : FI_COMPLETION);
            EQUAL(fi_recvmsg(b.ep, &msg, flags), 0);
        }
        /* 200-byte messages: the first buffer is full after four (224 left), then comes the second. */
        char out[200];
        int released = 0, messages = 0;
        for (int i = 0; i < 8; i++) {
            fill(out, 200, i);
            EQUAL(fi_injectdata(a.ep, out, 200, i, a.peer), 0);
        }
        for (int seen = 0; seen < (selective ? 2 : 8); seen++) {
            struct done got = good(b.rx, &a, &b);
            int which = got.entry.op_context == pool[1];
            if (got.entry.flags & FI_RECV) {
                messages++;
                int i = (int)got.entry.data;
                EQUAL(got.entry.len, 200);
                EQUAL((char *)got.entry.buf - pool[which], 200 * (i % 4));
                CHECK(is_filled(got.entry.buf, 200, i));
                EQUAL(which, i / 4);
            }
            if (got.entry.flags & FI_MULTI_RECV) released++;
        }
        EQUAL(released, 2);
        EQUAL(messages, selective ? 2 : 8);
        for (int i = 0; i < 8; i++) CHECK(is_filled(pool[i / 4] + 200 * (i % 4), 200, i));
        /* Unexpected messages fill a buffer too, and a cancelled one is released. */
        EQUAL(fi_inject(a.ep, out, 200, a.peer), 0);
        for (int i = 0; i < 20; i++) drive(&a, &b);
        struct fi_msg msg = {.msg_iov = &iov[0], .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = pool[0]};
        EQUAL(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION), 0);
        struct done got = good(b.rx, &a, &b);
        CHECK(got.entry.buf == pool[0] && !(got.entry.flags & FI_MULTI_RECV));
        EQUAL(fi_cancel(&b.ep->fid, pool[0]), 0);
        got = bad(b.rx, &a, &b, FI_ECANCELED);
        CHECK(got.error.flags & FI_MULTI_RECV);
        close_pair(&a, &b);
    }
}

void case_selective(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){.bind_flags = FI_SELECTIVE_COMPLETION, .tx_flags = FI_COMPLETION});
    int in, out = 5, x;
    struct iovec iov = {&out, 4}, into = {&in, 4};
    struct fi_msg_tagged msg = {.msg_iov = &iov, .iov_count = 1, .addr = a.peer, .tag = 1, .context = &x};
    struct fi_msg_tagged rmsg = {.msg_iov = &into, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 1, .context = &x};
    /* Plain calls go by the endpoint's flags, msg calls by their own. Receives have no default flags here. */
    EQUAL(fi_tsend(a.ep, &out, 4, NULL, a.peer, 1, &x), 0);
    good(a.tx, &a, &b);
    EQUAL(fi_trecvmsg(b.ep, &rmsg, FI_COMPLETION), 0);
    good(b.rx, &a, &b);
    EQUAL(fi_tsendmsg(a.ep, &msg, 0), 0);
    EQUAL(fi_trecv(b.ep, &in, 4, NULL, FI_ADDR_UNSPEC, 1, 0, &x), 0);
    quiet(a.tx, &a, &b);
    quiet(b.rx, &a, &b);
    /* The flags can be asked for and changed. */
    uint64_t flags = FI_TRANSMIT;
    EQUAL(fi_control(&a.ep->fid, FI_GETOPSFLAG, &flags), 0);
    EQUAL(flags, FI_COMPLETION);
    flags = FI_TRANSMIT;
    EQUAL(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags), 0);
    EQUAL(fi_tsend(a.ep, &out, 4, NULL, a.peer, 1, &x), 0);
    quiet(a.tx, &a, &b);
    /* Errors are always reported. */
    EQUAL(fi_trecv(b.ep, &in, 2, NULL, FI_ADDR_UNSPEC, 1, 0, &x), 0);
    bad(b.rx, &a, &b, FI_ETRUNC);
    close_pair(&a, &b);
}

void case_delivery(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    static char out[300000], in[300000];
    for (int inject = 0; inject < 2; inject++)
        for (int large = 0; large < 2 - inject; large++) {
            size_t len = large ? sizeof out : 100;
            fill(out, len, 9);
            struct iovec iov = {out, len};
            struct fi_msg_tagged msg = {.msg_iov = &iov, .iov_count = 1, .addr = a.peer, .tag = 1, .context = out};
            EQUAL(fi_tsendmsg(a.ep, &msg, FI_DELIVERY_COMPLETE | (inject ? FI_INJECT : 0)), 0);
            if (inject) memset(out, 0, len);
            /* Not delivered before somebody receives it. */
            quiet(a.tx, &a, &b);
            EQUAL(fi_trecv(b.ep, in, len, NULL, FI_ADDR_UNSPEC, 1, 0, NULL), 0);
            CHECK(good(a.tx, &a, &b).entry.op_context == out);
            CHECK(is_filled(in, len, 9));
            good(b.rx, &a, &b);
        }
    close_pair(&a, &b);
}

/* Endpoints opened for confirmed delivery, with and without confirmation of sends that do not ask for it themselves. */
void case_confirmation(void) {
    const char *settings[] = {NULL, "yes", "no"};
    for (int i = 0; i < 3; i++) {
        if (settings[i]) setenv("LANDBRIDGE_CONFIRM_SENDS", settings[i], 1);
        bool confirmed = i < 2;
        struct node a, b;
        open_pair(&a, &b, &(struct options){.tx_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE});
        int out = 17, in[4] = {0};
        struct iovec iov = {&out, sizeof out};
        struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = a.peer, .context = in};
        for (int form = 0; form < 4; form++) {
            if (form == 0) EQUAL(fi_tsend(a.ep, &out, sizeof out, NULL, a.peer, 1, &in[form]), 0);
            if (form == 1) EQUAL(fi_send(a.ep, &out, sizeof out, NULL, a.peer, &in[form]), 0);
            if (form == 2) EQUAL(fi_tsenddata(a.ep, &out, sizeof out, NULL, 5, a.peer, 1, &in[form]), 0);
            /* A message that asks for a completion gets one with any setting. */
            if (form == 3) EQUAL(fi_sendmsg(a.ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE), 0);
            bool waits = confirmed || form == 3;
            if (waits)
                quiet(a.tx, &a, &b);
            else
                good(a.tx, &a, &b);
            if (form % 2)
                EQUAL(fi_recv(b.ep, &in[form], sizeof *in, NULL, FI_ADDR_UNSPEC, NULL), 0);
            else
                EQUAL(fi_trecv(b.ep, &in[form], sizeof *in, NULL, FI_ADDR_UNSPEC, 1, 0, NULL), 0);
            good(b.rx, &a, &b);
            EQUAL(in[form], 17);
            if (waits) good(a.tx, &a, &b);
        }
        close_pair(&a, &b);
    }
}

void case_directed(void) {
    struct node a, b, c;
    struct options options = {0};
    open_pair(&a, &b, &options);
    open_node(&c, &options);
    fi_addr_t b_to_c = introduce(&b, &c), c_to_b = introduce(&c, &b);
    /* The same address twice: either number will do. */
    fi_addr_t again = introduce(&b, &c);
    CHECK(again != b_to_c);
    int in[3] = {0}, out[] = {1, 2, 3};
    EQUAL(fi_trecv(b.ep, &in[0], 4, NULL, b_to_c, 1, 0, &in[0]), 0);
    EQUAL(fi_trecv(b.ep, &in[1], 4, NULL, b.peer, 1, 0, &in[1]), 0);
    EQUAL(fi_recv(b.ep, &in[2], 4, NULL, again, &in[2]), 0);
    EQUAL(fi_tinject(a.ep, &out[1], 4, a.peer, 1), 0);
    struct done got = good(b.rx, &a, &b);
    CHECK(got.entry.op_context == &in[1]);
    EQUAL(got.source, b.peer);
    EQUAL(fi_inject(c.ep, &out[2], 4, c_to_b), 0);
    EQUAL(fi_tinject(c.ep, &out[0], 4, c_to_b, 1), 0);
    EQUAL(good(b.rx, &c, &b).source, b_to_c);
    EQUAL(good(b.rx, &c, &b).source, b_to_c);
    EQUAL(in[0], 1);
    EQUAL(in[1], 2);
    EQUAL(in[2], 3);
    close_node(&c);
    close_pair(&a, &b);

    /* Without FI_DIRECTED_RECV the sender's number is not looked at; without FI_SOURCE none is given. */
    options.caps = FI_MSG | FI_TAGGED;
    open_pair(&a, &b, &options);
    EQUAL(fi_trecv(b.ep, &in[0], 4, NULL, 12345, 1, 0, &in[0]), 0);
    EQUAL(fi_tinject(a.ep, &out[1], 4, a.peer, 1), 0);
    EQUAL(good(b.rx, &a, &b).source, FI_ADDR_NOTAVAIL);
    close_pair(&a, &b);
}

/* A receiver that does not receive: the sender has to wait, nothing is lost, nothing is reordered. */
void case_flood(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    enum { MESSAGES = 50000, SIZE = 4000 };
    static char out[SIZE], in[SIZE];
    int sent = 0, refused = 0;
    while (sent < MESSAGES && refused < 1000) {
        memcpy(out, &sent, sizeof sent);
        ssize_t r = fi_tinject(a.ep, out, SIZE, a.peer, 1);
        if (r == 0) {
            sent++;
        } else {
            EQUAL(r, -FI_EAGAIN);
            refused++;
            drive(&a, &b);
        }
    }
    /* 200 MB in all would be more than either side may hold. */
    CHECK(refused > 0);
    for (int got = 0; got < sent; got++) {
        EQUAL(fi_trecv(b.ep, in, SIZE, NULL, FI_ADDR_UNSPEC, 1, 0, NULL), 0);
        good(b.rx, &a, &b);
        int number;
        memcpy(&number, in, sizeof number);
        EQUAL(number, got);
    }
    close_pair(&a, &b);
}
