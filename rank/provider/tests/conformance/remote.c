/* RMA and atomics. */
#include "cases.h"

#define ALL (FI_REMOTE_READ | FI_REMOTE_WRITE)

/* Reads and writes in all variants, by offset and by virtual address. */
void case_rma(void) {
    int modes[] = {0, FI_MR_BASIC, FI_MR_SCALABLE};
    size_t sizes[] = {0, 1, 1000, 100000, 3000000};
    for (int m = 0; m < 3; m++) {
        struct node a, b;
        open_pair(&a, &b, &(struct options){.mr_mode = modes[m]});
        EQUAL(a.info->domain_attr->mr_mode, modes[m]);
        size_t room = 3000100;
        char *target = malloc(room), *local = malloc(room);
        struct fid_mr *mr;
        EQUAL(fi_mr_reg(b.domain, target, room, ALL, 0, 77, 0, &mr, NULL), 0);
        uint64_t key = fi_mr_key(mr), base = modes[m] == FI_MR_BASIC ? (uint64_t)target : 0;
        if (modes[m] != FI_MR_BASIC) EQUAL(key, 77);
        int context;
        for (size_t s = 0; s < 5; s++)
            for (int v = 0; v < 8; v++) {
                size_t len = sizes[s], half = len / 2;
                if ((v == 3 || v == 7) && len > a.info->tx_attr->inject_size) continue;
                struct iovec iov[2] = {{local, half}, {local + half, len - half}};
                struct fi_rma_iov remote = {base + 50, len, key};
                struct fi_msg_rma msg = {.msg_iov = iov,
                                         .iov_count = 2,
                                         .addr = a.peer,
                                         .rma_iov = &remote,
                                         .rma_iov_count = 1,
                                         .context = &context,
                                         .data = 5};
                fill(local, len, s + v);
                memset(target, 0xEE, room);
                bool completes = v != 3 && v != 7, data = v == 4 || v == 6 || v == 7;
                switch (v) {
                case 0: EQUAL(fi_write(a.ep, local, len, NULL, a.peer, base + 50, key, &context), 0); break;
                case 1: EQUAL(fi_writev(a.ep, iov, NULL, 2, a.peer, base + 50, key, &context), 0); break;
                case 2: EQUAL(fi_writemsg(a.ep, &msg, 0), 0); break;
                case 3: EQUAL(fi_inject_write(a.ep, local, len, a.peer, base + 50, key), 0); break;
                case 4: EQUAL(fi_writedata(a.ep, local, len, NULL, 5, a.peer, base + 50, key, &context), 0); break;
                case 5: EQUAL(fi_writemsg(a.ep, &msg, FI_DELIVERY_COMPLETE), 0); break;
                case 6: EQUAL(fi_writemsg(a.ep, &msg, FI_REMOTE_CQ_DATA), 0); break;
                case 7: EQUAL(fi_inject_writedata(a.ep, local, len, 5, a.peer, base + 50, key), 0); break;
                }
                if (!completes) memset(local, 0, len);
                if (completes) {
                    struct done done = good(a.tx, &a, &b);
                    CHECK(done.entry.op_context == &context);
                    EQUAL(done.entry.flags & (FI_RMA | FI_WRITE | FI_READ), FI_RMA | FI_WRITE);
                }
                if (data) {
                    struct done told = good(b.rx, &a, &b);
                    EQUAL(told.entry.data, 5);
                    EQUAL(told.entry.len, len);
                    CHECK(told.entry.flags & FI_REMOTE_WRITE && told.entry.flags & FI_REMOTE_CQ_DATA);
                }
                for (double end = now() + 10; v == 3 && !is_filled(target + 50, len, s + v) && now() < end;)
                    drive(&a, &b);
                CHECK(is_filled(target + 50, len, s + v));
                EQUAL((uint8_t)target[49], 0xEE);
                EQUAL((uint8_t)target[50 + len], 0xEE);

                if (v > 2) continue;
                memset(local, 0, len);
                switch (v) {
                case 0: EQUAL(fi_read(a.ep, local, len, NULL, a.peer, base + 50, key, &context), 0); break;
                case 1: EQUAL(fi_readv(a.ep, iov, NULL, 2, a.peer, base + 50, key, &context), 0); break;
                case 2: EQUAL(fi_readmsg(a.ep, &msg, 0), 0); break;
                }
                struct done done = good(a.tx, &a, &b);
                CHECK(done.entry.op_context == &context);
                EQUAL(done.entry.flags & (FI_RMA | FI_WRITE | FI_READ), FI_RMA | FI_READ);
                CHECK(is_filled(local, len, s + v));
            }
        /* To ourselves. */
        struct fid_mr *own;
        EQUAL(fi_mr_reg(a.domain, target, 1000, ALL, 0, 78, 0, &own, NULL), 0);
        fill(local, 500, 1);
        EQUAL(fi_write(a.ep, local, 500, NULL, 0, base, fi_mr_key(own), NULL), 0);
        good(a.tx, &a, NULL);
        CHECK(is_filled(target, 500, 1));
        EQUAL(fi_close(&own->fid), 0);
        EQUAL(fi_close(&mr->fid), 0);
        free(target);
        free(local);
        close_pair(&a, &b);
    }
}

