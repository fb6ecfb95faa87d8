"""Traffic of one kind between all ranks, in rounds, until FILE exists; every byte that arrives is checked.

checked.py STARTED FILE KIND SEED: rank 0 makes STARTED once the first round is over. KIND is
  stream       the first half of the ranks sends long messages to the second half, and nothing goes back meanwhile
  exchange     each rank exchanges messages of many lengths with each other
  collectives  allreduce, alltoall and broadcasts of several lengths
  broadcasts   long ones, from a rank of each site in turn
  onesided     each rank puts into every other's window, and gets it back
"""

import os
import sys

import numpy as np
from mpi4py import MPI

started, stop, kind, seed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
others = [other for other in range(size) if other != rank]
LONGEST = 4 << 20
# Slices of it make every message of a round different.
BASE = np.random.default_rng(seed).integers(0, 256, LONGEST + 65_536, dtype=np.uint8)


def content(source, target, turn, length):
    at = (source * 8191 + target * 1021 + turn * 127) % 65_536
    return BASE[at : at + length]


def check(data, source, target, turn, what):
    if not np.array_equal(data, content(source, target, turn, len(data))):
        sys.stderr.write(f"WRONG BYTES: rank {rank}, round {turn}: {what} of {len(data)} bytes from rank {source}\n")
        sys.stderr.flush()
        comm.Abort(99)


def stream(turn):
    half = size // 2
    for part in range(4):
        if rank < half:
            comm.Send(content(rank, rank + half, turn * 4 + part, LONGEST), rank + half, tag=part)
        elif rank < 2 * half:
            arrived = np.empty(LONGEST, dtype=np.uint8)
            comm.Recv(arrived, rank - half, tag=part)
            check(arrived, rank - half, rank, turn * 4 + part, "a message")


def exchange(turn):
    for length in (0, 1, 100, 5_000, 70_000, 400_000):
        arriving = {other: np.empty(length, dtype=np.uint8) for other in others}
        requests = [comm.Irecv(arriving[other], other) for other in others]
        requests += [comm.Isend(content(rank, other, turn, length), other) for other in others]
        MPI.Request.Waitall(requests)
        for other in others:
            check(arriving[other], other, rank, turn, "a message")


def collectives(turn):
    for length in (8, 3_000, 100_000):
        total = comm.allreduce(np.full(length, rank + turn, dtype=np.int64))
        if not (total == size * turn + size * (size - 1) // 2).all():
            sys.stderr.write(f"WRONG BYTES: rank {rank}, round {turn}: an allreduce of {length}\n")
            comm.Abort(99)
        arrived = np.empty(size * length, dtype=np.uint8)
        comm.Alltoall(np.concatenate([content(rank, other, turn, length) for other in range(size)]), arrived)
        for other in range(size):
            check(arrived[other * length : (other + 1) * length], other, rank, turn, "a part of an alltoall")
        root = turn % size
        data = content(root, 0, turn, length).copy() if rank == root else np.empty(length, dtype=np.uint8)
        comm.Bcast(data, root)
        check(data, root, 0, turn, "a broadcast")


def broadcasts(turn):
    for part, length in enumerate((300_000, 1_000_003, LONGEST)):
        root = (turn * 3 + part) * 5 % size
        data = content(root, 0, turn, length).copy() if rank == root else np.empty(length, dtype=np.uint8)
        comm.Bcast(data, root)
        check(data, root, 0, turn, "a broadcast")


SLOT = 50_000
if kind == "onesided":
    window = MPI.Win.Allocate(size * SLOT, 1, comm=comm)
    memory = np.frombuffer(window.tomemory(), dtype=np.uint8)


def onesided(turn):
    window.Fence()
    for other in others:
        window.Put([content(rank, other, turn, SLOT), MPI.BYTE], other, [rank * SLOT, SLOT, MPI.BYTE])
    window.Fence(MPI.MODE_NOSUCCEED)
    for other in others:
        check(memory[other * SLOT : (other + 1) * SLOT], other, rank, turn, "a put")
    arrived = np.empty(SLOT, dtype=np.uint8)
    for other in others:
        window.Lock(other, MPI.LOCK_SHARED)
        window.Get([arrived, MPI.BYTE], other, [rank * SLOT, SLOT, MPI.BYTE])
        window.Unlock(other)
        check(arrived, rank, other, turn, "a get")


KINDS = {made.__name__: made for made in (stream, exchange, collectives, broadcasts, onesided)}
turn = 0
while True:
    KINDS[kind](turn)
    turn += 1
    if rank == 0 and turn == 1:
        with open(started, "w", encoding="utf-8") as file:
            file.write("started\n")
    if comm.bcast(os.path.exists(stop) if rank == 0 else None):
        break
if kind == "onesided":
    window.Free()
rounds = comm.allreduce(turn)
if rank == 0:
    print(f"checked: {rounds // size} rounds exact on {size} ranks", flush=True)
