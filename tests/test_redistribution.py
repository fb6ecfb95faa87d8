"""Arrays between layouts, in jobs of each MPI library: under its own launcher, and across sites."""

import os

import pytest

from harness import BUILT, LANDBRIDGE, PROGRAMS

PACKAGE = BUILT / "python"
RANDOM = PROGRAMS / "redistributions.py"
RUNS = PROGRAMS / "runs.py"
WRONG = PROGRAMS / "redistributions_refused.py"
INTERRUPTED = PROGRAMS / "redistributions_interrupted.py"
MATRIX = pytest.mark.matrix


def environment(mpi):
    return {**mpi.environment, "PYTHONPATH": str(PACKAGE)}


def alone(workshop, mpi, ranks, *words):
    """Runs a program under the MPI library's own launcher."""
    words = [*mpi.launcher, "-n", ranks, mpi.python, *words]
    return workshop.run(words, environment=environment(mpi), limit=240).check()


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=MATRIX), 4, pytest.param(7, marks=MATRIX)])
def test_random_redistributions_are_right(workshop, mpi, ranks):
    done = alone(workshop, mpi, ranks, RANDOM, 150, 1000 * ranks)
    assert "150 redistributions are right" in done.out, str(done)


@pytest.mark.one_mpi
def test_random_redistributions_across_sites_are_right(workshop, mpi):
    words = [LANDBRIDGE, "run", "-n", 6, "--mpi", mpi.name, "-x", "PYTHONPATH", "--", mpi.python, RANDOM, 60, 500]
    done = workshop.lab(words, sites=3, nodes=1, environment=environment(mpi), limit=240).finish().check()
    assert "60 redistributions are right" in done.out, str(done)


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [1, 5])
def test_elements_that_are_anywhere_arrive(workshop, mpi, ranks):
    done = alone(workshop, mpi, ranks, RUNS, 60, 1000 * ranks)
    assert "60 redistributions of runs are right" in done.out, str(done)


def test_elements_that_are_anywhere_arrive_across_sites(workshop, mpich_only):
    mpi = mpich_only
    words = [LANDBRIDGE, "run", "-n", 6, "-x", "PYTHONPATH", "--", mpi.python, RUNS, 20, 500]
    done = workshop.lab(words, sites=3, nodes=1, environment=environment(mpi), limit=240).finish().check()
    assert "20 redistributions of runs are right" in done.out, str(done)


@pytest.mark.one_mpi
def test_what_cannot_be_is_refused_on_all_ranks_alike(workshop, mpi):
    done = alone(workshop, mpi, 3, WRONG)
    assert "all are refused" in done.out, str(done)


@pytest.mark.one_mpi
def test_a_run_that_is_interrupted_damages_no_memory_and_no_later_run(workshop, mpi):
    done = alone(workshop, mpi, 3, INTERRUPTED)
    assert "all runs were right" in done.out, str(done)


