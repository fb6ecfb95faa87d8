"""Programs that exchange arrays: launched apart, on one machine, at two sites, on different MPI libraries."""

import os
import re
import signal
import time

import pytest

from conftest import intel, mpich, openmpi
from coupled import Coupled
from harness import LANDBRIDGE, PROGRAMS, SHARE, wait_until

RANDOM = PROGRAMS / "couplings.py"
MATRIX = pytest.mark.matrix


def assert_all_came(runs, count):
    done = [run.finish() for run in runs]
    for each in done:
        each.check()
    came = sum(int(line.split()[0]) for each in done for line in each.out.splitlines() if line.endswith("arrays came"))
    assert came == count, "\n".join(map(str, done))


@pytest.mark.parametrize(("left", "right"), [(mpich, openmpi), (intel, mpich)], ids=["mpich-openmpi", "intel-mpich"])
@pytest.mark.parametrize("sites", ["ab", "aa"], ids=["apart", "together"])
def test_random_arrays_between_programs_on_different_mpis_are_right(workshop, left, right, sites):
    coupled = Coupled(workshop)
    runs = [
        coupled.start(mpi(), site, ranks, RANDOM, "random@a", side, "3,2", 60, 7000)
        for side, (mpi, site, ranks) in enumerate([(left, sites[0], 3), (right, sites[1], 2)])
    ]
    assert_all_came(runs, 60)


def test_a_program_across_sites_meets_one_that_its_own_launcher_started(workshop):
    coupled, mpi = Coupled(workshop, names="abc"), mpich()
    words = [
        LANDBRIDGE,
        "run",
        "-n",
        4,
        "--mpi",
        mpi.name,
        "-x",
        "PYTHONPATH",
        "-x",
        "PATH",
        "-x",
        "LANDBRIDGE_SITES",
        "--",
    ]
    words += [mpi.python, RANDOM, "far@b", 0, "4,3", 40, 9000]
    across = workshop.start(words, environment=coupled.environment(mpi, "a"), limit=120)
    other = coupled.start(mpi, "c", 3, RANDOM, "far@b", 1, "4,3", 40, 9000)
    assert_all_came([across, other], 40)


def test_three_programs_on_three_mpis_at_three_sites(workshop):
    coupled, ring = Coupled(workshop, names="abc"), PROGRAMS / "ring.py"
    programs = [(mpich, "a", 1), (intel, "b", 2), (openmpi, "c", 1)]
    runs = [coupled.start(mpi(), site, ranks, ring, number, 12) for number, (mpi, site, ranks) in enumerate(programs)]
    done = [run.finish() for run in runs]
    for each in done:
        assert "ring: good" in each.check().out, str(each)


@pytest.mark.parametrize("sites", ["ab", "aa"], ids=["apart", "together"])
def test_elements_that_are_anywhere(workshop, sites):
    coupled, program = Coupled(workshop), PROGRAMS / "scattered.py"
    sides = [(mpich, sites[0], 3), (openmpi, sites[1], 4)]
    runs = [coupled.start(mpi(), site, ranks, program, "any@a", side) for side, (mpi, site, ranks) in enumerate(sides)]
    done = [run.finish() for run in runs]
    assert [each.check().out.count(": good") for each in done] == [3, 4], "\n".join(map(str, done))


ONE = """
import numpy as np, landbridge as lb
layout = lb.Layout((6, 4), [lb.Whole(), lb.Whole()])
with lb.join("one@a", timeout=20) as coupling:
    {work}
print("ended well")
"""
EXPORT = "coupling.export('v', np.arange(24.).reshape(6, 4), layout, version={version})"