void case_rma_errors(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    static char target[100], local[200000];
    struct fid_mr *readable, *writable;
    EQUAL(fi_mr_reg(b.domain, target, 100, FI_REMOTE_READ, 0, 1, 0, &readable, NULL), 0);
    EQUAL(fi_mr_reg(b.domain, target, 100, FI_REMOTE_WRITE, 0, 2, 0, &writable, NULL), 0);
    EQUAL(fi_read(a.ep, local, 10, NULL, a.peer, 0, 3, NULL), 0);
    bad(a.tx, &a, &b, FI_ENOKEY);
    EQUAL(fi_write(a.ep, local, 10, NULL, a.peer, 0, 1, NULL), 0);
    bad(a.tx, &a, &b, FI_EACCES);
    EQUAL(fi_read(a.ep, local, 10, NULL, a.peer, 0, 2, NULL), 0);
    bad(a.tx, &a, &b, FI_EACCES);
    EQUAL(fi_read(a.ep, local, 10, NULL, a.peer, 91, 1, NULL), 0);
    bad(a.tx, &a, &b, FI_EINVAL);
    EQUAL(fi_write(a.ep, local, sizeof local, NULL, a.peer, 0, 2, NULL), 0);
    bad(a.tx, &a, &b, FI_EINVAL);
    EQUAL(fi_write(a.ep, local, 10, NULL, a.peer, ~0ull - 2, 2, NULL), 0);
    bad(a.tx, &a, &b, FI_EINVAL);
    /* Injected ones too: nobody gets a context, but somebody hears. */
    EQUAL(fi_inject_write(a.ep, local, 10, a.peer, 0, 3), 0);
    bad(a.tx, &a, &b, FI_ENOKEY);
    long one = 1;
    EQUAL(fi_atomic(a.ep, &one, 1, NULL, a.peer, 0, 3, FI_INT64, FI_SUM, NULL), 0);
    bad(a.tx, &a, &b, FI_ENOKEY);
    EQUAL(fi_fetch_atomic(a.ep, &one, 1, NULL, local, NULL, a.peer, 96, 2, FI_INT64, FI_SUM, NULL), 0);
    CHECK(next(a.tx, &a, &b).error.err != 0);
    for (int i = 0; i < 100; i++) EQUAL(target[i], 0);
    /* The connection is as good as before. */
    EQUAL(fi_read(a.ep, local, 100, NULL, a.peer, 0, 1, NULL), 0);
    good(a.tx, &a, &b);
    /* One remote piece, as long as the local ones. */
    struct iovec iov = {local, 10};
    struct fi_rma_iov remote[2] = {{0, 5, 2}, {5, 5, 2}};
    struct fi_msg_rma msg = {.msg_iov = &iov, .iov_count = 1, .addr = a.peer, .rma_iov = remote, .rma_iov_count = 2};
    EQUAL(fi_writemsg(a.ep, &msg, 0), -FI_EINVAL);
    msg.rma_iov_count = 1;
    EQUAL(fi_writemsg(a.ep, &msg, 0), -FI_EINVAL);
    EQUAL(fi_close(&readable->fid), 0);
    /* A closed region is gone. */
    EQUAL(fi_read(a.ep, local, 10, NULL, a.peer, 0, 1, NULL), 0);
    bad(a.tx, &a, &b, FI_ENOKEY);
    EQUAL(fi_close(&writable->fid), 0);
    close_pair(&a, &b);
}

