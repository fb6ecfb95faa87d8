/* A program that uses libfabric without an MPI, started by PMI-1 as Sandia OpenSHMEM's are. Each rank sends its number
 * to the next one and prints the message it received, and the provider. With the argument `die`, rank 2 kills itself
 * once all have each other's addresses. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        long r_ = (call);                                                                                              \
        if (r_ < 0) {                                                                                                  \
            fprintf(stderr, "%s: %ld\n", #call, r_);                                                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static FILE *server;

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
    if (!found) {
        fprintf(stderr, "no %s in PMI's answer: %s", key, line);
        exit(1);
    }
    found += strlen(key);
    snprintf(value, room, "%.*s", (int)strcspn(found, " \n"), found);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const char *descriptor = getenv("PMI_FD");
    if (!descriptor) {
        fprintf(stderr, "not started by PMI-1\n");
        return 1;
    }
    int rank = atoi(getenv("PMI_RANK")), size = atoi(getenv("PMI_SIZE"));
    server = fdopen(atoi(descriptor), "r+");
    char space[256], command[1024];
    pmi("init pmi_version=1 pmi_subversion=1", NULL, NULL, 0);
    pmi("get_my_kvsname", "kvsname=", space, sizeof space);

    struct fi_info *hints = fi_allocinfo(), *info;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    CHECK(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info));
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_av_open(domain, &av_attr, &av, NULL));
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &av->fid, 0));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
    CHECK(fi_enable(ep));

    unsigned char name[64];
    char text[2 * sizeof name + 1] = "";
    size_t length = sizeof name;
    CHECK(fi_getname(&ep->fid, name, &length));
    for (size_t i = 0; i < length; i++) sprintf(text + 2 * i, "%02x", name[i]);
    snprintf(command, sizeof command, "put kvsname=%s key=address-%d value=%s", space, rank, text);
    pmi(command, NULL, NULL, 0);
    pmi("barrier_in", NULL, NULL, 0);
    if (argc > 1 && strcmp(argv[1], "die") == 0 && rank == 2) raise(SIGKILL);
    snprintf(command, sizeof command, "get kvsname=%s key=address-%d", space, (rank + 1) % size);
    pmi(command, "value=", text, sizeof text);
    for (size_t i = 0; i < length; i++) sscanf(text + 2 * i, "%2hhx", &name[i]);
    fi_addr_t next;
    CHECK(fi_av_insert(av, name, 1, &next, 0, NULL) - 1);

    int heard = -1, left = 2;
    CHECK(fi_recv(ep, &heard, sizeof heard, NULL, FI_ADDR_UNSPEC, NULL));
    ssize_t sent;
    struct fi_cq_entry done;
    while ((sent = fi_send(ep, &rank, sizeof rank, NULL, next, NULL)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
    CHECK(sent);
    for (double end = now() + 20; left > 0 && now() < end;) {
        ssize_t r = fi_cq_read(cq, &done, 1);
        if (r == 1)
            left--;
        else if (r != -FI_EAGAIN)
            CHECK(r);
    }
    if (left == 0) printf("rank %d of %d: heard %d over %s\n", rank, size, heard, info->fabric_attr->prov_name);
    fflush(stdout);
    pmi("barrier_in", NULL, NULL, 0);
    pmi("finalize", NULL, NULL, 0);
    fi_close(&ep->fid);
    return left != 0;
}
