#!/usr/bin/env python3
"""Redistributions that cannot be: each must raise the same error on all ranks, which names what is wrong.

For three ranks."""

import time

import numpy as np
from mpi4py import MPI

import landbridge as lb

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
rows = lb.Layout((6, 4), [lb.Block(3), lb.Whole()])
columns = lb.Layout((6, 4), [lb.Whole(), lb.Block(2)])


def part(dtype="f8", layout=rows):
    return np.zeros(layout.local_shape(rank), dtype) if rank < layout.size else None


def wanted_elsewhere():
    """One rank wants something else."""
    target = lb.Layout((6, 4), [lb.Whole(), lb.Cyclic(2)]) if rank == 1 else columns
    return lb.redistribute(part(), rows, target, comm)


def runs(*own, size=3):
    return lb.Runs((6, 4), size, own)


class Metres(np.ndarray):
    """An array with a unit, as a subclass of NumPy's."""


class Quantity:
    """An array with a unit, as pint wraps it."""

    units = "metre"

    def __init__(self, magnitude):
        self.magnitude = magnitude

    def __array__(self, dtype=None, copy=None):
        return self.magnitude


def masked(masks=True):
    """Land on rank 1."""
    found = np.ma.MaskedArray(part())
    if masks and rank == 1:
        found[0, 0] = np.ma.masked
    return found


def columns_part(make=np.zeros):
    return make((6, 2)) if rank < 2 else None


def in_metres(shape):
    return np.zeros(shape).view(Metres)


def strided(shape, strides):
    return np.lib.stride_tricks.as_strided(np.zeros(64), shape, strides)


class Owned:
    """A layout of its own whose two answers differ."""

    shape, size = (6, 4), 3

    def runs(self, rank):
        return [(8 * rank, 8)]

    def owner(self, index):
        return index[0] // 3


CASES = [
    (
        lambda: lb.plan(runs((8 * rank, 9 - rank)), runs((0, 24)), "f8", comm),
        "element 8 is owned by process 0 and by process 1",
    ),
    (lambda: lb.plan(runs((8 * rank, 8), (8 * rank, 1)), runs((0, 1)), "f8", comm), "is owned twice by process "),
    (lambda: lb.plan(runs((8 * rank, 7)), runs((8 * rank, 8)), "f8", comm), ", which process "),
    (lambda: lb.plan(runs((16, 9)), runs((0, 24)), "f8", comm), "elements 16 to 24: the array has 24"),
    (lambda: lb.plan(runs((8, 8), (3, -1)), runs((0, 24)), "f8", comm), "run 1 is (3, -1): it cannot be negative"),
    (
        lambda: lb.plan(runs(8, 8), runs((0, 24)), "f8", comm),
        "have shape (2,) and dtype int64: they must be whole numbers in two",
    ),
    (lambda: lb.plan(Owned(), rows, "f8", comm), "element 8, at (2, 0): process 1 has it, but owner says 0"),
    (lambda: lb.plan(rows, runs((0, 24)), "f8", comm, select=[0, 0]), "select: both must be a Layout"),
    (lambda: lb.plan(rows, lb.Runs((24,), 3, []), "f8", comm), "src has shape (6, 4), dst has (24,)"),
    (lambda: lb.plan(rows, 7, "f8", comm), "dst is 7: it must be a Layout, or have shape, size and runs"),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, into="text" if rank < 2 else None),
        "into is str: it must be an array",
    ),
    (lambda: lb.redistribute(part(), rows, columns, comm, into=b"text" if rank < 2 else None), "into is read-only"),
    (lambda: lb.redistribute(np.zeros((1, 4)), rows, columns, comm), "a has shape (1, 4): this rank's part has (2, 4)"),
    (
        lambda: lb.redistribute(part() if rank else None, rows, columns, comm),
        "a is None, but this rank is process 0 of src",
    ),
    (
        lambda: lb.redistribute(part("i4" if rank == 2 else "f8"), rows, columns, comm),
        "parts have different dtypes: rank 0 float64, rank 2 int32",
    ),
    (
        lambda: lb.redistribute(masked(), rows, columns, comm),
        "rank 1: TypeError: a is a masked array: its mask would be lost",
    ),
    (lambda: lb.redistribute(masked(), rows, runs((0, 24)), comm), "rank 1: TypeError: a is a masked array"),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, into=columns_part(np.ma.masked_all)),
        "ranks 0, 1: TypeError: into is a masked array",
    ),
    (
        lambda: lb.redistribute(part().view(Metres), rows, columns, comm),
        "ranks 0 to 2: TypeError: a is __main__.Metres, a subclass of",
    ),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, into=columns_part(in_metres)),
        "into is __main__.Metres, a subclass of numpy.ndarray",
    ),
    (
        lambda: lb.redistribute(Quantity(part()), rows, columns, comm),
        "ranks 0 to 2: TypeError: a is __main__.Quantity in metre",
    ),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, into=columns_part(lambda shape: strided(shape, (8, 0)))),
        "into has elements that share memory (shape (6, 2), strides (8, 0))",
    ),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, into=columns_part(lambda shape: strided(shape, (8, 16)))),
        "ranks 0, 1: ValueError: into has elements that share memory",
    ),
    (lambda: lb.redistribute(part("O"), rows, columns, comm), "dtype object: Python objects cannot be sent"),
    (wanted_elsewhere, "ranks want different redistributions: rank 0 "),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, dst_ranks=[0, 3]),
        "dst_ranks[1] is 3, but the communicator has 3 ranks",
    ),
    (lambda: lb.redistribute(part(), rows, columns, comm, dst_ranks=[1, 1]), "dst_ranks[1] is 1, which is named twice"),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, src_ranks=[0]),
        "src_ranks names 1 ranks, but the layout is for 3 processes",
    ),
    (
        lambda: lb.redistribute(part(), rows, lb.Layout((6, 4), [lb.Block(4), lb.Whole()]), comm),
        "dst_ranks: the layout is for 4 processes, but the communicator has 3 ranks",
    ),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, select=[slice(0, 5), slice(None)]),
        "axis 0 of what is selected: 5 positions in the source, 6 in the target",
    ),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, select=[7, slice(None)]),
        "source, axis 0: index 7 is selected",
    ),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, into=np.zeros((6, 2), "i8") if rank < 2 else None),
        "into has dtype int64: float64 does not cast to it (same_kind)",
    ),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, into=np.broadcast_to(0.0, (6, 2)) if rank < 2 else None),
        "into is read-only",
    ),
]