void case_registration(void) {
    struct node a;
    open_node(&a, &(struct options){0});
    static char memory[100];
    struct fid_mr *mr, *other;
    EQUAL(fi_mr_reg(a.domain, memory, 100, FI_SEND | FI_RECV, 0, 9, 0, &mr, memory), 0);
    CHECK(mr->fid.context == memory);
    EQUAL(fi_mr_reg(a.domain, memory, 100, ALL, 0, 9, 0, &other, NULL), -FI_ENOKEY);
    EQUAL(fi_mr_bind(mr, &a.ep->fid, 0), 0);
    EQUAL(fi_mr_enable(mr), 0);
    EQUAL(fi_close(&mr->fid), 0);
    struct iovec iov[2] = {{memory, 50}, {memory + 50, 50}};
    EQUAL(fi_mr_regv(a.domain, iov, 2, ALL, 0, 9, 0, &mr, NULL), -FI_EINVAL);
    EQUAL(fi_mr_regv(a.domain, iov, 1, ALL, 0, 9, 0, &mr, NULL), 0);
    EQUAL(fi_mr_key(mr), 9);
    struct fi_mr_attr attr = {.mr_iov = iov, .iov_count = 1, .access = ALL, .requested_key = 10};
    EQUAL(fi_mr_regattr(a.domain, &attr, 0, &other), 0);
    EQUAL(fi_mr_key(other), 10);
    EQUAL(fi_close(&mr->fid), 0);
    /* Programs that do not free their windows close the domain first. */
    close_node(&a);
    EQUAL(fi_close(&other->fid), 0);
}

/* Values of a datatype made from small numbers, and back. */
static size_t put(enum fi_datatype type, void *place, int value) {
    switch (type) {
#define PUT(T)                                                                                                         \
    {                                                                                                                  \
        T v = (T)value;                                                                                                \
        memcpy(place, &v, sizeof v);                                                                                   \
        return sizeof v;                                                                                               \
    }
    case FI_INT8: PUT(int8_t)
    case FI_UINT8: PUT(uint8_t)
    case FI_INT16: PUT(int16_t)
    case FI_UINT16: PUT(uint16_t)
    case FI_INT32: PUT(int32_t)
    case FI_UINT32: PUT(uint32_t)
    case FI_INT64: PUT(int64_t)
    case FI_UINT64: PUT(uint64_t)
    case FI_FLOAT: PUT(float)
    case FI_DOUBLE: PUT(double)
    case FI_FLOAT_COMPLEX: PUT(float _Complex)
    case FI_DOUBLE_COMPLEX: PUT(double _Complex)
    case FI_INT128: PUT(__int128)
    case FI_UINT128: PUT(unsigned __int128)
    default: return 0;
    }
}

static bool holds(enum fi_datatype type, const void *place, int value) {
    char expected[32];
    return memcmp(place, expected, put(type, expected, value)) == 0;
}

/* The result for target 6, operand 3, compare operand 6. */
static int result_of(enum fi_op op) {
    switch ((int)op) {
    case FI_MIN: return 3;
    case FI_MAX: return 6;
    case FI_SUM: return 9;
    case FI_PROD: return 18;
    case FI_LOR: return 1;
    case FI_LAND: return 1;
    case FI_BOR: return 7;
    case FI_BAND: return 2;
    case FI_LXOR: return 0;
    case FI_BXOR: return 5;
    case FI_ATOMIC_READ: return 6;
    case FI_ATOMIC_WRITE: return 3;
    case FI_CSWAP: return 3;
    case FI_CSWAP_NE: return 6;
    case FI_CSWAP_LE: return 3;
    case FI_CSWAP_LT: return 6;
    case FI_CSWAP_GE: return 3;
    case FI_CSWAP_GT: return 6;
    case FI_MSWAP: return (3 & 6) | (6 & ~6);
    case 19: return 3; /* FI_DIFF */
    default: return -1;
    }
}