LAYOUTS = """
import doctest, pathlib, pickle, pydoc
import numpy as np
import landbridge as lb, landbridge.layout

assert doctest.testmod(landbridge.layout).failed == 0
tried = doctest.testmod(landbridge.layout).attempted
assert tried > 2, tried

layout = lb.Layout((6, 4), [lb.Block(2), lb.Whole()])
for attempt, text in [
    (lambda: layout.owner((-1, 0)), "index [-1, 0]: the array has shape [6, 4]"),
    (lambda: layout.owner((1 << 70, 0)), "the array has shape [6, 4]"),
    (lambda: layout.local_shape(-1), "rank -1: the layout is for 2 processes"),
    (lambda: layout.local_shape(1 << 40), "the layout is for 2 processes"),
    (lambda: lb.Layout((1 << 70,), [lb.Block(1)]), "it must be less than 2**63"),
]:
    try:
        attempt()
    except (IndexError, ValueError) as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"no error: {text}")

def numroc(n, nb, iproc, isrcproc, nprocs):  # as in ScaLAPACK's TOOLS/numroc.f
    mydist, nblocks = (nprocs + iproc - isrcproc) % nprocs, n // nb
    extra = nblocks % nprocs
    return nblocks // nprocs * nb + (nb if mydist < extra else n % nb if mydist == extra else 0)

for n, nb, over, first in [(1000, 64, 3, 0), (7, 2, 5, 4), (10, 100, 3, 1), (0, 4, 2, 0)]:
    layout = lb.Layout((n,), [lb.Cyclic(over, block=nb, first=first)])
    for rank in range(over):
        assert layout.local_shape(rank)[0] == numroc(n, nb, rank, first, over), (n, nb, over, first, rank)

# A descriptor of ScaLAPACK: 9×8 in blocks of 2×3 from process (1, 0) on, over 2×3 processes.
for numbered in "RC":
    layout = lb.Layout.from_scalapack([1, 0, 9, 8, 2, 3, 1, 0, 5], (2, 3), numbered=numbered)
    assert layout.order == "F" and layout.size == 6
    for row in range(2):
        for column in range(3):
            rank = 3 * row + column if numbered == "R" else 2 * column + row
            assert layout.local_shape(rank) == (numroc(9, 2, row, 1, 2), numroc(8, 3, column, 0, 3))
    assert layout.owner((0, 0)) == (3 if numbered == "R" else 1)

# An axis along two dimensions of the grid, of which the last one is the slower.
twice = lb.Layout((8,), [lb.Block(4)], grid=[lb.Along(0, 2, 1), lb.Copies(3), lb.Along(0, 2, 0)])
assert twice.size == 12 and [twice.owner((at,)) for at in (0, 2, 4, 6)] == [0, 6, 1, 7]

columns = lb.Layout((4, 6), [lb.Block(2), lb.Block(3)], grid=[1, 0])
assert [columns.owner((2, at)) for at in (0, 2, 4)] == [1, 3, 5]
assert lb.Layout((3,), [lb.Lists.by_owner([1, 0, 1], 2)]).local_shape(1) == (2,)
assert lb.Layout((), []).size == 1 and lb.Layout((), []).owner(()) == 0
assert lb.Layout((5,), [lb.Block(2)], grid=[lb.Copies(3), 0]).size == 6
assert eval(repr(columns), vars(lb)) == columns and hash(columns) != hash(lb.Layout((4, 6), columns.axes))

assert lb.Layout(8, lb.Block(2)) == lb.Layout((8,), [lb.Block(2)])
for layout in (columns, twice, lb.Layout(3, lb.Lists([[2], [0, 1]]), order="F")):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(layout, protocol))
        assert copy == layout and copy.local_shape(1) == layout.local_shape(1), layout
# What a program does later with its own lists changes no layout.
lists, sizes = [np.array([0, 1]), np.array([2, 3])], [1, 3]
listed, sized = lb.Layout(4, lb.Lists(lists)), lb.Layout(4, lb.Block(2, sizes=sizes))
lists[0][:] = [1, 0]
sizes.append(10)
for layout in (listed, sized, pickle.loads(pickle.dumps(listed)), pickle.loads(pickle.dumps(sized))):
    assert layout in (lb.Layout(4, lb.Lists([[0, 1], [2, 3]])), lb.Layout(4, lb.Block(2, sizes=(1, 3)))), layout
assert repr(listed) == repr(lb.Layout(4, lb.Lists(([0, 1], (2, 3))))), listed
assert lb.Layout(4, lb.Block(np.int64(2))) == lb.Layout(4, lb.Block(2))
assert listed.axes == pickle.loads(pickle.dumps(listed)).axes and hash(listed.axes) is not None
assert not any(each.flags.writeable for each in listed.axes[0].lists)
assert repr(lb.Layout(4, lb.Block(np.int64(2)))) == repr(lb.Layout(4, lb.Block(2)))
long = [lb.Layout(4000, lb.Lists([range(2000), [*range(2000, 3000), *end]]))
        for end in (range(3000, 4000), range(3999, 2999, -1))]
assert long[0] != long[1] and repr(long[0]) != repr(long[1]) and len(repr(long[0])) < 100, long
assert lb.Layout(8, lb.Block(2)).owner(5) == 1

for axis, empty in [(lb.Block(4), 3), (lb.Cyclic(5, first=1), 0), (lb.Lists([[1], [], [0, 2]]), 1)]:
    assert lb.Layout((3, 4), [axis, lb.Whole()]).local_shape(empty) == (0, 4), axis
assert {"redistribute", "plan", "join", "Layout"} <= set(dir(lb))
assert "redistribute(" in pydoc.plain(pydoc.render_doc(lb))
assert (pathlib.Path(lb.__file__).parent / "py.typed").exists()
try:
    lb.command()
except FileNotFoundError as error:
    assert "pip install landbridge" not in str(error), error

for attempt, text in [
    (lambda: lb.Layout(6, [lb.Block(2), lb.Whole()]), "2 axes are described, but the array has 1"),
    (lambda: lb.Layout((6,), 2), "axes is 2: it must be a list of Whole, Block, Cyclic or Lists"),
    (lambda: lb.Layout(2.5, lb.Whole()), "shape is 2.5: it must be a list of whole numbers"),
    (lambda: lb.Layout((6,), [lb.Block(0)]),
     "axis 0 is Block(over=0, sizes=None, halo=0, periodic=False): it must be spread over 1 process or more"),
    (lambda: lb.Layout((6,), [lb.Block(2, sizes=[3, 4])]), "axis 0: the sizes add up to 7, but the axis has 6 indices"),
    (lambda: lb.Layout((6,), [lb.Block(2, sizes=[3, -4])]), "axis 0: sizes[1] is -4: it cannot be negative"),
    (lambda: lb.Layout((6,), [lb.Lists([[0, 1], [1, 2, 3, 4, 5]])]),
     "axis 0: index 1 is owned by process 0 and by process 1"),
    (lambda: lb.Layout((6,), [lb.Lists([[0, 1], [3, 4, 5]])]), "axis 0: nobody owns index 2"),
    (lambda: lb.Layout((6, 2), [lb.Block(2)]), "1 axes are described, but the array has 2"),
    (lambda: lb.Layout((-6,), [lb.Block(2)]), "shape[0] is -6: it cannot be negative"),
    (lambda: lb.Layout((6,), [lb.Block(2.5)]), "axis 0: over is 2.5: it must be a whole number"),
    (lambda: lb.Layout((6,), [lb.Block(2)], order="K"), "order is 'K': it can be \\"C\\" or \\"F\\""),
    (lambda: lb.Layout((6,), [lb.Block(2)], grid=[1]), "grid[0] is 1: it can be an axis, 0 to 0, Along one, or Copies"),
    (lambda: lb.Layout((6,), [lb.Block(2)], grid=[]), "axis 0 is spread over 2 processes, but not in the grid"),
    (lambda: lb.Layout((6,), [lb.Cyclic(2, first=2)]), "axis 0: the first block belongs to process 2, but there are 2"),
    (lambda: lb.Layout.from_scalapack([502, 0, 9, 8, 2, 3, 1, 0, 5], (2, 3)),
     "descriptor is [502, 0, 9, 8, 2, 3, 1, 0, 5]: one of a dense matrix has 9 numbers, the first of which is 1"),
    (lambda: lb.Layout.from_scalapack([1, 0, 9, 8, 2, 0, 1, 0, 5], (2, 3)), "axis 1: a block of 0 indices"),
    (lambda: lb.Layout((8,), [lb.Block(4)], grid=[lb.Along(0, 3)]),
     "axis 0: spread over 4 processes, but the grid has 3 along it"),
    (lambda: lb.Layout(6, lb.Block(2, halo=(1, 2, 3))),
     "axis 0: halo is (1, 2, 3): it must be one whole number, or two"),
    (lambda: lb.Layout(6, lb.Block(2, periodic="no")), "axis 0: periodic is 'no': it must be True or False"),
    (lambda: lb.Layout(6, lb.Block(1 << 40)), "axis 0: over is 1099511627776: it must be less than 2**32"),
    (lambda: lb.Layout(6, lb.Lists([0, 1])), "axis 0: the list of process 0 is 0: it must be a list of indices"),
    (lambda: lb.Layout(6, lb.Lists(None)), "axis 0: lists is None: it must be a list of lists of indices"),
    (lambda: lb.Layout(6, lb.Block(2), grid=[0, lb.Copies(1 << 40)]),
     "grid[1]: copies is 1099511627776: it must be less than 2**32"),
    (lambda: lb.Layout(6, lb.Block(2), grid=[0.0]), "grid[0] is 0.0: it must be a whole number"),
    (lambda: lb.Layout(6, lb.Block(2), grid=[lb.Along(0, 2, "x")]), "grid[0]: order is 'x': it must be a whole number"),
    (lambda: lb.Layout(6, lb.Lists([np.array([0.5])])),
     "axis 0: an index of process 0 is 0.5: it must be a whole number"),
    (lambda: lb.Layout(2, lb.Lists([np.ma.masked_equal([0, 1], 1)])),
     "axis 0: an index of process 0 is None: it must be a whole number"),
    (lambda: lb.Layout(6, lb.Lists([np.array([0, -1])])), "axis 0: an index of process 0 is -1: it cannot be negative"),
    (lambda: lb.Lists.by_owner([0, 1.5], 2), "the owner of index 1 is 1.5: it must be a whole number"),
    (lambda: lb.Layout((6,), [3]), "axis 0 is 3: it can be Whole, Block, Cyclic or Lists"),
    (lambda: columns.local_shape(6), "rank 6: the layout is for 6 processes"),
    (lambda: columns.owner((4, 0)), "index [4, 0]: the array has shape [4, 6]"),
]:
    try:
        attempt()
    except (ValueError, TypeError, IndexError) as error:
        assert str(error) == text, (str(error), text)
    else:
        raise SystemExit(f"no error: {text}")
print("layouts are right")
"""


