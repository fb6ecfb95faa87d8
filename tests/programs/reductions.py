"""Reductions of every length, and exchanges of all ranks with all: over communicators of every shape, with derived
datatypes and operations of the program. Every number is checked.

Prints a digest of the bits that sums of fractions have, and whether the collectives layer is loaded. With the word
`fractions` it does nothing else."""

import hashlib
import sys

import numpy as np
from mpi4py import MPI

from verify import all_checks, layers, of, require, world

digest = hashlib.sha256()


def sums(comm, size, name):
    own, expected = of(comm.rank, size), sum(of(source, size) for source in range(comm.size))
    for to in range(comm.size):
        result = np.full(size, -1, np.int64)
        comm.Reduce(own, result, MPI.SUM, to)
        here = expected if comm.rank == to else np.full(size, -1)
        require(np.array_equal(result, here), f"{name}: reduce of {size} to {to}")
        result = own.copy()
        is_root = comm.rank == to
        comm.Reduce(MPI.IN_PLACE if is_root else result, result if is_root else None, MPI.SUM, to)
        require(np.array_equal(result, expected if is_root else own), f"{name}: reduce of {size} to {to} in place")
    result = np.zeros(size, np.int64)
    comm.Allreduce(own, result)
    require(np.array_equal(result, expected), f"{name}: allreduce of {size}")
    require(np.array_equal(own, of(comm.rank, size)), f"{name}: allreduce of {size} leaves what it sends")
    result = own.copy()
    comm.Allreduce(MPI.IN_PLACE, result)
    require(np.array_equal(result, expected), f"{name}: allreduce of {size} in place")


def fractions(comm, size, name):
    """All ranks have the same bits."""
    result = np.zeros(size)
    comm.Allreduce(1 / (1.0 + of(comm.rank, size)), result)
    bits = comm.allgather(hashlib.sha256(result.tobytes()).digest())
    require(all(other == bits[0] for other in bits), f"{name}: bits of an allreduce of {size}")
    comm.Reduce(1 / (1.0 + of(comm.rank, size)), result, MPI.SUM, comm.size - 1)
    digest.update(bits[0] + comm.bcast(result.tobytes(), comm.size - 1))


def made_operations(comm, count, name):
    spread = MPI.INT64_T.Create_resized(0, 24).Commit()

    def add(one, other, _):
        # Of each three numbers only the first is data.
        one, other = np.frombuffer(one, np.int64), np.frombuffer(other, np.int64)
        other[::3] += one[::3]

    own, result = np.full(3 * count, -1, np.int64), np.full(3 * count, -5, np.int64)
    own[1::3] = of(comm.rank, count)
    plus = MPI.Op.Create(add, commute=True)
    comm.Allreduce([own[1:], count, spread], [result[1:], count, spread], plus)
    expected = sum(of(source, count) for source in range(comm.size))
    require(np.array_equal(result[1::3], expected), f"{name}: {count} with gaps")
    require((result[0::3] == -5).all() and (result[2::3] == -5).all(), f"{name}: gaps are left alone")
    plus.Free()
    spread.Free()

    def multiply(one, other, _):
        one, other = (np.frombuffer(data, np.int64).reshape(-1, 2, 2) for data in (one, other))
        other[:] = np.matmul(one, other) % 9973

    matrix = MPI.INT64_T.Create_contiguous(4).Commit()
    times = MPI.Op.Create(multiply, commute=False)
    matrices = [(of(source, 4 * count) % 97).reshape(-1, 2, 2) for source in range(comm.size)]
    expected = matrices[0]
    for other in matrices[1:]:
        expected = np.matmul(expected, other) % 9973
    own = matrices[comm.rank]
    for to in range(comm.size):
        result = np.zeros_like(own)
        comm.Reduce([own, count, matrix], [result, count, matrix], times, to)
        require(comm.size < 2 or comm.rank != to or np.array_equal(result, expected), f"{name}: order, reduce to {to}")
    result = np.zeros_like(own)
    comm.Allreduce([own, count, matrix], [result, count, matrix], times)
    require(comm.size < 2 or np.array_equal(result, expected), f"{name}: the order of ranks in an allreduce of {count}")
    times.Free()
    matrix.Free()


def all_to_all(comm, size, name):
    ranks = comm.size
    out = np.array([of(comm.rank * ranks + to, size) for to in range(ranks)]).reshape(ranks, size)
    expected = np.array([of(source * ranks + comm.rank, size) for source in range(ranks)]).reshape(ranks, size)
    into = np.zeros((ranks, size), np.int64)
    comm.Alltoall(out, into)
    require(np.array_equal(into, expected), f"{name}: alltoall of {size}")
    kept = out.copy()
    comm.Alltoall(MPI.IN_PLACE, kept)
    require(np.array_equal(kept, expected), f"{name}: alltoall of {size} in place")
    if not size:
        return
    spaced = MPI.INT64_T.Create_vector(size, 1, 2).Create_resized(0, 16 * size).Commit()
    wide = np.full((ranks, size, 2), -1, np.int64)
    comm.Alltoall([out, size, MPI.INT64_T], [wide, 1, spaced])
    require(np.array_equal(wide[:, :, 0], expected) and (wide[:, :, 1] == -1).all(), f"{name}: alltoall with gaps")
    spaced.Free()


def everything():
    mixed = world.Split(0, (world.rank * 7 + 3) % world.size * 10 + world.rank % 2)
    halves = world.Split(world.rank % 2, -world.rank)
    for comm, name in ((world, "world"), (mixed, "mixed"), (halves, "halves")):
        for size in (1, 1, 1000, 8191, 8192, 20_011, 300_007):
            sums(comm, size, name)
            fractions(comm, size, name)
        for size in (1, 500, 6000):
            made_operations(comm, size, name)
        for size in (0, 1, 1, 33, 3000, 20_011):
            all_to_all(comm, size, name)
    for comm in (mixed, halves):
        comm.Free()


if sys.argv[1:] == ["fractions"]:
    for length in (1, 1, 1000, 8191, 8192, 20_011, 300_007):
        fractions(world, length, "world")
else:
    everything()
everyone = all_checks()
loaded = layers()
if world.rank == 0:
    print(f"layer: {all(loaded)}")
    print(f"digest: {digest.hexdigest()}")
    print(f"reductions: {everyone} checks good")