/* Every operation on every datatype, in the forms it has, with the calls that carry most. */
void case_atomics(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    static char target[8192 + 16], operands[8192], compares[8192], results[8192];
    struct fid_mr *mr;
    EQUAL(fi_mr_reg(b.domain, target, sizeof target, ALL, 0, 1, 0, &mr, NULL), 0);
    int tried = 0;
    for (int type = 0; type <= FI_UINT128; type++)
        for (int op = 0; op <= 19; op++)
            for (int form = 0; form < 3; form++) {
                size_t count = 0;
                struct fi_atomic_attr attr;
                uint64_t flags = form == 0 ? 0 : form == 1 ? FI_FETCH_ATOMIC : FI_COMPARE_ATOMIC;
                int valid = form == 0   ? fi_atomicvalid(a.ep, type, op, &count)
                            : form == 1 ? fi_fetch_atomicvalid(a.ep, type, op, &count)
                                        : fi_compare_atomicvalid(a.ep, type, op, &count);
                EQUAL(fi_query_atomic(a.domain, type, op, &attr, flags), valid);
                bool compare = op >= FI_CSWAP && op <= FI_MSWAP;
                bool has_form = compare ? form == 2 : form == 1 || (form == 0 && op != FI_ATOMIC_READ);
                bool long_double = type == FI_LONG_DOUBLE || type == FI_LONG_DOUBLE_COMPLEX;
                bool integer = type <= FI_UINT64 || type >= FI_INT128;
                bool complex = type == FI_FLOAT_COMPLEX || type == FI_DOUBLE_COMPLEX;
                bool bits = op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP;
                bool ordered = op == FI_MIN || op == FI_MAX || (op >= FI_CSWAP_LE && op <= FI_CSWAP_GT);
                bool defined = has_form && !long_double && (integer || !bits) && !(complex && (ordered || bits));
                EQUAL(valid, defined ? 0 : -FI_EOPNOTSUPP);
                if (!defined) continue;
                EQUAL(attr.count, count);
                size_t size = attr.size;
                EQUAL(count * size, form == 2 ? 4096 : 8192);
                for (size_t i = 0; i < count; i++) {
                    put(type, target + 1 + i * size, 6);
                    put(type, operands + i * size, 3);
                    put(type, compares + i * size, 6);
                }
                memset(results, 0xEE, sizeof results);
                if (form == 0)
                    EQUAL(fi_atomic(a.ep, operands, count, NULL, a.peer, 1, 1, type, op, target), 0);
                else if (form == 1)
                    EQUAL(fi_fetch_atomic(a.ep, op == FI_ATOMIC_READ ? NULL : operands, count, NULL, results, NULL,
                                          a.peer, 1, 1, type, op, target),
                          0);
                else
                    EQUAL(fi_compare_atomic(a.ep, operands, count, NULL, compares, NULL, results, NULL, a.peer, 1, 1,
                                            type, op, target),
                          0);
                memset(operands, 0, sizeof operands); /* copied by the call */
                struct done done = good(a.tx, &a, &b);
                CHECK(done.entry.op_context == target);
                EQUAL(done.entry.flags & (FI_ATOMIC | FI_READ | FI_WRITE), FI_ATOMIC | (form ? FI_READ : FI_WRITE));
                for (size_t i = 0; i < count; i++) {
                    CHECK(holds(type, target + 1 + i * size, result_of(op)));
                    CHECK(form == 0 || holds(type, results + i * size, 6));
                }
                tried++;
            }
    CHECK(tried > 200);
    long one = 1;
    EQUAL(fi_atomic(a.ep, operands, 1025, NULL, a.peer, 0, 1, FI_INT64, FI_SUM, NULL), -FI_EMSGSIZE);
    EQUAL(fi_atomic(a.ep, &one, 1, NULL, a.peer, 0, 1, FI_LONG_DOUBLE, FI_SUM, NULL), -FI_EOPNOTSUPP);
    EQUAL(fi_close(&mr->fid), 0);
    close_pair(&a, &b);
}

