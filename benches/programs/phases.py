#!/usr/bin/env python3
"""Times of the phases of a redistribution between two halves of MPI_COMM_WORLD; a line of JSON from rank 0.

    phases.py BYTES_EACH N…

Rows of the first half become columns of the second half. N: n x n arrays of float64; and one more array, which has
BYTES_EACH on each process. In seconds of the slowest rank: the plan, packing and unpacking alone, messages of packed
bytes alone, all of it (`run`), and the same messages pickled, as mpi4py's lower-case calls do."""

import json
import math
import sys

import numpy as np
from mpi4py import MPI

import landbridge as lb
from slowest import timed

comm = MPI.COMM_WORLD
rank, half = comm.Get_rank(), comm.Get_size() // 2
TAG = 1
# From this number of elements on, each way runs once, and only the whole is measured.
LARGE = 8192 * 8192


def slices(extent):
    each = -(-extent // half)
    return [slice(min(at * each, extent), min((at + 1) * each, extent)) for at in range(half)]


def measure(n):
    sources, targets = list(range(half)), list(range(half, 2 * half))
    src, dst = lb.Layout((n, n), [lb.Block(half), lb.Whole()]), lb.Layout((n, n), [lb.Whole(), lb.Block(half)])
    part, target = rank if rank < half else None, rank - half if rank >= half else None
    a = np.random.random(src.local_shape(part)) if target is None else None
    b = np.zeros(dst.local_shape(target)) if part is None else None
    repeats = max(1, min(5, 2048 * 2048 // (n * n)))
    plans = []
    line = {"n": n, "plan": timed(lambda: plans.append(lb.plan(src, dst, "f8", comm, sources, targets)), repeats)}
    if n * n < LARGE:
        plans[0].run(a, into=b)
    line["run"] = timed(lambda: plans[0].run(a, into=b), repeats)
    if n * n >= LARGE:
        return line
    # The cost of the same messages by hand: packed, sent, unpacked.
    parts, kept = slices(n), []
    pieces = [np.empty((at.stop - at.start, to.stop - to.start)) for at in parts[part or 0 :][:1] for to in parts]
    if part is None:
        pieces = [np.empty((at.stop - at.start, parts[target].stop - parts[target].start)) for at in parts]

    def pack():
        for piece, to in zip(pieces, parts):
            piece[...] = a[:, to]

    def unpack():
        for piece, at in zip(pieces, parts):
            b[at] = piece

    def send():
        requests = [comm.Isend(piece, half + to, TAG) for to, piece in enumerate(pieces)]
        MPI.Request.Waitall(requests)

    def receive():
        MPI.Request.Waitall([comm.Irecv(piece, at, TAG) for at, piece in enumerate(pieces)])

    def send_pickled():
        kept[:] = [comm.isend(a[:, to], half + at, TAG) for at, to in enumerate(parts)]
        MPI.Request.waitall(kept)

    def receive_pickled():
        for at, rows in enumerate(parts):
            b[rows] = comm.recv(None, at, TAG)

    def nothing():
        pass

    line["pack"] = timed(nothing if part is None else pack, repeats)
    line["unpack"] = timed(unpack if part is None else nothing, repeats)
    line["send"] = timed(receive if part is None else send, repeats)
    line["pickled"] = timed(receive_pickled if part is None else send_pickled, repeats)
    return line


def main():
    each, *sizes = (int(word) for word in sys.argv[1:])
    constant = math.isqrt(each * half // 8)
    lines, constant = [measure(n) for n in sizes], measure(constant)
    if rank == 0:
        print(json.dumps({"processes": half, "sizes": lines, "constant": constant}), flush=True)


if __name__ == "__main__":
    main()
