"""Collective operations with random datatypes, operations, counts, roots and communicators, all of them covered by the
layer in a job of several sites. Every number of every buffer, between and around the elements too, is compared with
NumPy's results for the same numbers.

randomized.py SEED CASES: prints the case that is wrong, and whether the collectives layer is
loaded."""

import sys

import numpy as np
from mpi4py import MPI

from verify import all_checks, layers, require, world

SEED, CASES = int(sys.argv[1]), int(sys.argv[2])
PRIME = 9973
# Elements before and after those of a call, which nobody may touch.
MARGIN = 7
CANARY = -77

PAIRS = [
    (MPI.FLOAT_INT, np.float32, np.int32),
    (MPI.DOUBLE_INT, np.float64, np.int32),
    (MPI.LONG_INT, np.int64, np.int32),
    (MPI.SHORT_INT, np.int16, np.int32),
    (MPI.TWOINT, np.int32, np.int32),
    (MPI.LONG_DOUBLE_INT, np.longdouble, np.int32),
]
NUMBERS = [
    (MPI.INT32_T, np.int32),
    (MPI.INT64_T, np.int64),
    (MPI.UINT8_T, np.uint8),
    (MPI.DOUBLE, np.float64),
    (MPI.LONG_DOUBLE, np.longdouble),
    (MPI.C_DOUBLE_COMPLEX, np.complex128),
]


class Form:
    """A datatype of `items` 32-bit numbers, somewhere in an extent: where they are, in units of numbers."""

    def __init__(self, chance, items):
        wide = chance.random() < 0.6
        extent = items + int(chance.integers(1, 4)) if wide else items
        places = np.sort(chance.permutation(extent)[:items])
        if chance.random() < 0.3:
            places = chance.permutation(places)
        self.items, self.extent, self.places = items, extent, places
        made = MPI.INT32_T.Create_indexed_block(1, places.tolist())
        self.datatype = made.Create_resized(0, 4 * extent).Commit()
        made.Free()

    def at(self, count, first=0):
        """Where the numbers of `count` elements are in a buffer, from element `first` on."""
        return (np.arange(first, first + count)[:, None] * self.extent + self.places + MARGIN).ravel()

    def room(self, count):
        return np.full(count * self.extent + 2 * MARGIN, CANARY, np.int32)

    def holding(self, values, first=0, count=None):
        """A buffer with these numbers."""
        given = len(values) // self.items
        buffer = self.room(first + given if count is None else count)
        buffer[self.at(given, first)] = values
        return buffer


def numbers(case, rank, count):
    return np.random.default_rng([SEED, case, rank]).integers(0, PRIME, count, np.int32)


def elements(chance):
    """A count of elements: mostly few, sometimes many."""
    return int(chance.choice([0, 1, int(chance.integers(2, 600)), int(chance.integers(600, 6000)), 12_000, 20_000]))


def equal(got, wanted, what):
    # Not their bytes: NumPy copies no padding.
    wrong = np.flatnonzero(got != wanted)
    text = f"number {wrong[0]} of {len(got)} is {got[wrong[0]]}, not {wanted[wrong[0]]}" if len(wrong) else ""
    require(len(wrong) == 0, f"{what}: {text} ({len(wrong)} are wrong)")


def reduced(comm, chance, what, own, room, datatype, count, operation, check):
    """An Allreduce or a Reduce of `own`; `room` makes memory for a result, `check` looks at memory with one."""
    in_place, everywhere, root = chance.random() < 0.3, chance.random() < 0.5, int(chance.integers(comm.size))
    what += f", {'all' if everywhere else root}{' in place' if in_place else ''}"
    sent = own.copy()
    is_root = everywhere or comm.rank == root
    result = sent if in_place and is_root else room()
    untouched = result.copy()
    source = MPI.IN_PLACE if in_place and is_root else [memory(sent), count, datatype]
    target = [memory(result), count, datatype]
    if everywhere:
        comm.Allreduce(source, target, operation)
    else:
        comm.Reduce(source, target if is_root else None, operation, root)
    if is_root:
        check(result, what)
    else:
        equal(result, untouched, f"{what}: memory that is not the root's")
    if not (in_place and is_root):
        equal(sent, own, f"{what}: what is sent")


def memory(buffer):
    return buffer[MARGIN:]


