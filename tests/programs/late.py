"""Broadcasts that begin before their receivers call them. Every byte is checked.

late.py FILE: the others wait for the file FILE, which rank 0 creates once it has returned from its first broadcast.
"""

import os
import random
import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
ends = time.monotonic() + 60


def of(turn, size):
    return (np.arange(size, dtype=np.uint64) * 2654435761 + turn * 40503 >> 7).astype(np.uint8)


def broadcast(turn, size, root):
    data = of(turn, size) if comm.rank == root else np.zeros(size, np.uint8)
    comm.Bcast(data, root)
    assert np.array_equal(data, of(turn, size)), f"turn {turn}: {size} bytes from {root}"


# The plan of a communicator is made by all ranks together.
broadcast(0, 100_000, 0)
comm.Barrier()
if comm.rank != 0:
    while not os.path.exists(sys.argv[1]):
        assert time.monotonic() < ends, "rank 0 waits for its receivers"
        time.sleep(0.01)
broadcast(1, 4000, 0)
if comm.rank == 0:
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("returned\n")
# More than a receiver has room for, from changing roots, to receivers that are late now and then.
same, own = random.Random(1), random.Random(comm.rank)
for turn in range(2, 60):
    if own.random() < 0.2:
        time.sleep(own.random() * 0.1)
    broadcast(turn, same.choice([1, 3000, 40_000, 100_000, 700_000]), same.randrange(comm.size))
    if same.random() < 0.1:
        assert comm.allreduce(turn) == turn * comm.size
if comm.rank == 0:
    print("late receivers good")