COPIES = """
import sys, numpy as np, landbridge as lb
from mpi4py import MPI
comm, shape = MPI.COMM_WORLD, (700, 600)
whole = np.arange(420_000.).reshape(shape)
rows = lb.Layout(shape, [lb.Block(comm.size), lb.Whole()])
copies = lb.Layout(shape, [lb.Whole(), lb.Cyclic(2, block=7)], order="F", grid=[lb.Copies(3), 0, 1])
part = np.array_split(whole, comm.size)[comm.rank]
mine = [at for at in range(600) if at // 7 % 2 == comm.rank % 2]
with lb.join("copies@a", comm, timeout=30) as coupling:
    for version in range(5):
        if sys.argv[1] == "exports":
            coupling.export("v", part + version, rows, version=version)
        elif version % 2:
            into = np.zeros(copies.local_shape(comm.rank), "f4")
            coupling.fetch("v", copies, version=version, into=into)
            assert (into == (whole + version)[:, mine].astype("f4")).all(), version
        else:
            assert (coupling.fetch("v", copies, version=version) == (whole + version)[:, mine]).all(), version
        if version == 2 and sys.argv[1] == "fetches":
            try:
                coupling.fetch("v", copies, version=1)
            except lb.CouplingError as error:
                assert "it is not there" in str(error), error
            else:
                raise AssertionError("a version came back")
print("copies: good", flush=True)
"""


@pytest.mark.one_mpi
@pytest.mark.parametrize("sites", ["ab", "aa"], ids=["apart", "together"])
def test_copies_are_passed_on_from_process_to_process(workshop, mpi, sites):
    """Each of six processes has one of three copies of half of the array."""
    coupled = Coupled(workshop)
    runs = [
        coupled.start(mpi, site, ranks, "-c", COPIES, what)
        for site, ranks, what in zip(sites, (2, 6), ("exports", "fetches"))
    ]
    done = [run.finish(within=100) for run in runs]
    good = sum(each.check().out.count("copies: good") for each in done)
    assert good == 8, "\n".join(map(str, done))


def test_processes_without_mpi(workshop):
    coupled, mpi = Coupled(workshop), mpich()
    masked = """try:
        coupling.export("v", np.ma.masked_greater(np.ones((6, 4)), 0), layout, version=1)
    except lb.PlanError as error:
        assert "a is a masked array: its mask would be lost" in str(error), error
    else:
        raise SystemExit("a mask was dropped")
    """
    exports = masked + "\n    ".join(EXPORT.format(version=version) for version in (3, 5, 6, 8))
    exports = ONE.format(work=exports)
    fetches = ONE.format(
        work="""half = lb.Layout((3, 4), [lb.Whole(), lb.Whole()], order="F")
    x = coupling.fetch("v", half, version=3, select=[slice(None, None, 2), slice(None)])
    assert x.flags.f_contiguous and (x == np.arange(24.).reshape(6, 4)[::2]).all(), x
    into = np.zeros((6, 4), ">f4")
    assert coupling.fetch("v", layout, version=6, into=into) is into and into[5, 3] == 23
    for bad, text in [
        (np.ma.masked_all((6, 4)), "into is a masked array"),
        (np.lib.stride_tricks.as_strided(np.zeros(9), (6, 4), (8, 0)), "into has elements that share memory"),
    ]:
        try:
            coupling.fetch("v", layout, version=8, into=bad)
        except lb.PlanError as error:
            assert text in str(error), error
        else:
            raise SystemExit(f"not refused: {text}")
    try:
        coupling.fetch("v", layout, version=5)
    except lb.CouplingError as error:
        assert str(error).startswith("one@a: v, version 5: it is not there: the newest is"), error
    assert coupling.fetch("v", layout, version=8)[1, 1] == 5"""
    )
    runs = [coupled.python(mpi, "a", exports), coupled.python(mpi, "b", fetches)]
    for run in runs:
        assert "ended well" in run.finish().check().out


def test_a_fetch_between_sites_needs_little_memory_besides_its_array(workshop):
    """Messages come in pieces, and no more than a few of these wait to be unpacked."""
    coupled, mpi = Coupled(workshop), mpich()
    exports, fetches = (
        f"""
import resource
import numpy as np, landbridge as lb

layout = lb.Layout((4096, 4096), [lb.Whole(), lb.Whole()])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with lb.join("much@a", timeout=30) as coupling:
    {work}
print("ended well")
"""
        for work in (
            'coupling.export("v", np.arange(4096.0 * 4096).reshape(4096, 4096), layout)',
            """into = np.full((4096, 4096), 1.0, order="F")
    before = peak()
    coupling.fetch("v", layout, into=into)
    more = peak() - before
    assert (into.reshape(-1) == np.arange(4096.0 * 4096)).all()
    print(f"{more:.0f} MiB more")
    assert more < 64, more""",
        )
    )
    runs = [coupled.python(mpi, "a", exports), coupled.python(mpi, "b", fetches)]
    for run in runs:
        done = run.finish(within=90).check()
        assert "ended well" in done.out
        print(done.out)


