#!/usr/bin/env python3
"""Redistributions among the ranks of one job, in turns with MPI's own way; a line of JSON for each, from rank 0.

    redistribute.py ROUNDS

For n x n arrays of float64 on 4 ranks: quarters (2 x 2) to rows (4 x 1), and blocks of 64 x 64 dealt out to 2 x 2 to
blocks of 48 x 80. MPI's own: Alltoallw with subarrays, and its persistent form for the smallest array."""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

import landbridge as lb
from slowest import timed

SIZES = [16, 256, 1024, 4096, 8192]
BLOCKS = [(64, 64), (48, 80)]
comm = MPI.COMM_WORLD
rank = comm.Get_rank()


def quarters_to_rows(n, a, b):
    """MPI's own way: subarrays of the elements that each pair of ranks shares."""
    half, quarter = n // 2, n // 4
    counts, types = [[], []], [[], []]
    for peer in range(4):
        for end, (source, target) in enumerate([(rank, peer), (peer, rank)]):
            first, column = source // 2 * half, source % 2 * half
            low, high = max(first, target * quarter), min(first + half, (target + 1) * quarter)
            shape, start = [half, half], [low - first, 0]
            if end == 1:
                shape, start = [quarter, n], [low - target * quarter, column]
            kind = MPI.BYTE
            if low < high:
                kind = MPI.DOUBLE.Create_subarray(shape, [high - low, half], start).Commit()
            counts[end].append(int(low < high))
            types[end].append(kind)
    return [a, counts[0], [0] * 4, types[0]], [b, counts[1], [0] * 4, types[1]]


def case(name, n, src, dst, rounds):
    a, b = np.random.random(src.local_shape(rank)), np.zeros(dst.local_shape(rank))
    began = time.perf_counter()
    plan = lb.plan(src, dst, a.dtype, comm)
    planned = time.perf_counter() - began
    ways, persistent = {"ours": lambda: plan.run(a, into=b)}, None
    if name == "quarters to rows":
        send, receive = quarters_to_rows(n, a, b)
        ways["alltoallw"] = lambda: comm.Alltoallw(send, receive)
        if hasattr(comm, "Alltoallw_init"):
            persistent = comm.Alltoallw_init(send, receive)

            def again():
                persistent.Start()
                persistent.Wait()

            ways["alltoallw_init"] = again
    repeats = max(3, min(200, 3 * 4096 * 4096 // (n * n)))
    for way in ways.values():
        way()
    seconds = {way: [] for way in ways}
    for _ in range(rounds):
        for way, work in ways.items():
            seconds[way].append(timed(work, repeats))
    if persistent is not None:
        persistent.Free()
    if rank == 0:
        line = {"case": name, "n": n, "ms": {way: [1e3 * each for each in times] for way, times in seconds.items()}}
        print(json.dumps({**line, "plan_ms": 1e3 * planned}), flush=True)


def main():
    rounds = int(sys.argv[1])
    cases = {
        "quarters to rows": [[lb.Block(2), lb.Block(2)], [lb.Block(4), lb.Whole()]],
        "64 x 64 to 48 x 80": [[lb.Cyclic(2, block=high), lb.Cyclic(2, block=wide)] for high, wide in BLOCKS],
    }
    for name, axes in cases.items():
        for n in SIZES:
            case(name, n, *(lb.Layout((n, n), each) for each in axes), rounds)


if __name__ == "__main__":
    main()