def test_layouts(workshop, mpi):
    done = workshop.run([mpi.python, "-c", LAYOUTS], environment=environment(mpi)).check()
    assert "layouts are right" in done.out, str(done)


AGAIN = """
import numpy as np
import landbridge as lb
from mpi4py import MPI

comm, n = MPI.COMM_WORLD, 600
rows = slice(comm.rank * n // comm.size, (comm.rank + 1) * n // comm.size)
layouts = [lb.Layout((n, n), [lb.Block(comm.size), lb.Whole()]), lb.Layout((n, n), [lb.Whole(), lb.Block(comm.size)])]
plan = lb.plan(*layouts, "f8", comm)
whole, kept = np.arange(n * n, dtype="f8").reshape(n, n), np.zeros((n, rows.stop - rows.start))
for time in range(20):
    part, expected = (whole + time)[rows].copy(), (whole + time)[:, rows]
    assert (plan.run(part) == expected).all(), time
    assert plan.run(part, into=kept) is kept and (kept == expected).all(), time
    assert (plan.run(np.asfortranarray(part), into=kept) == expected).all(), time
    # The target may be where the source is.
    memory = part.copy().reshape(-1)
    assert (plan.run(memory.reshape(part.shape), into=memory.reshape(expected.shape)) == expected).all(), time
    # Rank 0's array is new, the others' are not.
    assert (plan.run(part.copy() if comm.rank == 0 else part, into=kept) == expected).all(), time
print("every run is right")
"""


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_plan_is_run_again_with_other_arrays(workshop, mpi, ranks):
    done = alone(workshop, mpi, ranks, "-c", AGAIN)
    assert done.out.count("every run is right") == ranks, str(done)


