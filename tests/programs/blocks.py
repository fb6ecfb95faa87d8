"""Gathers, scatters and exchanges of blocks of unlike lengths, over communicators of every shape: empty and long
blocks, in any order in memory and with gaps between them, in place, with derived datatypes. Every number is checked,
and so is that nothing else was written.

With the word `mismatched`, ranks disagree about lengths instead, and the receiver must get an error for each that
does not fit."""

import sys

import numpy as np
from mpi4py import MPI

from verify import all_checks, layers, of, require, world

# Numbers of a block, by rank: none, few, and more than travel with others.
LENGTHS = {
    "short": [3, 0, 700, 1, 2000, 5, 0, 64],
    "mixed": [0, 3000, 17, 2048, 2049, 9000, 1, 0],
    "long": [40_000, 9000, 30_011, 2500, 20_000, 65_536, 4096, 12_345],
    "one": [0, 0, 50, 0, 0, 0, 0, 0],
    "none": [0] * 8,
}
UNTOUCHED = -77


def lengths_of(comm, kind):
    return [LENGTHS[kind][(3 * rank + comm.size) % 8] for rank in range(comm.size)]


class Places:
    """Blocks in one array, in reverse order of ranks, with gaps; `step`: only each `step`th number is data."""

    def __init__(self, lengths, step=1):
        self.lengths, self.step, self.starts, at = lengths, step, [0] * len(lengths), 2
        for rank in reversed(range(len(lengths))):
            self.starts[rank] = at
            at += lengths[rank] + 1 + rank % 3
        self.size = at
        self.datatype = MPI.INT64_T if step == 1 else MPI.INT64_T.Create_resized(0, 8 * step).Commit()

    def empty(self):
        return np.full(self.size * self.step, UNTOUCHED, np.int64)

    def put(self, array, rank, numbers):
        start = self.starts[rank]
        array[start * self.step : (start + self.lengths[rank]) * self.step : self.step] = numbers

    def full(self, blocks):
        """The array with `blocks[rank]` in its places."""
        array = self.empty()
        for rank, numbers in blocks.items():
            self.put(array, rank, numbers)
        return array

    def message(self, array):
        return [array, (self.lengths, self.starts), self.datatype]

    def free(self):
        if self.step > 1:
            self.datatype.Free()


def gathers(comm, kind, step, name):
    lengths = lengths_of(comm, kind)
    places = Places(lengths, step)
    everyone = {rank: of(rank, lengths[rank]) for rank in range(comm.size)}
    expected, own = places.full(everyone), everyone[comm.rank]
    into = places.empty()
    comm.Allgatherv(own, places.message(into))
    require(np.array_equal(into, expected), f"{name}: allgatherv")
    into = places.full({comm.rank: own})
    comm.Allgatherv(MPI.IN_PLACE, places.message(into))
    require(np.array_equal(into, expected), f"{name}: allgatherv in place")
    for root in range(comm.size):
        is_root = comm.rank == root
        into = places.empty()
        comm.Gatherv(own, places.message(into) if is_root else None, root)
        require(np.array_equal(into, expected if is_root else places.empty()), f"{name}: gatherv to {root}")
        into = places.full({comm.rank: own})
        comm.Gatherv(MPI.IN_PLACE if is_root else own, places.message(into) if is_root else None, root)
        require(not is_root or np.array_equal(into, expected), f"{name}: gatherv to {root} in place")
        part = np.full(lengths[comm.rank], UNTOUCHED, np.int64)
        comm.Scatterv(places.message(expected) if is_root else None, part, root)
        require(np.array_equal(part, own), f"{name}: scatterv from {root}")
        part = np.full(lengths[comm.rank], UNTOUCHED, np.int64)
        comm.Scatterv(places.message(expected) if is_root else None, MPI.IN_PLACE if is_root else part, root)
        require(np.array_equal(part, np.full_like(part, UNTOUCHED) if is_root else own), f"{name}: scatterv in place")
    places.free()


