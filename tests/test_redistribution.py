"""Arrays between layouts, in jobs of each MPI library: under its own launcher, and across sites."""

import pytest

from harness import LANDBRIDGE, PROGRAMS, ROOT

PACKAGE = ROOT / "target" / "release" / "python"
RANDOM = PROGRAMS / "redistributions.py"
WRONG = PROGRAMS / "redistributions_refused.py"


def environment(mpi):
    return {**mpi.environment, "PYTHONPATH": str(PACKAGE)}


def alone(workshop, mpi, ranks, *words):
    """Runs a program under the MPI library's own launcher."""
    options = ["--allow-run-as-root", "--oversubscribe"] if mpi.name == "openmpi" else []
    words = [mpi.mpiexec, *options, "-n", ranks, mpi.python, *words]
    return workshop.run(words, environment=environment(mpi), limit=240).check()


@pytest.mark.parametrize("ranks", [1, 4, 7])
def test_random_redistributions_are_right(workshop, mpi, ranks):
    done = alone(workshop, mpi, ranks, RANDOM, 150, 1000 * ranks)
    assert "150 redistributions are right" in done.out, str(done)


def test_random_redistributions_across_sites_are_right(workshop, mpi):
    words = [LANDBRIDGE, "run", "-n", 6, "--mpi", mpi.name, "-x", "PYTHONPATH", "--", mpi.python, RANDOM, 60, 500]
    done = workshop.lab(words, sites=3, nodes=1, environment=environment(mpi), limit=240).finish().check()
    assert "60 redistributions are right" in done.out, str(done)


def test_what_cannot_be_is_refused_on_all_ranks_alike(workshop, mpi):
    done = alone(workshop, mpi, 3, WRONG)
    assert "all are refused" in done.out, str(done)


LAYOUTS = """
import doctest, pickle
import landbridge as lb, landbridge.layout

assert doctest.testmod(landbridge.layout).failed == 0
tried = doctest.testmod(landbridge.layout).attempted
assert tried > 2, tried

def numroc(n, nb, iproc, isrcproc, nprocs):  # as in ScaLAPACK's TOOLS/numroc.f
    mydist, nblocks = (nprocs + iproc - isrcproc) % nprocs, n // nb
    extra = nblocks % nprocs
    return nblocks // nprocs * nb + (nb if mydist < extra else n % nb if mydist == extra else 0)

for n, nb, over, first in [(1000, 64, 3, 0), (7, 2, 5, 4), (10, 100, 3, 1), (0, 4, 2, 0)]:
    layout = lb.Layout((n,), [lb.Cyclic(over, block=nb, first=first)])
    assert [layout.local_shape(rank)[0] for rank in range(over)] == [numroc(n, nb, rank, first, over) for rank in range(over)]

columns = lb.Layout((4, 6), [lb.Block(2), lb.Block(3)], grid=[1, 0])
assert [columns.owner((2, at)) for at in (0, 2, 4)] == [1, 3, 5]
assert lb.Layout((3,), [lb.Lists.by_owner([1, 0, 1], 2)]).local_shape(1) == (2,)
assert lb.Layout((), []).size == 1 and lb.Layout((), []).owner(()) == 0
assert lb.Layout((5,), [lb.Block(2)], grid=[lb.Copies(3), 0]).size == 6
assert eval(repr(columns), vars(lb)) == columns and hash(columns) != hash(lb.Layout((4, 6), columns.axes))

for attempt, text in [
    (lambda: lb.Layout((6,), [lb.Block(2, sizes=[3, 4])]), "axis 0: the sizes add up to 7, but the axis has 6 indices"),
    (lambda: lb.Layout((6,), [lb.Block(2, sizes=[3, -4])]), "axis 0: sizes[1] is -4: it cannot be negative"),
    (lambda: lb.Layout((6,), [lb.Lists([[0, 1], [1, 2, 3, 4, 5]])]), "axis 0: index 1 is owned by process 0 and by process 1"),
    (lambda: lb.Layout((6,), [lb.Lists([[0, 1], [3, 4, 5]])]), "axis 0: nobody owns index 2"),
    (lambda: lb.Layout((6, 2), [lb.Block(2)]), "1 axes are described, but the array has 2"),
    (lambda: lb.Layout((-6,), [lb.Block(2)]), "shape[0] is -6: it cannot be negative"),
    (lambda: lb.Layout((6,), [lb.Block(2.5)]), "axis 0: over is 2.5: it must be a whole number"),
    (lambda: lb.Layout((6,), [lb.Block(2)], order="K"), "order is 'K': it can be \\"C\\" or \\"F\\""),
    (lambda: lb.Layout((6,), [lb.Block(2)], grid=[1]), "grid[0] is 1: it can be an axis, 0 to 0, or Copies"),
    (lambda: lb.Layout((6,), [lb.Block(2)], grid=[]), "axis 0 is spread over 2 processes, but not in the grid"),
    (lambda: lb.Layout((6,), [lb.Cyclic(2, first=2)]), "axis 0: the first block belongs to process 2, but there are 2"),
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


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_plan_is_run_again_with_other_arrays(workshop, mpi, ranks):
    done = alone(workshop, mpi, ranks, "-c", AGAIN)
    assert done.out.count("every run is right") == ranks, str(done)
