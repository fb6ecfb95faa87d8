#!/usr/bin/env python3
"""Random redistributions among the ranks of MPI_COMM_WORLD, against NumPy's result for the whole array.

redistributions.py SEEDS [FIRST]
"""

import random
import sys
import traceback

import numpy as np
from mpi4py import MPI

import landbridge as lb

DTYPES = ["f8", "i4", ">i2", "c16", "?", "S5", "f2", "M8[s]", [("a", "f4"), ("b", "i8")]]


def axis(chance, extent, most):
    over = chance.randint(1, most)
    kind = chance.choice(["whole", "block", "sizes", "cyclic", "lists"])
    halo = chance.choice([0, 1, (0, 2)])
    if kind == "whole":
        return lb.Whole(halo, periodic=chance.random() < 0.5)
    if kind == "block":
        return lb.Block(over, halo=halo, periodic=chance.random() < 0.5)
    if kind == "sizes":
        cuts = sorted(chance.randint(0, extent) for _ in range(over - 1))
        return lb.Block(over, sizes=[end - start for start, end in zip([0, *cuts], [*cuts, extent])])
    if kind == "cyclic":
        return lb.Cyclic(over, block=chance.randint(1, 5), first=chance.randrange(over))
    return lb.Lists.by_owner([chance.randrange(over) for _ in range(extent)], over)


def layout(chance, shape, processes):
    axes, left = [], processes
    for extent in shape:
        axes.append(axis(chance, extent, min(left, 3)))
        left //= axes[-1].over
    grid = list(range(len(axes)))
    if left > 1 and chance.random() < 0.5:
        grid.insert(chance.randint(0, len(grid)), lb.Copies(chance.randint(1, left)))
    chance.shuffle(grid)
    return lb.Layout(shape, axes, order=chance.choice("CF"), grid=grid)


def place(layout, rank, axis):
    """The number of a process along an axis."""
    for entry in reversed(layout.grid):
        over = entry.of if isinstance(entry, lb.Copies) else layout.axes[entry].over
        rank, here = divmod(rank, over)
        if entry == axis:
            return here
    return 0