def pairs(comm, chance, case):
    datatype, value, index = PAIRS[chance.integers(len(PAIRS))]
    kind = np.dtype([("value", value), ("index", index)], align=True)
    assert kind.itemsize == datatype.extent
    count, least = elements(chance), chance.random() < 0.5

    def contribution(rank):
        found = np.zeros(count, kind)
        given = numbers(case, rank, 2 * count)
        found["value"], found["index"] = given[:count] % 50, given[count:]
        return found

    every = [contribution(rank) for rank in range(comm.size)]
    values, places = np.array([one["value"] for one in every]), np.array([one["index"] for one in every])
    best = values.min(0) if least else values.max(0)
    place = np.where(values == best, places, PRIME).min(0)

    def room():
        return np.zeros(count + 2 * MARGIN, kind)

    def check(result, text):
        equal(memory(result)[:count]["value"], best, f"{text}: values")
        equal(memory(result)[:count]["index"], place, f"{text}: places")
        equal(result[:MARGIN], room()[:MARGIN], f"{text}: before it")
        equal(result[MARGIN + count :], room()[:MARGIN], f"{text}: after it")

    own = room()
    memory(own)[:count] = every[comm.rank]
    what = f"case {case}: {'MINLOC' if least else 'MAXLOC'} of {count} {datatype.name}"
    reduced(comm, chance, what, own, room, datatype, count, MPI.MINLOC if least else MPI.MAXLOC, check)


def predefined(comm, chance, case):
    datatype, kind = NUMBERS[chance.integers(len(NUMBERS))]
    count = elements(chance)
    operation, combine = [(MPI.SUM, np.add), (MPI.PROD, np.multiply)][chance.integers(2)]
    every = np.array([(numbers(case, rank, count) % 3 + 1).astype(kind) for rank in range(comm.size)])
    expected = combine.reduce(every, dtype=kind)

    def room():
        return np.zeros(count + 2 * MARGIN, kind)

    def check(result, text):
        equal(result[MARGIN : MARGIN + count], expected, text)
        equal(result[:MARGIN], room()[:MARGIN], f"{text}: before it")
        equal(result[MARGIN + count :], room()[:MARGIN], f"{text}: after it")

    own = room()
    own[MARGIN : MARGIN + count] = every[comm.rank]
    reduced(
        comm,
        chance,
        f"case {case}: {combine.__name__} of {count} {datatype.name}",
        own,
        room,
        datatype,
        count,
        operation,
        check,
    )


def composed(one, other):
    """The maps x -> a x + b, one after the other: their order matters."""
    return np.stack((one[:, 0] * other[:, 0] % PRIME, (one[:, 0] * other[:, 1] + one[:, 1]) % PRIME), 1)