STARTED = """
import asyncio
import numpy as np
import landbridge as lb
from mpi4py import MPI

comm, n = MPI.COMM_WORLD, 60
rows = slice(comm.rank * n // comm.size, (comm.rank + 1) * n // comm.size)
layouts = [lb.Layout((n, n), [lb.Block(comm.size), lb.Whole()]), lb.Layout((n, n), [lb.Whole(), lb.Block(comm.size)])]
plan, twin = lb.plan(*layouts, "f8", comm), lb.plan(*layouts, "f8", comm)
whole = np.arange(n * n, dtype="f8").reshape(n, n)
part, expected = whole[rows].copy(), whole[:, rows]
first, second, third = np.zeros((3, n, rows.stop - rows.start))

# Several in flight at once: of one plan, of two on the same pairs, with the same arrays, into another type.
for _ in range(5):
    single = np.zeros(first.shape, "f4")
    started = [plan.start(part, into=first), twin.start(-part, into=second), plan.start(part, into=first),
               plan.start(2 * part, into=single), twin.start(part)]
    assert started[0].wait() is first and (first == expected).all()
    assert started[1].wait() is second and (second == -expected).all()
    assert started[2].wait(10) is first and started[2].wait() is first
    assert (started[3].wait() == 2 * expected).all() and (started[4].wait() == expected).all()

async def both():
    one, other = plan.start(part, into=first), twin.start(-part, into=second)
    return await one, await other

assert asyncio.run(both()) == (first, second) or ((first == expected).all() and (second == -expected).all())

# A wait that ends early harms nothing: the last rank starts late.
comm.Barrier()
if comm.size > 1 and comm.rank < comm.size - 1:
    running = plan.start(part, into=third)
    try:
        running.wait(0.05)
    except TimeoutError as error:
        assert "longer than 0.05 s" in str(error)
    else:
        raise SystemExit("nothing to wait for?")

    async def cancelled():
        try:
            await asyncio.wait_for(running._until_over(), 0.05)
        except asyncio.TimeoutError:
            return
        raise SystemExit("nothing to wait for?")

    asyncio.run(cancelled())
else:
    import time
    time.sleep(1)
    running = plan.start(part, into=third)
assert running.wait() is third and (third == expected).all() and running.test()

# One rank cannot take part: all hear of it when they wait, and the next run is right.
wrong = plan.start(part if comm.rank else part[:1], into=third), plan.start(-part, into=second)
try:
    wrong[0].wait()
except lb.PlanError as error:
    assert str(error) == f"rank 0: ValueError: a has shape (1, {n}): this rank's part has {part.shape}", error
else:
    raise SystemExit("no error")
assert (wrong[1].wait() == -expected).all()
assert (plan.run(part, into=third) == expected).all()

# Who only sends to a rank that cannot take part hears of it in a later run.
if comm.size > 1:
    whole = lb.Layout((4,), [lb.Whole()])
    oneway, here = lb.plan(whole, whole, "f8", comm, src_ranks=[0], dst_ranks=[1]), np.arange(4.0)
    one, other = here if comm.rank == 0 else None, np.zeros(4 if comm.rank == 1 else 0)
    try:
        oneway.run(one, into=np.zeros(3) if comm.rank == 1 else None)
        heard = comm.rank > 1
    except lb.PlanError as error:
        heard = str(error) == "rank 1: ValueError: into has shape (3,): this rank's part has (4,)"
    import time
    for _ in range(1000):
        if comm.allreduce(heard, MPI.LAND):
            break
        time.sleep(0.01)
        try:
            oneway.run(one, into=other if comm.rank == 1 else None)
            assert comm.rank != 1 or (other == np.arange(4.0)).all()
        except lb.PlanError as error:
            assert comm.rank == 0 and not heard, error
            assert str(error).startswith("rank 1: ValueError: into has shape (3,)"), error
            heard = True
    assert comm.allreduce(heard, MPI.LAND)
    oneway.run(one, into=other if comm.rank == 1 else None)

# Memory of others: what exports a buffer, and what exports DLPack alone.
class Exports:
    def __init__(self, array, read_only=False):
        self.array = array
    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

target = memoryview(bytearray(third.nbytes)).cast("d", third.shape)
assert plan.run(memoryview(part), into=target) is target and (np.asarray(target) == expected).all()
third[...] = 0
target = Exports(third)
assert plan.run(Exports(part), into=target) is target and (third == expected).all()
third.flags.writeable = False
try:
    plan.run(Exports(part), into=Exports(third))
except lb.PlanError as error:
    assert "into is read-only" in str(error) or "readonly" in str(error), error
else:
    raise SystemExit("no error")
print("all that was started ended well")
"""


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_runs_are_started_and_waited_for(workshop, mpi, ranks):
    done = alone(workshop, mpi, ranks, "-c", STARTED)
    assert done.out.count("all that was started ended well") == ranks, str(done)