STARTS = """
import asyncio, sys, time
import numpy as np, landbridge as lb
from mpi4py import MPI

comm, side = MPI.COMM_WORLD, int(sys.argv[1])
rows, columns = lb.Layout((6, 8), [lb.Block(2), lb.Whole()]), lb.Layout((6, 8), [lb.Whole(), lb.Block(2)])
pair = lb.Layout(2, lb.Block(2))
whole = np.arange(48.0).reshape(6, 8)
mine, wanted = slice(3 * comm.rank, 3 * comm.rank + 3), whole[:, 4 * comm.rank : 4 * comm.rank + 4]
with lb.join("starts@a", comm, timeout=20) as coupling:
    if side == 0:
        for version in range(4):
            coupling.export("v", whole[mine] + version, rows, version=version)
            if version == 0:
                coupling.fetch("go", pair)
    else:
        assert (coupling.fetch("v", columns, version=0) == wanted).all()
        # It has not been exported yet.
        into = np.zeros((6, 4))
        started = coupling.start_fetch("v", columns, version=1, into=into)
        assert not started.test()
        for early, kind, text in [
            (lambda: coupling.start_fetch("v", columns, version=2), lb.PlanError,
             "v, version 1, is still being fetched"),
            (lambda: started.wait(0.05), TimeoutError, "longer than 0.05 s"),
        ]:
            try:
                early()
            except kind as error:
                assert text in str(error), error
            else:
                raise SystemExit(f"no error: {text}")
        for turn in range(4):
            assert not started.test()
            time.sleep(0.01)
        coupling.export("go", np.zeros(1), pair)
        while not started.test():
            time.sleep(0.01)
        assert started.wait() is into and (into == wanted + 1).all() and started.wait() is into

        async def awaited():
            return await coupling.start_fetch("v", columns, version=2)

        assert (asyncio.run(awaited()) == wanted + 2).all()
        # What does not fit on one rank is begun on none.
        try:
            coupling.start_fetch("v", columns, version=3, into=np.zeros((6, 3 if comm.rank else 4)))
        except lb.PlanError as error:
            assert "rank 1: into has shape (6, 3): this rank's part has (6, 4)" in str(error), error
        else:
            raise SystemExit("no error")
        assert (coupling.fetch("v", columns, version=3) == wanted + 3).all()
print("ended well")
"""


def test_fetches_are_started_and_waited_for(workshop):
    coupled = Coupled(workshop)
    runs = [
        coupled.start(mpi(), site, 2, "-c", STARTS, side)
        for side, (mpi, site) in enumerate([(mpich, "a"), (openmpi, "b")])
    ]
    for run in runs:
        assert run.finish().check().out.count("ended well") == 2