def program_s(comm, chance, case):
    """An operation of the program, on a datatype of its own."""
    form, count, commutes = Form(chance, 2), min(elements(chance), 6000), chance.random() < 0.5

    def combined(one, other):
        one, other = (each.reshape(-1, 2).astype(np.int64) for each in (one, other))
        return ((one + other) % PRIME if commutes else composed(one, other)).astype(np.int32).ravel()

    def function(one, other, _):
        one, other = np.frombuffer(one, np.int32), np.frombuffer(other, np.int32)
        at = form.at(len(other) // form.extent) - MARGIN
        other[at] = combined(one[at], other[at])

    expected = numbers(case, 0, 2 * count)
    for rank in range(1, comm.size):
        expected = combined(expected, numbers(case, rank, 2 * count))
    own = form.holding(numbers(case, comm.rank, 2 * count))
    operation = MPI.Op.Create(function, commute=commutes)

    def check(result, text):
        equal(result, form.holding(expected), text)

    what = (
        f"case {case}: an operation that {'commutes' if commutes else 'does not commute'} of {count} with "
        f"{form.places} of {form.extent}"
    )
    reduced(comm, chance, what, own, lambda: form.room(count), form.datatype, count, operation, check)
    operation.Free()
    form.datatype.Free()


def lengths(comm, chance, equally):
    """How many elements each rank has, and where they begin in a list of all, with gaps."""
    count = min(elements(chance), 6000)
    counts = [count if equally else int(chance.integers(0, count + 1)) for _ in range(comm.size)]
    gaps = [0 if equally else int(chance.integers(0, 3)) for _ in range(comm.size)]
    starts = np.concatenate(([0], np.cumsum(np.add(counts, gaps))[:-1])).tolist()
    return counts, starts, starts[-1] + counts[-1]


def message(buffer, form, counts, starts, equally):
    part = memory(buffer)
    return [part, counts[0], form.datatype] if equally else [part, (counts, starts), form.datatype]


def moved(comm, chance, case):
    """Gathers and scatters; the two ends describe the same numbers by datatypes that differ."""
    kind = ["allgather", "gather", "scatter", "bcast"][chance.integers(4)]
    equally, in_place, root = chance.random() < 0.5, chance.random() < 0.25, int(chance.integers(comm.size))
    items = int(chance.integers(1, 5))
    one, many = Form(chance, items), Form(chance, items)
    counts, starts, total = lengths(comm, chance, equally)
    given = [numbers(case, rank, items * count) for rank, count in enumerate(counts)]
    what = (
        f"case {case}: {kind} of {counts} from {root}{' in place' if in_place else ''}, {one.places} of {one.extent}, "
    )
    what += f"{many.places} of {many.extent}"
    own, everyone = one.holding(given[comm.rank]), many.room(total)
    for count, start, values in zip(counts, starts, given):
        everyone[many.at(count, start)] = values
    is_root, empty = comm.rank == root, many.room(total)
    mine = [memory(own), counts[comm.rank], one.datatype]
    if kind == "bcast":
        form = one if is_root else many
        buffer = form.holding(given[root]) if is_root else form.room(counts[root])
        comm.Bcast([memory(buffer), counts[root], form.datatype], root)
        equal(buffer, form.holding(given[root]), what)
    elif kind == "scatter":
        part, into = one.room(counts[comm.rank]), MPI.IN_PLACE
        if not (in_place and is_root):
            into = [memory(part), counts[comm.rank], one.datatype]
        call = comm.Scatter if equally else comm.Scatterv
        call(message(everyone, many, counts, starts, equally) if is_root else None, into, root)
        equal(part, one.room(len(part[2 * MARGIN :]) // one.extent) if into is MPI.IN_PLACE else own, what)
    else:
        receives = is_root or kind == "allgather"
        if in_place and receives:
            mine = MPI.IN_PLACE
            empty[many.at(counts[comm.rank], starts[comm.rank])] = given[comm.rank]
        into = message(empty, many, counts, starts, equally)
        if kind == "allgather":
            (comm.Allgather if equally else comm.Allgatherv)(mine, into)
        else:
            (comm.Gather if equally else comm.Gatherv)(mine, into if is_root else None, root)
        equal(empty, everyone if receives else many.room(total), what)
        equal(own, one.holding(given[comm.rank]), f"{what}: what is sent")
    one.datatype.Free()
    many.datatype.Free()


def exchanged(comm, chance, case):
    equally, items = chance.random() < 0.5, int(chance.integers(1, 4))
    out, into = Form(chance, items), Form(chance, items)
    table = chance.integers(0, 1500, (comm.size, comm.size))
    if equally:
        table[:] = table[0, 0]
    begin = np.concatenate((np.zeros((comm.size, 1), int), np.cumsum(table, 1)), 1)
    begin_in = np.concatenate((np.zeros((1, comm.size), int), np.cumsum(table, 0)), 0)
    of = [numbers(case, rank, items * int(begin[rank, -1])) for rank in range(comm.size)]
    me, sent = comm.rank, out.holding(of[comm.rank])
    got, wanted = into.room(int(begin_in[-1, me])), into.room(int(begin_in[-1, me]))
    for source in range(comm.size):
        part = of[source][items * begin[source, me] : items * begin[source, me + 1]]
        wanted[into.at(int(table[source, me]), int(begin_in[source, me]))] = part
    lists = (table[me].tolist(), begin[me, :-1].tolist()), (table[:, me].tolist(), begin_in[:-1, me].tolist())
    call = comm.Alltoall if equally else comm.Alltoallv
    call(message(sent, out, *lists[0], equally), message(got, into, *lists[1], equally))
    equal(
        got,
        wanted,
        f"case {case}: alltoall of {table.tolist()}, {out.places} of {out.extent}, {into.places} of {into.extent}",
    )
    equal(sent, out.holding(of[me]), f"case {case}: alltoall, what is sent")
    out.datatype.Free()
    into.datatype.Free()


def main():
    # The last two reach several sites, wherever each site's ranks begin.
    comms = [world.Dup(), world.Split(0, (world.rank * 7 + 3) % world.size * 10 + world.rank % 2)]
    comms.append(world.Split(0 if world.rank % 3 != 1 else 1, -world.rank))
    for comm in comms:
        # The layer leaves a communicator's first calls to the MPI library.
        comm.Barrier()
        comm.Barrier()
    kinds = [pairs, pairs, predefined, program_s, moved, moved, exchanged]
    for case in range(CASES):
        chance = np.random.default_rng([SEED, case])
        at = int(chance.integers(len(comms)))
        comm, kind = comms[at], kinds[chance.integers(len(kinds))]
        # One that is within a site is the MPI library's alone.
        if at == 2 and comm.size < world.size // 2:
            continue
        kind(comm, chance, case)
    for comm in comms:
        comm.Free()


main()
everyone = all_checks()
loaded = layers()
if world.rank == 0:
    print(f"layer: {all(loaded)}")
    print(f"randomized: {everyone} checks good")
