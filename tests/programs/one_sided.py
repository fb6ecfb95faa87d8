"""Put, get, accumulate, fetch-and-op and compare-and-swap between all ranks, under fence, lock and lock-all."""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size


def require(good, what):
    if not good:
        print(f"rank {rank}: {what} is wrong", file=sys.stderr)
        comm.Abort(1)


def row(source, target, size):
    return (np.arange(size, dtype=np.int64) + 1000 * source + 100_000 * target).astype(np.int64)


for size in (1, 500, 40_000):
    window = MPI.Win.Allocate(8 * size * ranks, 8, comm=comm)
    memory = np.frombuffer(window.tomemory(), dtype=np.int64).reshape(ranks, size)
    memory[:] = -1
    window.Fence()
    kept = [row(rank, target, size) for target in range(ranks)]
    for target in range(ranks):  # my row in everybody's window
        window.Put(kept[target], target, (rank * size, size, MPI.LONG))
    window.Fence()
    require(all(np.array_equal(memory[n], row(n, rank, size)) for n in range(ranks)), f"put of {size}")

    window.Fence()
    neighbour = (rank + 1) % ranks
    got = np.zeros((ranks, size), dtype=np.int64)
    window.Get(got, neighbour, (0, ranks * size, MPI.LONG))
    window.Fence()
    require(all(np.array_equal(got[n], row(n, neighbour, size)) for n in range(ranks)), f"get of {size}")

    memory[:] = 0
    comm.Barrier()
    window.Lock_all()
    added = np.full(size, rank + 1, dtype=np.int64)
    for target in range(ranks):
        window.Accumulate(added, target, (0, size, MPI.LONG), MPI.SUM)
    window.Flush_all()
    window.Unlock_all()
    comm.Barrier()
    window.Lock(rank)
    require((memory[0] == ranks * (ranks + 1) // 2).all(), f"accumulate of {size}")
    window.Unlock(rank)
    comm.Barrier()
    window.Free()

window = MPI.Win.Allocate(16 if rank == 0 else 0, 8, comm=comm)
if rank == 0:
    np.frombuffer(window.tomemory(), dtype=np.int64)[:] = 0
comm.Barrier()
ROUNDS = 50
drawn = []
result = np.zeros(1, dtype=np.int64)
for _ in range(ROUNDS):
    window.Lock(0, MPI.LOCK_SHARED)
    window.Fetch_and_op(np.ones(1, dtype=np.int64), result, 0, 0, MPI.SUM)
    window.Unlock(0)
    drawn.append(int(result[0]))
tickets = sorted(ticket for several in comm.allgather(drawn) for ticket in several)
require(tickets == list(range(ROUNDS * ranks)), "fetch-and-op (a ticket was drawn twice or never)")

for _ in range(5):  # a lock made of compare-and-swap guards a plain read-modify-write of the second word
    free, mine = np.full(1, ROUNDS * ranks, dtype=np.int64), np.full(1, -1 - rank, dtype=np.int64)
    while True:
        window.Lock(0, MPI.LOCK_SHARED)
        window.Compare_and_swap(mine, free, result, 0, 0)
        window.Unlock(0)
        if result[0] == free[0]:
            break
    value = np.zeros(1, dtype=np.int64)
    window.Lock(0, MPI.LOCK_SHARED)
    window.Get(value, 0, (1, 1, MPI.LONG))
    window.Flush(0)
    value += 1
    window.Put(value, 0, (1, 1, MPI.LONG))
    window.Flush(0)
    window.Accumulate(free, 0, (0, 1, MPI.LONG), MPI.REPLACE)
    window.Unlock(0)
comm.Barrier()
if rank == 0:
    window.Lock(0)
    require(int(np.frombuffer(window.tomemory(), dtype=np.int64)[1]) == 5 * ranks, "compare-and-swap")
    window.Unlock(0)
comm.Barrier()
window.Free()
if rank == 0:
    print(f"one-sided: {ranks} ranks good")