# The other side exports a variable only when this one has gone on after `start_fetch`.
AT_ONCE = """
import pathlib, sys, time
import numpy as np, landbridge as lb
from mpi4py import MPI

comm, side, gone_on = MPI.COMM_WORLD, int(sys.argv[1]), pathlib.Path(sys.argv[2])
rows, columns = lb.Layout((6, 8), [lb.Block(2), lb.Whole()]), lb.Layout((6, 8), [lb.Whole(), lb.Block(2)])
whole = np.arange(48.0).reshape(6, 8)
wanted = whole[:, 4 * comm.rank : 4 * comm.rank + 4]
scattered = lb.Runs((6, 8), comm.size, [(24 * comm.rank, 24)])

def after(name):
    while not (gone_on / name).exists():
        time.sleep(0.01)

def go_on(name):
    comm.barrier()
    (gone_on / name).touch()

with lb.join("once@a", comm, timeout=20) as coupling:
    if side == 0:
        for name in ["waited", "tested", "wrong", "anywhere"]:
            after(name)
            coupling.export(name, whole[3 * comm.rank : 3 * comm.rank + 3], rows)
    else:
        started = coupling.start_fetch("waited", columns)
        try:
            started.wait(0.05)
        except TimeoutError as error:
            assert "longer than 0.05 s" in str(error), error
        else:
            raise SystemExit("no error")
        go_on("waited")
        assert (started.wait() == wanted).all()
        into = np.zeros((6, 4))
        started = coupling.start_fetch("tested", columns, into=into)
        assert not started.test()
        go_on("tested")
        while not started.test():
            time.sleep(0.01)
        assert started.wait() is into and (into == wanted).all()
        started = coupling.start_fetch("wrong", columns, into=np.zeros((6, 3 if comm.rank else 4)))
        go_on("wrong")
        try:
            started.wait()
        except lb.PlanError as error:
            assert "rank 1: into has shape (6, 3): this rank's part has (6, 4)" in str(error), error
        else:
            raise SystemExit("no error")
        started = coupling.start_fetch("anywhere", scattered)
        go_on("anywhere")
        assert (started.wait() == whole.ravel()[24 * comm.rank : 24 * comm.rank + 24]).all()
        assert (coupling.fetch("wrong", columns) == wanted).all()
print("ended well")
"""


def test_a_fetch_is_started_before_anything_was_exported(workshop):
    coupled, gone_on = Coupled(workshop), workshop.folder / "gone-on"
    gone_on.mkdir()
    places = enumerate([(mpich, "a"), (openmpi, "b")])
    runs = [coupled.start(mpi(), site, 2, "-c", AT_ONCE, side, gone_on) for side, (mpi, site) in places]
    for run in runs:
        assert run.finish().check().out.count("ended well") == 2


@pytest.mark.parametrize(
    ("name", "site", "texts"),
    [
        ("one@a", "a", ["no coupling within 2 s: nobody else has joined one@a"]),
        ("one@z", "a", ["unknown site `z`: the sites file has a, b"]),
        ("one", "a", ["`one` is not NAME@SITE"]),
    ],
)
def test_who_is_alone_hears_why(workshop, name, site, texts):
    coupled, mpi = Coupled(workshop), mpich()
    text = f"import landbridge as lb; lb.join({name!r}, timeout=2)"
    coupled.python(mpi, site, text).finish().fails_naming(*texts)


def test_a_third_side_is_refused(workshop):
    coupled, mpi = Coupled(workshop), mpich()
    waits = ONE.format(work="import time; print('joined', flush=True); time.sleep(60)")
    pair = [coupled.python(mpi, site, waits) for site in "ab"]
    for run in pair:
        wait_until(lambda run=run: "joined" in run.out(), 20, "the coupling")
    third = coupled.python(mpi, "b", ONE.format(work="pass")).finish()
    third.fails_naming("one@a already has two sides", "take another name")
    for run in pair:
        run.end()


DIES = """
import os, signal, time
import numpy as np, landbridge as lb
layout = lb.Layout((6, 4), [lb.Whole(), lb.Whole()])
try:
    with lb.join("one@a", timeout=20) as coupling:
        print("joined", os.getpid(), flush=True)
        coupling.fetch("never", layout)
except lb.CouplingError as error:
    print("heard:", error, flush=True)
"""


@pytest.mark.parametrize("sites", ["ab", "aa"], ids=["apart", "together"])
@pytest.mark.parametrize("killed", ["process", "helper"])
def test_a_side_that_dies_is_noticed_by_the_other(workshop, sites, killed):
    coupled, mpi = Coupled(workshop), mpich()
    runs = [coupled.python(mpi, site, DIES) for site in sites]
    for run in runs:
        wait_until(lambda run=run: "joined" in run.out(), 20, "the coupling")
    victim = runs[0]
    if killed == "process":
        os.kill(int(victim.out().split()[1]), signal.SIGKILL)
    else:
        (helper,) = victim.processes("couple")
        helper.kill()
    began = time.monotonic()
    done = runs[1].finish(within=20)
    assert time.monotonic() - began < 10 * SHARE, str(done)
    assert re.search("heard: one@a: .*(the other side .*has left|is lost|its helper has ended)", done.out), str(done)
    if killed == "helper":
        # Processes of one site are connected to each other, and so hear of it before the silence of the side counts.
        assert sites == "ab" or "no sign of life" not in done.out, str(done)
        assert "heard: one@a" in victim.finish(within=20).out
    else:
        victim.end()


