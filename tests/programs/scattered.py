#!/usr/bin/env python3
"""Arrays whose elements are anywhere on either side, between two programs.

scattered.py NAME@SITE SIDE      side 0 exports, side 1 fetches"""

import sys
import time
import traceback

import numpy as np
from mpi4py import MPI

import landbridge as lb

comm = MPI.COMM_WORLD
SHAPE, SIDE = (37, 29), int(sys.argv[2])
COUNT = SHAPE[0] * SHAPE[1]


def whole(version):
    return np.arange(COUNT, dtype="f8").reshape(SHAPE) * version


def runs(numbers):
    """Runs of elements with these numbers, in this order."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(run[0]), len(run)) for run in np.split(numbers, cuts) if len(run)]


def dealt(seed, processes):
    """All elements, dealt out at random to this many processes in runs; the numbers of this rank's."""
    chance = np.random.default_rng(seed)
    owners = np.repeat(chance.integers(processes, size=COUNT // 4 + 1), 4)[:COUNT]
    return chance.permutation(np.flatnonzero(owners == comm.rank)), owners


def scattered(numbers, processes=None):
    return lb.Runs(SHAPE, processes or comm.size, runs(numbers))


class Owned:
    """A layout of a program's own."""

    shape = SHAPE

    def __init__(self, owners, size):
        self.owners, self.size = owners, size

    def owner(self, index):
        return int(self.owners[np.ravel_multi_index(index, SHAPE)])

    def runs(self, rank):
        return runs(np.flatnonzero(self.owners == rank))


def fails(text, call):
    try:
        call()
    except lb.PlanError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{text}: it was taken")


def exports(coupling):
    def send(name, version, numbers, layout):
        a = None if comm.rank >= layout.size else whole(version).reshape(-1)[numbers]
        coupling.export(name, a, layout, version=version, dtype="f8")

    for version in (1, 2):
        numbers, _ = dealt(version, comm.size)
        send("v", version, numbers, scattered(numbers))
    # The last rank has none.
    numbers, owners = dealt(3, comm.size - 1)
    send("v", 3, np.sort(numbers), Owned(owners, comm.size - 1))
    rows = lb.Layout(SHAPE, [lb.Block(comm.size), lb.Whole()])
    coupling.export("w", np.array_split(whole(1), [13, 26])[comm.rank], rows)

    holes = np.arange(comm.rank, COUNT - 1, comm.size)
    fails("is owned by nobody", lambda: send("holes", 1, holes, scattered(holes)))
    twice = np.arange(COUNT)
    fails("is owned by process", lambda: send("twice", 1, twice, scattered(twice)))
    beyond = np.array([COUNT])
    fails(f"elements {COUNT} to {COUNT}", lambda: coupling.export("b", np.zeros(1), scattered(beyond)))
    fails("a has shape", lambda: coupling.export("c", np.zeros(1), scattered(twice)))
    mixed = rows if comm.rank == 0 else scattered(twice)
    part = np.zeros((13, SHAPE[1])) if comm.rank == 0 else np.zeros(COUNT)
    fails(
        "ranks want different things: rank 0 export 'm', version 0, Layout", lambda: coupling.export("m", part, mixed)
    )
    time.sleep(1)
    numbers, _ = dealt(4, comm.size)
    send("late", 4, numbers, scattered(numbers))
    coupling.fetch("over", lb.Layout((1,), [lb.Whole()]))


def fetches(coupling):
    columns = lb.Layout(SHAPE, [lb.Whole(), lb.Cyclic(comm.size, block=3)])
    own = [at for at in range(SHAPE[1]) if at // 3 % comm.size == comm.rank]
    assert (coupling.fetch("v", columns, version=1) == whole(1)[:, own]).all()
    # Some elements, and some of them for several ranks, or twice.
    wanted = np.random.default_rng(comm.rank).integers(COUNT, size=100 * (comm.rank % 3))
    got = coupling.fetch("v", scattered(wanted), version=2)
    assert got.shape == wanted.shape and (got == whole(2).reshape(-1)[wanted]).all()
    fetching = coupling.start_fetch("v", scattered(wanted), version=3)
    while not fetching.test():
        time.sleep(0.01)
    assert (fetching.wait() == whole(3).reshape(-1)[wanted]).all()
    into = np.full(2 * len(wanted), 7, "f4")[::2]
    got = coupling.fetch("w", scattered(wanted), into=into)
    assert got is into and (into == whole(1).reshape(-1)[wanted]).all()

    text = "ranks want different things: rank 0 fetch 'w', version 1, Runs((37, 29), 4)"
    fails(text, lambda: coupling.fetch("w", columns if comm.rank else scattered(wanted), version=1))
    fails("it must be a Layout", lambda: coupling.fetch("w", scattered(wanted), version=1, select=(0, 0)))
    fails(
        "is exported with shape (37, 29), layout has shape (5,)",
        lambda: coupling.fetch("w", lb.Runs((5,), comm.size, [(0, 5)]), version=1),
    )
    # The first two give up too early, unless this machine is so slow that it is there already.
    for timeout in (0.1, 0.1, 30):
        try:
            got = coupling.fetch("late", scattered(wanted), version=4, timeout=timeout)
            break
        except TimeoutError:
            assert timeout == 0.1
    assert (got == whole(4).reshape(-1)[wanted]).all()
    coupling.export("over", np.zeros(1) if comm.rank == 0 else None, lb.Layout((1,), [lb.Whole()]), dtype="f8")


try:
    with lb.join(sys.argv[1], comm, timeout=60) as coupling:
        (fetches if SIDE else exports)(coupling)
    print(f"rank {comm.rank} of side {SIDE}: good")
except Exception:
    # The other ranks wait for this one.
    traceback.print_exc()
    comm.Abort(1)
