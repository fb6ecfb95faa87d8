"""MPI_Bcast from every root: sizes, datatypes, communicators of every shape. Every byte is checked.

Prints whether the collectives layer is loaded: `layer: True`."""

import sys
import threading

import numpy as np
from mpi4py import MPI

from verify import all_checks, layers, require, world

rank, ranks = world.rank, world.size


def of(seed, size):
    return ((np.arange(size, dtype=np.uint64) * 2654435761 + seed * 40503) >> 7).astype(np.uint8)


def plain(comm, size, root, name):
    data = of(root, size) if comm.rank == root else np.zeros(size, np.uint8)
    comm.Bcast(data, root)
    require(np.array_equal(data, of(root, size)), f"{name}: {size} bytes from {root}")


def derived(comm, root):
    """Types whose memory differs from the bytes that MPI sends: gaps, another order, absolute addresses."""
    count = 30_000
    gaps = MPI.INT32_T.Create_vector(count, 2, 3).Commit()
    values = of(root, count * 8).view(np.int32).reshape(count, 2)
    data = np.full((count, 3), -1, np.int32)
    if comm.rank == root:
        data[:, :2] = values
    comm.Bcast([data, 1, gaps], root)
    require(np.array_equal(data[:, :2], values) and (data[:-1, 2] == -1).all(), f"gaps from {root}")

    # The root's elements are swapped pairs; everybody else receives plain integers.
    swapped = MPI.INT32_T.Create_indexed([1, 1], [1, 0]).Commit()
    pairs = values.copy() if comm.rank == root else np.zeros_like(values)
    comm.Bcast([pairs, count, swapped] if comm.rank == root else [pairs, 2 * count, MPI.INT32_T], root)
    require(np.array_equal(pairs, values if comm.rank == root else values[:, ::-1]), f"swapped from {root}")

    target = values.copy() if comm.rank == root else np.zeros_like(values)
    absolute = MPI.INT32_T.Create_hindexed([2 * count], [MPI.Get_address(target)]).Commit()
    comm.Bcast([MPI.BOTTOM, 1, absolute], root)
    require(np.array_equal(target, values), f"absolute addresses from {root}")

    wrapped = MPI.INT32_T.Create_contiguous(2).Dup().Commit()
    target = values.copy() if comm.rank == root else np.zeros_like(values)
    comm.Bcast([target, count, wrapped], root)
    require(np.array_equal(target, values), f"contiguous of two from {root}")
    for datatype in (gaps, swapped, absolute, wrapped):
        datatype.Free()


def main(most):
    sizes = [size for size in (0, 1, 8, 4095, 4096, 4097, 65_535, 100_003, 1 << 20, (8 << 20) + 1) if size <= most]
    for size in sizes:
        for root in range(ranks):
            plain(world, size, root, "world")
    for root in range(ranks):
        derived(world, root)
    # Ranks of a communicator in an order that has nothing to do with their sites.
    mixed = world.Split(0, (rank * 7 + 3) % ranks * 10 + rank % 2)
    halves = world.Split(rank % 2, -rank)
    lonely = world.Split(rank, 0)
    for comm, name in ((mixed, "mixed"), (halves, "halves"), (lonely, "alone")):
        for size in (5000, 300_000):
            for root in range(comm.size):
                plain(comm, size, root, name)
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        comms = [world.Dup() for _ in range(3)]
        work = [threading.Thread(target=several, args=(comm, number)) for number, comm in enumerate(comms)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        for comm in comms:
            comm.Free()
    for comm in (mixed, halves, lonely):
        comm.Free()
    everyone = all_checks()
    loaded = layers()
    if rank == 0:
        print(f"layer: {all(loaded)}" if all(loaded) == any(loaded) else f"layer: mixed {loaded}")
        print(f"broadcast: {everyone} checks good")


def several(comm, number):
    for turn in range(12):
        plain(comm, 40_000 + 1000 * number, (turn + number) % comm.size, f"thread {number}")


def churn(times):
    """Communicators made and freed by the thousand, some of them used enough to get a plan."""
    for turn in range(times):
        comm = world.Dup()
        plain(comm, 64, turn % ranks, "duplicate")
        if turn % 25 == 0:
            plain(comm, 40_000, turn % ranks, "duplicate")
        comm.Free()
    kept = [world.Dup() for _ in range(150)]  # more than may have plans
    for comm in kept:
        plain(comm, 40_000, 1, "one of many")
    for comm in kept:
        plain(comm, 50_000, 0, "one of many")
        comm.Free()
    plain(world, 300_000, 0, "after all")
    if all_checks() and rank == 0:
        print(f"broadcast: {times} communicators good")


if sys.argv[1] == "churn":
    churn(int(sys.argv[2]))
else:
    main(int(sys.argv[1]))