@pytest.mark.parametrize(
    ("stopped", "gateways", "sites"),
    [
        ("process", 1, "ab"),
        ("side", 2, "aa"),
        pytest.param("process", 1, "aa", marks=MATRIX),
        pytest.param("process", 2, "ab", marks=MATRIX),
        pytest.param("process", 2, "aa", marks=MATRIX),
        pytest.param("side", 1, "ab", marks=MATRIX),
        pytest.param("side", 1, "aa", marks=MATRIX),
        pytest.param("side", 2, "ab", marks=MATRIX),
    ],
)
def test_a_side_that_stands_still_is_noticed_by_the_other(workshop, sites, stopped, gateways):
    coupled, mpi = Coupled(workshop, gateways=gateways), mpich()
    runs = [coupled.python(mpi, site, DIES) for site in sites]
    for run in runs:
        wait_until(lambda run=run: "joined" in run.out(), 20, "the coupling")
    victims = [int(runs[0].out().split()[1])]
    if stopped == "side":
        victims += [helper.pid for helper in runs[0].processes("couple")]
    try:
        for victim in victims:
            os.kill(victim, signal.SIGSTOP)
        done = runs[1].finish(within=25)
    finally:
        for victim in victims:
            os.kill(victim, signal.SIGCONT)
    assert re.search("heard: one@a: .*(is lost|no sign of life)", done.out) and "site #" not in done.out, str(done)
    assert "heard: one@a" in runs[0].finish(within=20).out


LEAVES = """
import os, sys, numpy as np, landbridge as lb
from mpi4py import MPI
# In one write: what ranks write at the same time is mixed.
sys.excepthook = lambda kind, error, _: os.write(2, f"{kind.__module__}.{kind.__name__}: {error}\\n".encode())
comm, side, leaver = MPI.COMM_WORLD, int(sys.argv[1]), sys.argv[2]
layout = lb.Layout((12,), [lb.Block(comm.size)])
with lb.join("leaves@a", comm, timeout=30) as coupling:
    for version in range(200):
        if version == 5 and leaver == f"{side}.{comm.rank}":
            raise ValueError("a mistake")
        if side == 0:
            coupling.export("v", np.zeros(4), layout, version=version)
        else:
            coupling.fetch("v", layout, version=version)
"""


@pytest.mark.parametrize(
    "mpi", [mpich, pytest.param(intel, marks=MATRIX), pytest.param(openmpi, marks=MATRIX)], indirect=True
)
@pytest.mark.parametrize("leaver", ["0.1", "1.2"], ids=["exporter", "fetcher"])
def test_a_rank_that_leaves_alone_takes_all_others_with_it(workshop, mpi, leaver):
    coupled, program = Coupled(workshop), workshop.folder / "leaves.py"
    program.write_text(LEAVES)
    runs = [coupled.start(mpi, site, 3, program, side, leaver) for side, site in enumerate("ab")]
    for side, run in enumerate(runs):
        done = run.finish(within=40)
        assert done.code != 0 and done.err.count("ValueError: a mistake") >= 2, str(done)
        others = 3 - (leaver[0] == str(side))
        assert done.err.count("landbridge.CouplingError: ") == others, str(done)


def test_mismatches_are_errors_on_both_sides(workshop):
    coupled, mpi = Coupled(workshop), mpich()
    exports = ONE.format(work=EXPORT.format(version=1))
    fetches = ONE.format(work="coupling.fetch('v', lb.Layout((5, 4), [lb.Whole(), lb.Whole()]), version=1)")
    one, other = coupled.python(mpi, "a", exports), coupled.python(mpi, "b", fetches)
    other.finish(within=30).fails_naming("PlanError", "v")
    one.finish(within=30).fails_naming("v, version 1", "never fetched", "PlanError")