EXPLAINED = """
import landbridge as lb
from mpi4py import MPI

comm = MPI.COMM_WORLD
rows, columns = lb.Layout((8, 8), [lb.Block(4), lb.Whole()]), lb.Layout((8, 8), [lb.Whole(), lb.Block(4)])
told = comm.gather(lb.plan(rows, columns, "f8", comm).explain())
if comm.rank == 0:
    others = {1: 32, 2: 32, 3: 32}
    assert told[0]["sends"] == told[0]["receives"] == others and told[0]["keeps"] == 32, told[0]
    assert told[0]["steps"] == 4 and told[0]["degree"] == 3 and told[0]["bound"] == 96, told[0]
    print("routes", *(each["routes"] for each in told), sep=" | ")
"""


def test_a_plan_says_where_its_bytes_go(workshop, mpich_only):
    mpi = mpich_only
    here = {"node": 96, "site": 0, "sites": 0}
    assert f"routes | {' | '.join([str(here)] * 4)}" in alone(workshop, mpi, 4, "-c", EXPLAINED).out
    words = [LANDBRIDGE, "run", "-n", 4, "-x", "PYTHONPATH", "--", mpi.python, "-c", EXPLAINED]
    done = workshop.lab(words, sites=2, nodes=1, environment=environment(mpi), limit=120).finish().check()
    across = {"node": 32, "site": 0, "sites": 64}
    assert f"routes | {' | '.join([str(across)] * 4)}" in done.out, str(done)
    done = workshop.lab(words, sites=1, nodes=2, environment=environment(mpi), limit=120).finish().check()
    inside = {"node": 32, "site": 64, "sites": 0}
    assert f"routes | {' | '.join([str(inside)] * 4)}" in done.out, str(done)


