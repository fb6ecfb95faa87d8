"""Collectives over all ranks, compared with numpy's results."""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size


def require(good, what):
    if not good:
        print(f"rank {rank}: {what} is wrong", file=sys.stderr)
        comm.Abort(1)


def of(source, size):
    return (np.arange(size, dtype=np.int64) * 31 + source * 1009) % 100_003


for size in (0, 1, 100, 4096, 20_000):
    everyone = [of(source, size) for source in range(ranks)]
    result = np.zeros(size, dtype=np.int64)
    comm.Allreduce(of(rank, size), result)
    require(np.array_equal(result, sum(everyone)), f"allreduce of {size}")
    for root in (0, ranks - 1):
        data = of(root, size) if rank == root else np.zeros(size, dtype=np.int64)
        comm.Bcast(data, root)
        require(np.array_equal(data, everyone[root]), f"bcast of {size} from {root}")
    gathered = np.zeros((ranks, size), dtype=np.int64)
    comm.Allgather(of(rank, size), gathered)
    require(np.array_equal(gathered, np.array(everyone).reshape(ranks, size)), f"allgather of {size}")
    sent = np.array([of(rank * ranks + target, size) for target in range(ranks)]).reshape(ranks, size)
    received = np.zeros((ranks, size), dtype=np.int64)
    comm.Alltoall(sent, received)
    expected = np.array([of(source * ranks + rank, size) for source in range(ranks)]).reshape(ranks, size)
    require(np.array_equal(received, expected), f"alltoall of {size}")
    comm.Barrier()

halves = comm.Split(rank % 2, -rank)  # a communicator in reverse order
require(halves.allgather(rank) == [n for n in reversed(range(ranks)) if n % 2 == rank % 2], "split")
halves.Free()
if rank == 0:
    print(f"collectives: {ranks} ranks good")
