#!/usr/bin/env python3
"""Random redistributions of elements that are anywhere, among the ranks of MPI_COMM_WORLD: each rank knows its own.

runs.py SEEDS [FIRST]
"""

import random
import sys

import numpy as np
from mpi4py import MPI

import landbridge as lb
from redistributions import layout, local

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def joined(chance, numbers):
    """Runs of these numbers: neighbours are in one mostly."""
    runs = []
    for number in numbers:
        if runs and sum(runs[-1]) == number and chance.random() < 0.8:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def check(seed):
    chance = random.Random(seed)
    shape = tuple(chance.choice([0, 1, 3, 8, 20]) for _ in range(chance.randint(0, 3)))
    elements = int(np.prod(shape))
    whole = np.arange(100, 100 + elements, dtype=chance.choice(["f8", "i2", "c16"]))
    order = list(range(elements))
    if chance.random() < 0.5:
        chance.shuffle(order)
    owners = [chance.randrange(size) for _ in order]
    own = [number for number in order if owners[number] == rank]
    counts = [chance.randint(0, 30) if elements else 0 for _ in range(size)]
    wanted = [[chance.randrange(elements) for _ in range(count)] for count in counts][rank]
    source, target = (lb.Runs(shape, size, joined(chance, numbers)) for numbers in (own, wanted))
    assert (lb.redistribute(whole[own], source, target, comm) == whole[wanted]).all(), seed
    # To a layout, its halos and copies too, and from there.
    chance = random.Random(seed)
    regular = layout(chance, shape, size)
    into = part = owned = None
    if rank < regular.size:
        part, owned = local(regular, rank, whole.reshape(shape), -1)
        into = np.asarray(np.full(part.shape, -1, whole.dtype), order=chance.choice("CF"))
    got = lb.redistribute(whole[own], source, regular, comm, into=into)
    assert got is into and (got is None or np.array_equal(got, part)), seed
    if part is not None:
        part[~owned] = -7
    assert (lb.redistribute(part, regular, target, comm) == whole[wanted]).all(), seed


def main():
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for seed in range(first, first + int(sys.argv[1])):
        check(seed)
    if rank == 0:
        print(f"{sys.argv[1]} redistributions of runs are right")


try:
    main()
except Exception:
    # The other ranks wait for this one.
    import traceback

    traceback.print_exc()
    comm.Abort(1)