/* The remaining calls: vectors, messages, injection, and to ourselves. */
void case_atomic_forms(void) {
    struct node a, b;
    open_pair(&a, &b, &(struct options){0});
    long target[4] = {0}, x[2] = {1, 2}, y[2] = {3, 4}, r[2], s[2], c[4] = {1, 2, 3, 4};
    struct fid_mr *mr;
    EQUAL(fi_mr_reg(b.domain, target, sizeof target, ALL, 0, 1, 0, &mr, NULL), 0);
    struct fi_ioc operands[2] = {{x, 2}, {y, 2}}, results[2] = {{r, 2}, {s, 2}}, compares = {c, 4};
    struct fi_rma_ioc remote = {0, 4, 1};
    struct fi_msg_atomic msg = {.msg_iov = operands,
                                .iov_count = 2,
                                .addr = a.peer,
                                .rma_iov = &remote,
                                .rma_iov_count = 1,
                                .datatype = FI_INT64,
                                .op = FI_SUM,
                                .context = x};
    EQUAL(fi_atomicv(a.ep, operands, NULL, 2, a.peer, 0, 1, FI_INT64, FI_SUM, NULL), 0);
    good(a.tx, &a, &b);
    EQUAL(fi_atomicmsg(a.ep, &msg, 0), 0);
    good(a.tx, &a, &b);
    for (int i = 0; i < 4; i++) EQUAL(target[i], 2 * (i + 1));
    EQUAL(fi_inject_atomic(a.ep, x, 2, a.peer, 0, 1, FI_INT64, FI_SUM), 0);
    EQUAL(fi_fetch_atomicv(a.ep, operands, NULL, 2, results, NULL, 2, a.peer, 0, 1, FI_INT64, FI_SUM, NULL), 0);
    good(a.tx, &a, &b);
    EQUAL(r[0], 3);
    EQUAL(s[1], 8);
    msg.op = FI_ATOMIC_WRITE;
    EQUAL(fi_fetch_atomicmsg(a.ep, &msg, results, NULL, 2, 0), 0);
    CHECK(good(a.tx, &a, &b).entry.op_context == x);
    EQUAL(r[0], 4);
    EQUAL(s[1], 12);
    for (int i = 0; i < 4; i++) EQUAL(target[i], i + 1);
    msg.op = FI_ATOMIC_READ;
    msg.msg_iov = NULL;
    msg.iov_count = 0;
    EQUAL(fi_fetch_atomicmsg(a.ep, &msg, results, NULL, 2, 0), 0);
    good(a.tx, &a, &b);
    EQUAL(s[0], 3);
    msg.op = FI_CSWAP;
    msg.msg_iov = operands;
    msg.iov_count = 2;
    x[0] = 100;
    EQUAL(fi_compare_atomicmsg(a.ep, &msg, &compares, NULL, 1, results, NULL, 2, 0), 0);
    good(a.tx, &a, &b);
    EQUAL(target[0], 100);
    EQUAL(r[0], 1);
    x[0] = 200;
    EQUAL(fi_compare_atomicv(a.ep, operands, NULL, 2, &compares, NULL, 1, results, NULL, 2, a.peer, 0, 1, FI_INT64,
                             FI_CSWAP, NULL),
          0);
    good(a.tx, &a, &b);
    EQUAL(target[0], 100);
    EQUAL(r[0], 100);
    /* To ourselves, and pieces that do not go together. */
    struct fid_mr *own;
    EQUAL(fi_mr_reg(a.domain, target, sizeof target, ALL, 0, 2, 0, &own, NULL), 0);
    EQUAL(fi_fetch_atomic(a.ep, &x[0], 1, NULL, &r[0], NULL, 0, 0, 2, FI_INT64, FI_SUM, NULL), 0);
    good(a.tx, &a, NULL);
    EQUAL(target[0], 300);
    EQUAL(r[0], 100);
    EQUAL(fi_fetch_atomicv(a.ep, operands, NULL, 1, results, NULL, 2, a.peer, 0, 1, FI_INT64, FI_SUM, NULL),
          -FI_EINVAL);
    EQUAL(fi_atomic(a.ep, x, 0, NULL, a.peer, 0, 1, FI_INT64, FI_SUM, NULL), -FI_EINVAL);
    EQUAL(fi_close(&own->fid), 0);
    EQUAL(fi_close(&mr->fid), 0);
    close_pair(&a, &b);
}
