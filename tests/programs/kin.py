"""Barrier, reductions, gathers and scatters over communicators of every shape, compared with numpy's results."""

import time

import numpy as np
from mpi4py import MPI

from verify import all_checks, layers, of, require, world


def barrier(comm, name):
    """Nobody leaves before the last one has come: all ranks are on one machine, so they have one clock."""
    for late in range(0, comm.size, max(1, comm.size // 3)):
        comm.Barrier()
        if comm.rank == late:
            time.sleep(0.1)
        came = time.monotonic()
        comm.Barrier()
        left = time.monotonic()
        require(left >= comm.bcast(came, late), f"{name}: barrier with {late} late")


def reductions(comm, size, name):
    ranks = comm.size
    everyone = np.array([of(source, size) for source in range(ranks)])
    for operation, combine in ((MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.BXOR, np.bitwise_xor)):
        expected = combine.reduce(everyone)
        result = np.zeros(size, np.int64)
        comm.Allreduce(of(comm.rank, size), result, operation)
        require(np.array_equal(result, expected), f"{name}: allreduce of {size}")
        for root in range(ranks):
            result = np.full(size, -1, np.int64)
            comm.Reduce(of(comm.rank, size), result, operation, root)
            here = expected if comm.rank == root else np.full(size, -1)
            require(np.array_equal(result, here), f"{name}: reduce of {size} to {root}")
    total = everyone.sum(0)
    result = of(comm.rank, size)
    comm.Allreduce(MPI.IN_PLACE, result)
    require(np.array_equal(result, total), f"{name}: allreduce of {size} in place")
    root = ranks // 2
    result = of(comm.rank, size)
    comm.Reduce(MPI.IN_PLACE if comm.rank == root else result, result if comm.rank == root else None, MPI.SUM, root)
    require(comm.rank != root or np.array_equal(result, total), f"{name}: reduce of {size} in place")
    # Every rank has the same bits.
    fractions = np.zeros(size)
    comm.Allreduce(1 / (1.0 + of(comm.rank, size)), fractions)
    bits = comm.allgather(fractions.tobytes())
    require(all(other == bits[0] for other in bits), f"{name}: bits of an allreduce of {size}")
    require(np.allclose(fractions, (1 / (1.0 + everyone)).sum(0)), f"{name}: fractions of {size}")
    pairs = np.zeros(2, np.int32)
    own = np.array([comm.rank * 5 % ranks, comm.rank], np.int32)
    comm.Allreduce([own, MPI.TWOINT], [pairs, MPI.TWOINT], MPI.MAXLOC)
    require(pairs[0] == max(r * 5 % ranks for r in range(ranks)), f"{name}: the largest and its place")


def made_operations(comm, name):
    """Operations of the program: one that may be reordered, on a datatype with gaps, and one that must not."""
    count = 3000
    spaced = MPI.INT64_T.Create_resized(0, 24).Commit()

    def add(one, other, _):
        # Of each three numbers only the first is data.
        one, other = np.frombuffer(one, np.int64), np.frombuffer(other, np.int64)
        other[::3] += one[::3]

    own = np.full(3 * count, -1, np.int64)
    own[::3] = of(comm.rank, count)
    result = np.full(3 * count, -5, np.int64)
    operation = MPI.Op.Create(add, commute=True)
    comm.Allreduce([own, count, spaced], [result, count, spaced], operation)
    expected = sum(of(source, count) for source in range(comm.size))
    require(np.array_equal(result[::3], expected), f"{name}: data with gaps")
    require((result[1::3] == -5).all() and (result[2::3] == -5).all(), f"{name}: gaps are left alone")
    operation.Free()
    spaced.Free()

    def multiply(one, other, _):
        one, other = (np.frombuffer(data, np.int64).reshape(-1, 2, 2) for data in (one, other))
        other[:] = np.matmul(one, other) % 9973

    matrix = MPI.INT64_T.Create_contiguous(4).Commit()
    own = (of(comm.rank, 4 * 50) % 97).reshape(-1, 2, 2)
    expected = (of(0, 200) % 97).reshape(-1, 2, 2)
    for source in range(1, comm.size):
        expected = np.matmul(expected, (of(source, 200) % 97).reshape(-1, 2, 2)) % 9973
    operation = MPI.Op.Create(multiply, commute=False)
    result = np.zeros_like(own)
    for _ in range(3):
        comm.Allreduce([own, 50, matrix], [result, 50, matrix], operation)
        require(comm.size < 2 or np.array_equal(result, expected), f"{name}: the order of ranks")
    operation.Free()
    matrix.Free()


def blocks(comm, size, name):
    ranks = comm.size
    everyone = np.array([of(source, size) for source in range(ranks)]).reshape(ranks, size)
    gathered = np.zeros((ranks, size), np.int64)
    comm.Allgather(of(comm.rank, size), gathered)
    require(np.array_equal(gathered, everyone), f"{name}: allgather of {size}")
    gathered = np.zeros((ranks, size), np.int64)
    gathered[comm.rank] = of(comm.rank, size)
    comm.Allgather(MPI.IN_PLACE, gathered)
    require(np.array_equal(gathered, everyone), f"{name}: allgather of {size} in place")
    # Every second number is data where it arrives.
    spaced = MPI.INT64_T.Create_vector(max(size, 1), 1, 2).Create_resized(0, 16 * max(size, 1)).Commit()
    if size:
        gathered = np.full((ranks, size, 2), -1, np.int64)
        comm.Allgather([of(comm.rank, size), size, MPI.INT64_T], [gathered, 1, spaced])
        good = np.array_equal(gathered[:, :, 0], everyone) and (gathered[:, :, 1] == -1).all()
        require(good, f"{name}: allgather of {size} with gaps")
    for root in range(ranks):
        is_root = comm.rank == root
        gathered = np.zeros((ranks, size), np.int64) if is_root else None
        comm.Gather(of(comm.rank, size), gathered, root)
        require(not is_root or np.array_equal(gathered, everyone), f"{name}: gather of {size} to {root}")
        if is_root:
            gathered = np.zeros((ranks, size), np.int64)
            gathered[root] = of(root, size)
        comm.Gather(MPI.IN_PLACE if is_root else of(comm.rank, size), gathered, root)
        require(not is_root or np.array_equal(gathered, everyone), f"{name}: gather of {size} to {root} in place")
        part = np.zeros(size, np.int64)
        comm.Scatter(everyone if is_root else None, part, root)
        require(np.array_equal(part, everyone[comm.rank]), f"{name}: scatter of {size} from {root}")
        part = np.zeros(size, np.int64)
        comm.Scatter(everyone if is_root else None, MPI.IN_PLACE if is_root else part, root)
        require(is_root or np.array_equal(part, everyone[comm.rank]), f"{name}: scatter of {size} from {root} in place")
        if size:
            data = np.full((ranks, size, 2), -1, np.int64)
            data[:, :, 0] = everyone
            comm.Scatter([data, 1, spaced] if is_root else None, [part, size, MPI.INT64_T], root)
            require(np.array_equal(part, everyone[comm.rank]), f"{name}: scatter of {size} with gaps from {root}")
    spaced.Free()


mixed = world.Split(0, (world.rank * 7 + 3) % world.size * 10 + world.rank % 2)
halves = world.Split(world.rank % 2, -world.rank)
for comm, name in ((world, "world"), (mixed, "mixed"), (halves, "halves")):
    barrier(comm, name)
    for size in (0, 1, 100, 2000, 20_000, 70_001):
        reductions(comm, size, name)
        blocks(comm, size, name)
    made_operations(comm, name)
for comm in (mixed, halves):
    comm.Free()
everyone = all_checks()
loaded = layers()
if world.rank == 0:
    print(f"layer: {all(loaded)}")
    print(f"kin: {everyone} checks good")