@pytest.mark.parametrize(("other", "gateway"), [("b", ("a", 2)), ("a", ("a", 1))], ids=["two sites", "one site"])
def test_several_gateways_and_the_loss_of_one(workshop, other, gateway):
    coupled, mpi = Coupled(workshop, gateways=2), mpich()
    exports = ONE.format(work="import time; time.sleep(9); " + EXPORT.format(version=1))
    fetches = ONE.format(work="print('joined', flush=True); print(coupling.fetch('v', layout, version=1).sum())")
    runs = [coupled.python(mpi, "a", exports), coupled.python(mpi, other, fetches)]
    wait_until(lambda: "joined" in runs[1].out(), 20, "the coupling")
    # Longer than a side may be missing from all boards.
    time.sleep(5)
    coupled.gateways[gateway].child.kill()
    assert "276" in runs[1].finish(within=40).check().out
    assert "ended well" in runs[0].finish(within=40).check().out


def test_a_restarted_gateway_does_not_end_a_coupling_at_one_site(workshop):
    coupled, mpi = Coupled(workshop), mpich()
    exports = ONE.format(work="import time; time.sleep(6); " + EXPORT.format(version=1))
    fetches = ONE.format(work="print('joined', flush=True); print(coupling.fetch('v', layout, version=1).sum())")
    runs = [coupled.python(mpi, "b", exports), coupled.python(mpi, "b", fetches)]
    wait_until(lambda: "joined" in runs[1].out(), 20, "the coupling")
    board = coupled.gateways["a", 1]
    board.end()
    coupled.sites.start_gateway("a")
    assert "276" in runs[1].finish(within=40).check().out
    assert "ended well" in runs[0].finish(within=40).check().out


LATE = """
import time, numpy as np, landbridge as lb
layout = lb.Layout((6, 4), [lb.Whole(), lb.Whole()])
with lb.join("late@a", timeout=20) as coupling:
    coupling.export("v", np.full((6, 4), 1.0), layout, version=1)
    time.sleep(3)
    coupling.export("v", np.full((6, 4), 2.0), layout, version=2)
print("late: good")
"""
IMPATIENT = """
import numpy as np, landbridge as lb
from mpi4py import MPI
comm = MPI.COMM_WORLD
layout = lb.Layout((6, 4), [lb.Whole(), lb.Whole()], grid=[lb.Copies(comm.size), 0, 1])
with lb.join("late@a", comm, timeout=20) as coupling:
    assert (coupling.fetch("v", layout, version=1) == 1.0).all()
    for tries in range(2):
        try:
            coupling.fetch("v", layout, version=2, timeout=0.5)
        except TimeoutError:
            continue
        raise AssertionError("it came before it was exported")
    try:
        coupling.fetch("v", layout, version=2, into=np.zeros((6, 4)), timeout=20)
    except lb.PlanError as error:
        assert "v, version 2, was asked for before" in str(error), error
    else:
        raise AssertionError("it came into another array")
    assert (coupling.fetch("v", layout, version=2, timeout=20) == 2.0).all()
    try:
        # What never comes does not hold up the end.
        coupling.fetch("v", layout, version=9, timeout=0.5)
    except (TimeoutError, lb.CouplingError):
        pass
    else:
        raise AssertionError("version 9 came")
print("late: good", flush=True)
"""


@pytest.mark.parametrize("sites", ["ab", "aa"], ids=["apart", "together"])
def test_a_fetch_that_took_too_long_may_be_tried_again(workshop, mpich_only, sites):
    coupled = Coupled(workshop)
    runs = [
        coupled.python(mpich_only, sites[0], LATE),
        coupled.start(mpich_only, sites[1], 2, "-c", IMPATIENT, limit=60),
    ]
    done = [run.finish(within=50) for run in runs]
    good = sum(each.check().out.count("late: good") for each in done)
    assert good == 3, "\n".join(map(str, done))