def held(layout, axis, place):
    """The index that each local index along an axis stands for, or -1; and how many come before those that are owned,
    and how many of these there are."""
    extent, kind = layout.shape[axis], layout.axes[axis]
    if isinstance(kind, lb.Cyclic):
        own = [at for at in range(extent) if (at // kind.block + kind.first) % kind.over == place]
    elif isinstance(kind, lb.Lists):
        own = list(kind.lists[place])
    else:
        sizes = getattr(kind, "sizes", None) or [-(-extent // kind.over)] * kind.over
        start = sum(sizes[:place])
        own = list(range(min(start, extent), min(start + sizes[place], extent)))
    halo = getattr(kind, "halo", 0)
    before, after = halo if isinstance(halo, tuple) else (halo, halo)
    if not own:
        return np.array([], int), 0, 0
    around = [*range(own[0] - before, own[0]), *own, *range(own[-1] + 1, own[-1] + 1 + after)]
    if getattr(kind, "periodic", False):
        around = [at % extent for at in around]
    return np.array([at if 0 <= at < extent else -1 for at in around]), before, len(own)


def local(layout, rank, whole, fill):
    """A process's part of an array, with `fill` where its local memory is outside it; and which of it is owned."""
    all_held = [held(layout, axis, place(layout, rank, axis)) for axis in range(len(layout.shape))]
    if any(count == 0 for _, _, count in all_held):
        return np.full((0,) * len(all_held), fill, whole.dtype), np.zeros((0,) * len(all_held), bool)
    part = np.array(whole[np.ix_(*(indices for indices, _, _ in all_held))], whole.dtype)
    owned = np.zeros(part.shape, bool)
    owned[tuple(slice(before, before + count) for _, before, count in all_held)] = True
    inside = np.ones(part.shape, bool)
    for axis, (indices, _, _) in enumerate(all_held):
        np.moveaxis(inside, axis, 0)[indices < 0] = False
    part[~inside] = fill
    return part, owned


def pick(chance, count):
    """A slice of `count` indices, and an extent that has them."""
    step = chance.choice([1, 1, 2, 3, -1, -2])
    before, after = chance.randint(0, 2), chance.randint(0, 2)
    extent = before + after + (abs(step) * (count - 1) + 1 if count else 0)
    indices = list(range(before, extent))[:: abs(step)][:count]
    if step > 0 or not count:
        return slice(before, before + abs(step) * count, abs(step)), extent
    return slice(indices[-1], indices[0] - 1 if indices[0] else None, step), extent


def part_of(chance, counts):
    picks, shape = [], []
    for count in counts:
        if chance.random() < 0.15:
            extent = chance.randint(1, 3)
            picks.append(chance.randrange(extent))
            shape.append(extent)
        one, extent = pick(chance, count)
        picks.append(one)
        shape.append(extent)
    return picks, shape


def values(chance, shape, dtype):
    numbers = np.arange(1, int(np.prod(shape)) + 1).reshape(shape)
    if dtype.names:
        whole = np.zeros(shape, dtype)
        whole["a"], whole["b"] = numbers, -numbers
        return whole
    return np.asarray(numbers % 2 == 0 if dtype.kind == "b" else numbers).astype(dtype)


def strided(chance, array):
    """The same elements in memory with gaps, or in another order."""
    kind = chance.choice("CFgr") if array.ndim else "C"
    if kind in "CF":
        return array.copy(kind)
    if kind == "g":
        wide = np.zeros([2 * extent for extent in array.shape], array.dtype)
        view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    else:
        view = np.zeros(array.shape, array.dtype)[tuple(slice(None, None, -1) for _ in array.shape)]
    view[...] = array
    return view


class Case:
    """A random redistribution from `senders` processes to `receivers`: layouts, the selection, and the whole arrays
    before and after."""

    def __init__(self, chance, senders, receivers):
        counts = [chance.choice([0, 1, 2, 5, 9, 12]) for _ in range(chance.randint(0, 3))]
        picks, shape = part_of(chance, counts)
        axes = list(range(len(counts)))
        chance.shuffle(axes)
        to_picks, to_shape = part_of(chance, [counts[at] for at in axes])
        shift = [chance.choice([0, 0, 1, 4]) for _ in counts]
        self.select = lb.Select(picks, to_picks, axes, shift)
        self.source, self.target = layout(chance, shape, senders), layout(chance, to_shape, receivers)
        self.dtype = np.dtype(chance.choice(DTYPES))
        self.whole, self.before = values(chance, shape, self.dtype), values(chance, to_shape, self.dtype)
        part = self.whole[tuple(picks)]
        for at, by in enumerate(shift):
            part = np.roll(part, -by, at)
        self.after, self.fresh = self.before.copy(), np.zeros(to_shape, self.dtype)
        for array in (self.after, self.fresh):
            array[tuple(to_picks)] = part.transpose(axes)
        self.filler = values(chance, (1,), self.dtype)[0]

    def sent(self, process):
        """A process's part of the source."""
        nothing = np.zeros((), self.dtype)
        part, owned = local(self.source, process, self.whole, nothing[()])
        # Elements that are only in a halo must not be sent.
        part[~owned] = nothing
        return part

    def target_part(self, process, whole):
        return local(self.target, process, whole, self.filler)[0]

    def new_part(self, process):
        """A process's part of the target after a run without `into`."""
        return local(self.target, process, self.fresh, np.zeros((), self.dtype)[()])[0]


def repeated(seed, case, plan):
    """Runs a plan several times. Each rank keeps its arrays, replaces them, or receives into a new array, as it
    pleases."""
    rank = MPI.COMM_WORLD.Get_rank()
    own = random.Random(seed * 1000 + rank)
    sends = plan.src_ranks.index(rank) if rank in plan.src_ranks else None
    receives = plan.dst_ranks.index(rank) if rank in plan.dst_ranks else None
    a = into = None
    for _ in range(6):
        if sends is not None and (a is None or own.random() < 0.3):
            a = strided(own, case.sent(sends))
        wanted = other = None
        if receives is not None:
            kind = own.choice(["kept", "replaced", "none"])
            if kind == "none":
                # Another array may take the place of the last one.
                into = None
                wanted = case.new_part(receives)
                other = np.full_like(wanted, case.filler)
            else:
                if kind == "replaced" or into is None:
                    into = strided(own, case.target_part(receives, case.before))
                wanted = case.target_part(receives, case.after)
        got = plan.run(a, into=into) if own.random() < 0.8 else plan.start(a, into=into).wait()
        if receives is None or into is not None:
            right = got is into and (receives is None or np.array_equal(got, wanted))
        else:
            right = got.size == wanted.size == 0 or np.array_equal(got, wanted)
            right = right and np.array_equal(other, np.full_like(other, case.filler))
        if not right:
            print(f"seed {seed}: rank {rank}: a later run, into {into!r}: got {got!r}, not {wanted!r}", file=sys.stderr)
            MPI.COMM_WORLD.Abort(1)


def check(seed):
    chance, comm = random.Random(seed), MPI.COMM_WORLD
    size, rank = comm.Get_size(), comm.Get_rank()
    case = Case(chance, size, size)
    source, target = case.source, case.target
    src_ranks, dst_ranks = chance.sample(range(size), source.size), chance.sample(range(size), target.size)
    a = into = wanted = None
    if rank in src_ranks:
        a = strided(chance, case.sent(src_ranks.index(rank)))
    if rank in dst_ranks:
        into = strided(chance, case.target_part(dst_ranks.index(rank), case.before))
        wanted = case.target_part(dst_ranks.index(rank), case.after)
    got = lb.redistribute(a, source, target, comm, src_ranks, dst_ranks, case.select, into)
    right = got is into and (wanted is None or np.array_equal(got, wanted))
    if not comm.allreduce(right, MPI.LAND):
        texts = f"{source} to {target}, {case.select}: got {got!r}, not {wanted!r}"
        print(f"seed {seed}: rank {rank}: {texts}", file=sys.stderr)
        comm.Abort(1)
    repeated(seed, case, lb.plan(source, target, case.dtype, comm, src_ranks, dst_ranks, case.select))


def main():
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for seed in range(first, first + int(sys.argv[1])):
        check(seed)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(f"{sys.argv[1]} redistributions are right")


if __name__ == "__main__":
    try:
        main()
    except Exception:
        # The other ranks wait for this one.
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