for attempt, text in CASES:
    try:
        attempt()
    except lb.PlanError as error:
        said = str(error)
    else:
        said = "no error"
    told = comm.allgather(said)
    if any(each != told[0] for each in told) or text not in told[0]:
        raise SystemExit(f"wanted {text!r}, got {told}")


def says(plan, a):
    try:
        plan.run(a)
    except lb.PlanError as error:
        return str(error)
    return ""


# What went wrong in a run is not said again in another, and one that hears of it late says that it was earlier.
said = says(lb.plan(rows, columns, "f8", comm), np.zeros((1, 4)))
assert "a has shape (1, 4)" in said, said
comm.Barrier()
reason = "rank 1: ValueError: a is None, but this rank is process 1 of src: its part is (2, 4)"
said, later = says(lb.plan(rows, columns, "f8", comm), None if rank == 1 else part()), ""
assert said == reason or (rank == 2 and not said), said
plan, end = lb.plan(rows, columns, "f8", comm), time.monotonic() + 30
while not all(comm.allgather(bool(said or later))):
    assert time.monotonic() < end, (said, later)
    time.sleep(0.05)
    heard = says(plan, part())
    later = later or heard
assert later == ("" if said else f"{reason} (in an earlier run)"), (said, later)

# A mask that masks nothing is none, and axes may interlace without a place in common.
source, target = masked(masks=False), columns_part(lambda shape: strided(shape, (16, 24)))
source[...] = np.arange(24.0).reshape(6, 4)[2 * rank : 2 * rank + 2]
lb.redistribute(source, rows, columns, comm, into=target)
assert target is None or np.array_equal(target, np.arange(24.0).reshape(6, 4)[:, 2 * rank : 2 * rank + 2])

# The natural slice of a part without rows has columns; a layout may be broadcast.
few = comm.bcast(lb.Layout((2, 4), [lb.Block(3), lb.Whole()]) if rank == 0 else None)
whole = np.arange(8.0).reshape(2, 4)
for own in (whole[rank : rank + 1], whole[rank : rank + 1] if rank < 2 else np.empty((0, 0))):
    got = lb.redistribute(own, few, lb.Layout((2, 4), [lb.Whole(), lb.Block(2)]), comm)
    assert got is None if rank == 2 else np.array_equal(got, whole[:, 2 * rank : 2 * rank + 2])
back = lb.redistribute(got, lb.Layout((2, 4), [lb.Whole(), lb.Block(2)]), few, comm)
assert np.array_equal(back, whole[rank : rank + 1]) and back.shape == whole[rank : rank + 1].shape, back.shape

# Afterwards the communicator still works.
source = part()
if source is not None:
    source[...] = np.arange(24.0).reshape(6, 4)[2 * rank : 2 * rank + 2]
got = lb.redistribute(source, rows, columns, comm)
assert got is None if rank == 2 else np.array_equal(got, np.arange(24.0).reshape(6, 4)[:, 2 * rank : 2 * rank + 2])
if rank == 0:
    print("all are refused")