def exchanges(comm, kind, step, name):
    ranks = comm.size
    table = [[LENGTHS[kind][(3 * source + 5 * to) % 8] for to in range(ranks)] for source in range(ranks)]
    out, into = Places(table[comm.rank], step), Places([table[source][comm.rank] for source in range(ranks)])
    sent = out.full({to: of(comm.rank * ranks + to, table[comm.rank][to]) for to in range(ranks)})
    blocks = {source: of(source * ranks + comm.rank, table[source][comm.rank]) for source in range(ranks)}
    received = into.empty()
    comm.Alltoallv(out.message(sent), into.message(received))
    require(np.array_equal(received, into.full(blocks)), f"{name}: alltoallv")
    # In place both directions of a pair have the same length.
    both = Places([LENGTHS[kind][(comm.rank + other) % 8] for other in range(ranks)])
    kept = both.full({to: of(comm.rank * ranks + to, both.lengths[to]) for to in range(ranks)})
    comm.Alltoallv(MPI.IN_PLACE, both.message(kept))
    blocks = {source: of(source * ranks + comm.rank, both.lengths[source]) for source in range(ranks)}
    require(np.array_equal(kept, both.full(blocks)), f"{name}: alltoallv in place")
    for places in (out, into, both):
        places.free()


def everything():
    mixed = world.Split(0, (world.rank * 7 + 3) % world.size * 10 + world.rank % 2)
    halves = world.Split(world.rank % 2, -world.rank)
    for comm, name in ((world, "world"), (mixed, "mixed"), (halves, "halves")):
        for kind in ("short", *LENGTHS):
            for step in (1, 2):
                gathers(comm, kind, step, f"{name}, {kind}, {step}")
                exchanges(comm, kind, step, f"{name}, {kind}, {step}")
    for comm in (mixed, halves):
        comm.Free()


def truncated(call, *arguments):
    """Returns true if a call reports that a message was longer than its place."""
    try:
        call(*arguments)
    except MPI.Exception as error:
        return error.Get_error_class() == MPI.ERR_TRUNCATE
    return False


def mismatched():
    """The last rank has more than its peer expects; then less, which fills a part."""
    last, comm = world.size - 1, world.Dup()
    for _ in range(3):
        comm.Gather(np.zeros(1), np.zeros(world.size) if comm.rank == 0 else None)
    for expected, given in ((10, 20), (10, 5000), (3000, 5000), (5000, 10), (20, 10)):
        numbers = of(comm.rank, given if comm.rank == last else expected)
        into = np.full(expected * comm.size, UNTOUCHED, np.int64)
        place = [into, expected, MPI.INT64_T] if comm.rank == 0 else None
        report = truncated(comm.Gather, numbers, place, 0)
        require(report == (comm.rank == 0 and given > expected), f"gather of {given}, {expected} expected")
        if comm.rank == 0 and not report:
            arrived = into[last * expected :]
            require(np.array_equal(arrived[:given], of(last, given)), f"gather of {given}, {expected} expected: data")
            require((arrived[given:] == UNTOUCHED).all(), f"gather of {given}, {expected} expected: the rest")
        # The same from rank 0, whose blocks are longer or shorter than the last rank's place.
        own, sent = (expected if comm.rank == last else given), np.arange(given * comm.size)
        part = np.full(own, UNTOUCHED, np.int64)
        message = [sent, given, MPI.INT64_T] if comm.rank == 0 else None
        report = truncated(comm.Scatter, message, part, 0)
        require(report == (comm.rank == last and given > expected), f"scatter of {given}, {expected} expected")
        if not report:
            arrived = min(own, given)
            block = np.arange(given * comm.rank, given * comm.rank + arrived)
            require(np.array_equal(part[:arrived], block), f"scatter of {given}, {expected} expected: data")
    comm.Free()


if sys.argv[1:] == ["mismatched"]:
    mismatched()
else:
    everything()
everyone = all_checks()
loaded = layers()
if world.rank == 0:
    print(f"layer: {all(loaded)}")
    print(f"blocks: {everyone} checks good")