MANY = """
import numpy as np
import landbridge as lb
from mpi4py import MPI

comm, n = MPI.COMM_WORLD, 4_000_000
half = slice(comm.rank * n // 2, (comm.rank + 1) * n // 2)
whole = np.random.default_rng(1).permutation(n).astype("i4")
dealt, blocks = lb.Layout((n,), [lb.Cyclic(2)]), lb.Layout((n,), [lb.Block(2)])
assert (lb.redistribute(whole[comm.rank :: 2], dealt, blocks, comm) == whole[half]).all()
assert (lb.redistribute(whole[half], blocks, dealt, comm) == whole[comm.rank :: 2]).all()
# The same as runs of one element, which each rank knows alone.
own = np.arange(comm.rank, n, 2)[::-1]
alone = lb.Runs((n,), 2, np.stack([own, np.ones_like(own)], 1))
assert (lb.redistribute(whole[own], alone, blocks, comm) == whole[half]).all()
print("all runs are right")
"""


def test_a_message_of_a_million_runs(workshop, mpich_only):
    done = alone(workshop, mpich_only, 2, "-c", MANY)
    assert done.out.count("all runs are right") == 2, str(done)


@pytest.mark.one_mpi
def test_messages_in_pieces(workshop, mpi):
    done = alone(workshop, mpi, 4, PROGRAMS / "pieces.py")
    assert done.out.count(": good") == 8, str(done)


LONG = """
import numpy as np
import landbridge as lb
from mpi4py import MPI

comm, rows, wide = MPI.COMM_WORLD, 1100, 1 << 21
whole = lb.Layout((rows, wide), [lb.Whole(), lb.Whole()])
row = np.arange(wide, dtype=np.uint8)
a = row[None] + np.arange(rows, dtype=np.uint8)[:, None] if comm.rank == 0 else None
b = lb.redistribute(a, whole, whole, comm, src_ranks=[0], dst_ranks=[1])
assert comm.rank == 0 or (b.nbytes > 1 << 31 and all((b[at] == row + np.uint8(at % 256)).all() for at in range(rows)))
print("long messages are right")
"""


@pytest.mark.skipif("LANDBRIDGE_LONG" not in os.environ, reason="it takes minutes and 12 GiB: make test-long runs it")
def test_a_message_of_more_than_2_gib(workshop, mpi):
    done = alone(workshop, mpi, 2, "-c", LONG)
    assert done.out.count("long messages are right") == 2, str(done)
