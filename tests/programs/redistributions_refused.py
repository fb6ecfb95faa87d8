#!/usr/bin/env python3
"""Redistributions that cannot be: each must raise the same error on all ranks, which names the fault.

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


class Textless(Exception):
    def __str__(self):
        raise RuntimeError("it has none")


class Failing:
    """A layout whose program fails in one of its three answers on one rank."""

    size = 3

    def __init__(self, where, error=KeyError):
        self.where, self.error = where, error

    def _fail(self, where):
        if rank == 2 and where == self.where:
            raise self.error("my own")

    @property
    def shape(self):
        self._fail("shape")
        return (6, 4)

    def runs(self, process):
        self._fail("runs")
        return [(8 * process, 8)]

    def owner(self, index):
        self._fail("owner")
        return index[0] // 2


class Interrupted:
    """An array whose memory is asked for just when the user types Ctrl-C."""

    def __dlpack__(self, **_options):
        raise KeyboardInterrupt

    def __dlpack_device__(self):
        return (1, 0)


def differing_lists():
    """Long lists, of which rank 1 has exchanged two indices of processes 0 and 2 in the middle."""
    n = 6000
    lists = [np.arange(process, n, 3) for process in range(3)]
    if rank == 1:
        lists[0][1000], lists[2][1000] = lists[2][1000], lists[0][1000]
    return lb.redistribute(
        np.arange(rank * 2000, rank * 2000 + 2000), lb.Layout(n, lb.Block(3)), lb.Layout(n, lb.Lists(lists)), comm
    )


# Process 1 of the target has more elements than any memory, of which few are received.
few = lb.Layout(8, lb.Block(3))
vast = lb.Layout(1 << 40, lb.Block(3, sizes=[4, (1 << 40) - 8, 4]))
beginning = lb.Select(target=[slice(0, 8)])


CASES = [
    (
        differing_lists,
        "rank 0 Layout((6000,), [Block(over=3, sizes=None, halo=0, periodic=False)]) to Layout((6000,), "
        "[Lists(3 lists of 6000 indices, hash ",
    ),
    *(
        (lambda where=where: lb.plan(Failing(where), rows, "f8", comm), "rank 2: KeyError: 'my own'")
        for where in ("shape", "runs", "owner")
    ),
    (lambda: lb.plan(rows, Failing("runs", RuntimeError), "f8", comm), "rank 2: RuntimeError: my own"),
    (lambda: lb.plan(rows, Failing("runs", MemoryError), "f8", comm), "rank 2: MemoryError: my own"),
    (
        lambda: lb.redistribute(np.zeros(few.local_shape(rank)), few, vast, comm, select=beginning),
        "rank 1: MemoryError: Unable to allocate",
    ),
    (
        lambda: lb.plan(rows, Failing("runs", Textless), "f8", comm),
        "rank 2: Textless: its text cannot be made",
    ),
    (
        lambda: lb.redistribute(part(), rows, columns, comm, into=columns_part(lambda shape: np.zeros(shape, "O"))),
        "into has dtype object: Python objects cannot be received",
    ),
    (lambda: lb.redistribute(part("V0"), rows, columns, comm), "dtype |V0: its elements have no bytes"),
    (lambda: lb.plan(rows, columns, "U0", comm), "its elements have no bytes"),
    (lambda: lb.plan(rows, columns, "f8", comm, budget=1.5), "budget is 1.5: it must be a whole number"),
    (lambda: lb.plan(rows, columns, "f8", comm, dst_ranks=[0, 1.0]), "dst_ranks[1] is 1.0: it must be a whole number"),
    (lambda: lb.plan(rows, columns, "f8", comm, src_ranks=5), "src_ranks is 5: it must list the ranks"),
    (
        lambda: lb.plan(rows, columns, "f8", comm, select=lb.Select(shift=[0.5, 0])),
        "shift[0] is 0.5: it must be a whole number",
    ),
    (
        lambda: lb.plan(rows, columns, "f8", comm, select=lb.Select(axes=["x", 0])),
        "axes[0] is 'x': it must be a whole number",
    ),
    (lambda: lb.redistribute(part(), rows, columns, comm, casting="zz"), "casting must be one of"),
    (lambda: lb.plan(rows, lb.Runs((6, 4), -3, []), "f8", comm), "dst: size is -3: it cannot be negative"),
    (
        lambda: lb.plan(rows, columns, "f8", comm, select=[slice(0, 6, 0), slice(None)]),
        "source, axis 0: slice(0, 6, 0) has step 0",
    ),
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
        "axis 0 of the selections: 5 positions in the source, 6 in the target",
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


# An error of one run is not raised again in another. A rank that hears of it late reports an earlier run.
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

# Ranks that only send to one that fails hear of it in a later run of the communicator.
other = comm.Dup()

# A rank that is interrupted notifies the others, and raises the interruption itself.
for attempt in (
    lambda: lb.plan(Failing("runs", KeyboardInterrupt), rows, "f8", other),
    lambda: lb.plan(rows, columns, "f8", other).run(Interrupted() if rank == 2 else part()),
):
    try:
        attempt()
    except KeyboardInterrupt:
        assert rank == 2
    except lb.PlanError as error:
        assert rank != 2 and "rank 2: KeyboardInterrupt" in str(error), error
    else:
        raise SystemExit(f"rank {rank} has heard nothing")

# A rank without memory for its result takes part as far as the others need it to.
plan = lb.plan(few, vast, "f8", other, select=beginning)
source = np.zeros(few.local_shape(rank))
for attempt in (plan.run, lambda a: plan.start(a).wait(timeout=30)):
    try:
        got = attempt(source)
    except lb.PlanError as error:
        assert "rank 1: MemoryError" in str(error) or "_ArrayMemoryError" in str(error), error
    else:
        assert rank != 1 and got.shape == (4,), rank
    comm.Barrier()

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

# Of two runs in flight only the first is refused, and the second may be waited for first.
other = comm.Dup()
pair = lb.plan(rows, columns, "f8", other)
right, wrong = part(), np.zeros((1, 1)) if rank == 0 else part()
right[...] = np.arange(24.0).reshape(6, 4)[2 * rank : 2 * rank + 2]
first, second = pair.start(wrong), pair.start(right)
got = second.wait()
assert got is None if rank == 2 else np.array_equal(got, np.arange(24.0).reshape(6, 4)[:, 2 * rank : 2 * rank + 2])
try:
    first.wait()
except lb.PlanError as error:
    assert "rank 0: ValueError: a has shape (1, 1)" in str(error) and "earlier" not in str(error), error
else:
    assert rank == 2, "rank 2 only sends"
other.Free()

# Rank 2 only sends to rank 0, which cannot take part in the last run, and asks for no reason before the communicator is
# gone. A later one has nothing of it, even if MPI gives it the same number.
for _ in range(20):
    other = comm.Dup()
    once = lb.plan(rows, lb.Layout((6, 4), [lb.Block(1), lb.Whole()]), "f8", other)
    try:
        once.run(right, into=np.zeros((1, 1)) if rank == 0 else None)
    except lb.PlanError as error:
        assert "into has shape (1, 1)" in str(error), error
    other.Free()
    other = comm.Dup()
    assert not other.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert lb.redistribute(right, rows, rows, other) is not None
    other.Free()

# Afterwards the communicator still works.
source = part()
if source is not None:
    source[...] = np.arange(24.0).reshape(6, 4)[2 * rank : 2 * rank + 2]
got = lb.redistribute(source, rows, columns, comm)
assert got is None if rank == 2 else np.array_equal(got, np.arange(24.0).reshape(6, 4)[:, 2 * rank : 2 * rank + 2])

# A communicator that is freed.
freed = comm.Dup()
freed.Free()
try:
    lb.plan(rows, columns, "f8", freed)
    raise SystemExit("a plan without a communicator")
except ValueError as error:
    assert "freed" in str(error), error

# Bytes are a buffer like others, though a text to NumPy.
letters = lb.Layout(3 * 4, lb.Block(3))
assert lb.redistribute(b"abcd", letters, letters, comm).tobytes() == b"abcd"

# A run that is not over when MPI ends.
late = lb.plan(rows, rows, "f8", comm).start(right)
comm.Barrier()
MPI.Finalize()
for ask in (late.wait, late.test, lambda: late.wait(timeout=1)):
    try:
        ask()
        raise SystemExit("a run ended after MPI")
    except RuntimeError as error:
        assert "MPI was finalized" in str(error), error
if rank == 0:
    print("all are refused")
