"""Redistributions whose messages are packed in many pieces, by 4 ranks."""

import gc
import re
import resource
from pathlib import Path

import numpy as np
from mpi4py import MPI

import landbridge as lb

comm = MPI.COMM_WORLD
SHAPE = (1500, 1400)
SOURCE = lb.Layout(SHAPE, [lb.Cyclic(2, block=64), lb.Cyclic(2, block=64)])
TARGET = lb.Layout(SHAPE, [lb.Cyclic(2, block=48), lb.Cyclic(2, block=80, first=1)], order="F")


def indices(layout):
    """Of this rank's elements along each axis."""
    found = []
    for axis, (extent, kind) in enumerate(zip(layout.shape, layout.axes)):
        place = comm.rank // 2 if axis == 0 else comm.rank % 2
        found.append([at for at in range(extent) if (at // kind.block + kind.first) % kind.over == place])
    return np.ix_(*found)


def content(dtype, factor=1):
    numbers = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) * factor
    if not np.dtype(dtype).names:
        return numbers.astype(dtype)
    whole = np.zeros(SHAPE, dtype)
    for name in whole.dtype.names:
        whole[name] = numbers
    return whole


def check(got, whole, what):
    assert (got == whole[indices(TARGET)]).all(), what


def in_pieces():
    for dtype in ("f8", "i2", [("a", "f8"), ("b", "i4"), ("c", "i8")], "V7"):
        whole = content(dtype) if dtype != "V7" else content("u8").view("V8").astype("V7")
        for budget in (1, 1 << 20, None):
            plan = lb.plan(SOURCE, TARGET, dtype, comm, budget=budget)
            for _ in range(2):
                check(plan.run(whole[indices(SOURCE)]), whole, (dtype, budget))


def converted():
    for dtype, other in (("i4", "f4"), ("f8", "f4"), ("f4", "c16")):
        whole = content(dtype)
        into = np.zeros(TARGET.local_shape(comm.rank), other)
        lb.redistribute(whole[indices(SOURCE)], SOURCE, TARGET, comm, into=into, budget=1 << 20)
        check(into, whole.astype(other), (dtype, other))


def aliased():
    whole = content("f8")
    part = whole[indices(SOURCE)]
    memory = np.zeros(max(part.size, int(np.prod(TARGET.local_shape(comm.rank)))))
    a = memory[: part.size].reshape(part.shape)
    a[...] = part
    shape = TARGET.local_shape(comm.rank)
    into = memory[: shape[0] * shape[1]].reshape(shape)
    plan = lb.plan(SOURCE, TARGET, "f8", comm, budget=1)
    plan.run(a, into=into)
    check(into, whole, "aliased")


def gaps():
    """Where one end has gaps that the other does not know of."""
    rows = lb.Layout(SHAPE, [lb.Block(4), lb.Whole()])
    columns = lb.Layout(SHAPE, [lb.Whole(), lb.Block(4)])
    whole = content("f8")
    part = np.array_split(whole, 4)[comm.rank]
    shape = columns.local_shape(comm.rank)
    into = np.zeros((shape[0], 3 * shape[1]))[:, ::3]
    a = np.zeros((2 * part.shape[0], part.shape[1]))[::2]
    a[...] = part
    lb.redistribute(a, rows, columns, comm, into=into, budget=1)
    assert (into == np.array_split(whole, 4, axis=1)[comm.rank]).all()


def several_in_flight():
    plan = lb.plan(SOURCE, TARGET, "f8", comm, budget=1)
    wholes = [content("f8", factor) for factor in (1, 2, 3)]
    runs = [plan.start(whole[indices(SOURCE)]) for whole in wholes]
    # MPI alone must be able to end the started requests.
    comm.Barrier()
    order = range(3) if comm.rank % 2 else reversed(range(3))
    got = {at: runs[at].wait() for at in order}
    for at, whole in enumerate(wholes):
        check(got[at], whole, at)
    # One that is run while another is in flight.
    first = plan.start(wholes[0][indices(SOURCE)])
    check(plan.run(wholes[1][indices(SOURCE)]), wholes[1], "run")
    check(first.wait(timeout=60), wholes[0], "started")


def refused():
    plan = lb.plan(SOURCE, TARGET, "f8", comm, budget=1)
    whole = content("f8")
    a = whole[indices(SOURCE)] if comm.rank != 1 else np.zeros((3, 3))
    try:
        plan.run(a)
    except lb.PlanError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("a wrong part was taken")
    comm.Barrier()
    try:
        check(plan.run(whole[indices(SOURCE)]), whole, "after a refusal")
    except lb.PlanError as error:
        # A rank that sends to the one that refused hears of it now.
        assert "rank 1" in str(error), error
    try:
        lb.plan(SOURCE, TARGET, "f8", comm, budget=-1)
    except lb.PlanError as error:
        assert "budget is -1" in str(error), error
    else:
        raise AssertionError("a negative budget was taken")


def peak():
    """Bytes of this process, at most since it began, without the memory in which MPI meets other processes."""
    (shared,) = re.findall(r"RssShmem:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - int(shared)) * 1024


def little_memory():
    shape, budget = (6000, 6000), 4 << 20
    source = lb.Layout(shape, [lb.Cyclic(2, block=64), lb.Cyclic(2, block=64)])
    target = lb.Layout(shape, [lb.Cyclic(2, block=48), lb.Cyclic(2, block=80)])
    plan = lb.plan(source, target, "f8", comm, budget=budget)
    a = np.full(source.local_shape(comm.rank), 1.0)
    into = np.full(target.local_shape(comm.rank), 2.0)
    # Then MPI has everything that it needs for a piece.
    lb.redistribute(np.ones(SOURCE.local_shape(comm.rank)), SOURCE, TARGET, comm, budget=budget)
    before = peak()
    plan.run(a, into=into)
    assert (into == 1.0).all()
    # Packed whole, messages would take 100 MB.
    more = peak() - before
    assert more <= budget + (24 << 20), f"{more} bytes more"


def lent():
    """Where ranks pack pieces for others, by the number of the file: the bytes of it that this rank has used."""
    found = re.findall(
        r" (\d+) +/memfd:landbridge-lent.*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text(), re.DOTALL
    )
    return {file: int(kilobytes) * 1024 for file, kilobytes in found}


def read_where_they_are_packed():
    before, world, budget = lent(), comm.Dup(), 1 << 20
    plan = lb.plan(SOURCE, TARGET, "f8", world, budget=budget)
    whole = content("f8")
    for _ in range(3):
        check(plan.run(whole[indices(SOURCE)]), whole, "lent")
        # Then all ranks have given back what they borrowed.
        world.Barrier()
    used = [length for file, length in lent().items() if file not in before]
    # Its own, and that of the three others, with all of which it exchanges pieces.
    assert len(used) == 4 and all(used) and max(used) <= budget / 2 + (8 << 10), used
    world.Free()
    del plan
    gc.collect()
    assert set(lent()) == set(before), "memory of a communicator that was freed"


for each in (
    in_pieces,
    converted,
    aliased,
    gaps,
    several_in_flight,
    refused,
    little_memory,
    read_where_they_are_packed,
):
    each()
    comm.Barrier()
    if comm.rank == 0:
        print(f"{each.__name__}: good", flush=True)
