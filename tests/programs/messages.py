"""Every rank sends every rank (itself included) messages of many sizes; content, length and order are checked.

messages.py [ROUNDS] [SEED]
"""

import sys

import numpy as np
from mpi4py import MPI

SIZES = [0, 1, 7, 64, 1023, 4096, 16384, 16385, 65536, 300_001, 1_500_000]


def payload(seed, source, target, number, size):
    words = np.random.default_rng([seed, source, target, number]).integers(0, 1 << 64, size // 8 + 1, dtype=np.uint64)
    return words.view(np.uint8)[:size]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 22
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    comm = MPI.COMM_WORLD
    rank, ranks = comm.rank, comm.size
    for first in range(0, rounds, 11):  # eleven messages to everybody at once
        numbers = range(first, min(first + 11, rounds))
        sends, kept = [], []
        for number in numbers:
            for step in range(ranks):
                target = (rank + step) % ranks
                data = payload(seed, rank, target, number, SIZES[(number + rank + target) % len(SIZES)])
                kept.append(data)
                sends.append(comm.Isend(data, target, tag=5))  # one tag: only the order distinguishes them
        for number in numbers:
            for step in range(ranks):
                source = (rank - step) % ranks
                expected = payload(seed, source, rank, number, SIZES[(number + rank + source) % len(SIZES)])
                buffer = np.full(max(SIZES), 0xEE, dtype=np.uint8)
                status = MPI.Status()
                comm.Recv(buffer, source, tag=5, status=status)
                where = f"rank {rank}: message {number} from rank {source} (seed {seed})"
                if status.Get_count(MPI.BYTE) != expected.size:
                    sys.exit(f"{where}: {status.Get_count(MPI.BYTE)} bytes, expected {expected.size}")
                if not np.array_equal(buffer[: expected.size], expected):
                    sys.exit(f"{where}: wrong content")
                if buffer[expected.size :].size and not (buffer[expected.size :] == 0xEE).all():
                    sys.exit(f"{where}: wrote beyond its end")
        MPI.Request.Waitall(sends)
    total = comm.allreduce(rounds * ranks, MPI.SUM)
    if rank == 0:
        print(f"messages: {total} good")


main()
