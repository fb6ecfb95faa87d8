/* Agreement between the ranks of a communicator before elements move, for landbridge_mpi.h and landbridge_coupling.h.
 * Programs need not include this header or call its functions. */
#ifndef LANDBRIDGE_RANKS_H
#define LANDBRIDGE_RANKS_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "landbridge.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tags of elements, of addresses and of answers to these; the size of an error text. */
enum { LB_MPI_TAG = 7, LB_MPI_ADDRESS = 9, LB_MPI_ANSWER = 10, LB_MPI_TEXT = 1024 };

static inline char *lb_mpi_copy(const char *text) {
    char *copy = (char *)malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

static inline int lb_mpi_check(int code, const char *function) {
    char text[LB_MPI_TEXT], reason[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code == MPI_SUCCESS) return LB_OK;
    if (MPI_Error_string(code, reason, &length) != MPI_SUCCESS) length = 0;
    reason[length] = 0;
    snprintf(text, sizeof text, "%s: %.900s", function, reason);
    return lb_fail(LB_MPI, text);
}

/* Waits by polling with sleeps: others may compute on this core, and a waiting MPI library would occupy it. */
static inline int lb_mpi_wait(MPI_Request *request) {
    int over = 0, code = MPI_SUCCESS;
    for (int64_t nap = 20; code == MPI_SUCCESS; nap = nap < 250 ? 2 * nap : 500) {
        code = MPI_Test(request, &over, MPI_STATUS_IGNORE);
        if (over) return LB_OK;
        lb_nap(nap);
    }
    return lb_mpi_check(code, "MPI_Test");
}

/* Collective: the error that ranks have different hashes, which names rank 0 and the first rank that differs. */
static inline int lb_mpi_disagree(MPI_Comm comm, int rank, int size, int64_t own) {
    int64_t first = own, other;
    char text[LB_MPI_TEXT];
    int code = lb_mpi_check(MPI_Bcast(&first, 1, MPI_INT64_T, 0, comm), "MPI_Bcast");
    int64_t differs = own == first ? size : rank;
    if (!code) code = lb_mpi_check(MPI_Allreduce(&differs, &other, 1, MPI_INT64_T, MPI_MIN, comm), "MPI_Allreduce");
    if (code) return code;
    snprintf(text, sizeof text,
             "ranks want different things: rank %d wants something else than rank 0, but names, versions, layouts, "
             "dtypes, selections and lists of ranks must be the same on all of them",
             (int)other);
    return lb_fail(LB_INVALID, text);
}

/* Collective: returns LB_OK if `code` is LB_OK on all ranks. Otherwise all ranks return the error of the first rank
 * that has one, and its text names that rank. It is also an error if `hash` differs between ranks. */
static inline int lb_mpi_agree(MPI_Comm comm, int code, uint64_t hash) {
    struct {
        int code;
        char text[LB_MPI_TEXT];
    } told;
    MPI_Request request;
    int64_t own[3], least[3];
    int rank, size, failed;
    if (comm == MPI_COMM_NULL) return code;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    own[0] = code == LB_OK ? size : rank;
    own[1] = (int64_t)(hash >> 2);
    own[2] = -own[1]; /* its minimum is the negated maximum of own[1] */
    failed = lb_mpi_check(MPI_Iallreduce(own, least, 3, MPI_INT64_T, MPI_MIN, comm, &request), "MPI_Iallreduce");
    if (!failed) failed = lb_mpi_wait(&request);
    if (failed) return failed;
    if (least[0] == size) return least[1] == -least[2] ? LB_OK : lb_mpi_disagree(comm, rank, size, own[1]);
    memset(&told, 0, sizeof told);
    told.code = code;
    if (rank == least[0]) snprintf(told.text, sizeof told.text, "rank %d: %.960s", rank, lb_error());
    failed = lb_mpi_check(MPI_Bcast(&told, (int)sizeof told, MPI_BYTE, (int)least[0], comm), "MPI_Bcast");
    return failed ? failed : lb_fail(told.code, told.text);
}

/* Collective: duplicates the communicator, for Landbridge's own messages. */
static inline int lb_mpi_dup(MPI_Comm comm, MPI_Comm *own, int *rank, int *size) {
    int code = lb_mpi_check(MPI_Comm_dup(comm, own), "MPI_Comm_dup");
    if (code) return code;
    MPI_Comm_rank(*own, rank);
    MPI_Comm_size(*own, size);
    return LB_OK;
}

/* Collective: sends all letters to their ranks, and reads the received ones. */
static inline int lb_mpi_letters(lb_transfer *transfer, MPI_Comm comm, int size) {
    int64_t *lengths = (int64_t *)calloc(2 * (size_t)size, sizeof *lengths), *come = lengths + size, all = 0, got = 0;
    int *counts = (int *)calloc(4 * (size_t)size, sizeof *counts);
    char *out = NULL, *in = NULL;
    int code = lengths && counts ? LB_OK : lb_fail(LB_MEMORY, "no memory for a plan");
    for (int to = 0; !code && to < size; to++) {
        const void *letter;
        all += lengths[to] = lb_transfer_letter(transfer, to, &letter);
    }
    if (!code) out = (char *)malloc((size_t)all + 1);
    if (!code && (!out || all > INT32_MAX)) code = lb_fail(LB_MEMORY, "a process has too many runs to tell others");
    code = lb_mpi_agree(comm, code, 0);
    if (code) goto end;
    code = lb_mpi_check(MPI_Alltoall(lengths, 1, MPI_INT64_T, come, 1, MPI_INT64_T, comm), "MPI_Alltoall");
    for (int64_t rank = 0, at = 0; rank < size; rank++) {
        const void *letter = NULL;
        lb_transfer_letter(transfer, (int32_t)rank, &letter);
        if (lengths[rank]) memcpy(out + at, letter, (size_t)lengths[rank]);
        counts[rank] = (int)lengths[rank];
        counts[size + rank] = (int)at;
        at += lengths[rank];
        counts[2 * size + rank] = (int)come[rank];
        counts[3 * size + rank] = (int)got;
        got += come[rank];
    }
    in = (char *)malloc((size_t)got + 1);
    if (!code && (!in || got > INT32_MAX)) code = lb_fail(LB_MEMORY, "a process is told of too many runs");
    code = lb_mpi_agree(comm, code, 0);
    if (code) goto end;
    code = lb_mpi_check(
        MPI_Alltoallv(out, counts, counts + size, MPI_BYTE, in, counts + 2 * size, counts + 3 * size, MPI_BYTE, comm),
        "MPI_Alltoallv");
    if (!code) code = lb_transfer_read(transfer, in, come);
    code = lb_mpi_agree(comm, code, 0);
end:
    free(lengths);
    free(counts);
    free(out);
    free(in);
    return code;
}

/* Collective: ranks ask each other for their parts, if they have to. */
static inline int lb_mpi_ask(lb_transfer *transfer, MPI_Comm comm, int rank, int size) {
    int code;
    if (!lb_transfer_asks(transfer)) return LB_OK;
    code = lb_mpi_agree(comm, lb_transfer_ask(transfer, rank), 0);
    for (int turn = 0; !code && turn < 2; turn++) code = lb_mpi_letters(transfer, comm, size);
    return code;
}

/* Finds the other ranks of this node with which this rank exchanges messages of `end` that are long enough for lending
 * memory. Returns their number. */
static inline int lb_mpi_beside(const lb_end *end, MPI_Comm comm, MPI_Comm node, int *ranks) {
    const lb_message *messages = NULL;
    int64_t of = lb_end_messages(end, &messages);
    MPI_Group all, near;
    int count = 0, own;
    MPI_Comm_rank(comm, &own);
    MPI_Comm_group(comm, &all);
    MPI_Comm_group(node, &near);
    for (int64_t at = 0; at < of; at++) {
        int rank = messages[at].rank, there = MPI_UNDEFINED;
        if (rank == own || !lb_end_may_lend(end, at)) continue;
        MPI_Group_translate_ranks(all, 1, &rank, near, &there);
        if (there != MPI_UNDEFINED) ranks[count++] = rank;
    }
    MPI_Group_free(&all);
    MPI_Group_free(&near);
    return count;
}

/* Collective: ranks of a node agree on lending each other memory. */
static inline int lb_mpi_lend(const lb_transfer *transfer, const lb_end *sends, const lb_end *receives, MPI_Comm comm,
                              int rank) {
    MPI_Comm node = MPI_COMM_NULL;
    int64_t most = lb_end_messages(sends, NULL) + lb_end_messages(receives, NULL) + 1;
    int *ranks = (int *)malloc((size_t)most * sizeof *ranks);
    char *answers = (char *)calloc((size_t)most, 1);
    unsigned char *addresses = (unsigned char *)malloc((size_t)most * LB_ADDRESS), own[LB_ADDRESS];
    MPI_Request *requests = (MPI_Request *)malloc((size_t)most * sizeof *requests);
    int code, out = 0, come = 0, at = 0;
    if (!ranks || !answers || !addresses || !requests) {
        /* Other ranks wait for this one. */
        fprintf(stderr, "landbridge: no memory for a plan\n");
        MPI_Abort(comm, 1);
    }
    code = lb_mpi_check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
                        "MPI_Comm_split_type");
    if (!code) {
        out = lb_mpi_beside(sends, comm, node, ranks);
        come = lb_mpi_beside(receives, comm, node, ranks + out);
        MPI_Comm_free(&node);
        memset(own, 0, sizeof own);
        if (out) lb_transfer_address(transfer, own);
        for (int each = 0; each < come; each++)
            MPI_Irecv(addresses + each * LB_ADDRESS, LB_ADDRESS, MPI_BYTE, ranks[out + each], LB_MPI_ADDRESS, comm,
                      &requests[at++]);
        for (int each = 0; each < out; each++)
            MPI_Isend(own, LB_ADDRESS, MPI_BYTE, ranks[each], LB_MPI_ADDRESS, comm, &requests[at++]);
        code = lb_mpi_check(MPI_Waitall(at, requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
    }
    at = 0;
    for (int each = 0; !code && each < out + come; each++) {
        if (each < out) {
            MPI_Irecv(&answers[each], 1, MPI_BYTE, ranks[each], LB_MPI_ANSWER, comm, &requests[at++]);
            continue;
        }
        answers[each] = (char)lb_transfer_open(transfer, ranks[each], addresses + (each - out) * LB_ADDRESS);
        MPI_Isend(&answers[each], 1, MPI_BYTE, ranks[each], LB_MPI_ANSWER, comm, &requests[at++]);
    }
    if (!code) code = lb_mpi_check(MPI_Waitall(at, requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
    for (int each = 0; !code && each < out; each++)
        if (answers[each]) lb_transfer_allow(transfer, ranks[each]);
    free(ranks);
    free(answers);
    free(addresses);
    free(requests);
    return code;
}

#ifdef __cplusplus
}
#endif
#endif
