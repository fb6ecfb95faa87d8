"""The library for C, C++ and Fortran, compiled with and run by each MPI library."""

import shutil
import subprocess

import pytest

from conftest import mpich
from coupled import Coupled
from harness import BUILT, LANDBRIDGE, PROGRAMS, ROOT

C = ROOT / "arrays" / "c"
FLAGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{C / 'include'}"]
MATRIX = pytest.mark.matrix
LINK = [f"-L{BUILT}", "-llandbridge", f"-Wl,-rpath,{BUILT}"]


def compiled(*words):
    subprocess.run([str(word) for word in words], check=True, timeout=120)


def built(workshop, mpi, compiler="mpicc", *flags, name="redistribute"):
    """The program for this library. Intel MPI runs programs compiled for MPICH."""
    home = mpi.home.with_name(".venv") if mpi.name == "intel" else mpi.home
    source, program = PROGRAMS / f"{name}.c", workshop.folder / f"{name}-{mpi.name}"
    compiled(home / "bin" / compiler, *(flags or ["-std=c99"]), "-O2", *FLAGS, source, "-o", program, *LINK)
    return program


def alone(workshop, mpi, ranks, *words):
    """Runs a program under the MPI library's own launcher."""
    return workshop.run([*mpi.launcher, "-n", ranks, *words], environment=mpi.environment, limit=240).check()


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=MATRIX), 4, pytest.param(7, marks=MATRIX)])
def test_random_redistributions_are_right(workshop, mpi, ranks):
    done = alone(workshop, mpi, ranks, built(workshop, mpi), 300, 1000 * ranks, "alone")
    assert "300 redistributions are right" in done.out, str(done)


@pytest.mark.one_mpi
def test_what_cannot_be_is_refused_on_all_ranks_alike(workshop, mpi):
    done = alone(workshop, mpi, 3, built(workshop, mpi), "refuse")
    assert "all are refused" in done.out, str(done)


@pytest.mark.one_mpi
def test_across_sites(workshop, mpi):
    program = built(workshop, mpi)
    words = [LANDBRIDGE, "run", "-n", 6, "--mpi", mpi.name, "--", program, 40, 500]
    done = workshop.lab(words, sites=3, nodes=1, environment=mpi.environment, limit=240).finish().check()
    assert "40 redistributions are right" in done.out, str(done)


def test_c_plus_plus(workshop, mpich_only):
    done = alone(workshop, mpich_only, 4, built(workshop, mpich_only, "mpicxx", "-x", "c++", "-std=c++11"), 50, 1)
    assert "50 redistributions are right" in done.out, str(done)


def built_fortran(workshop, name):
    """With Debian's Open MPI: PyPI's libraries have no Fortran. The program, and the words that start it."""
    mpifort, mpicc, mpiexec = (shutil.which(f"{each}.openmpi") for each in ("mpifort", "mpicc", "mpiexec"))
    if not (mpifort and mpicc and mpiexec and shutil.which("gfortran")):
        pytest.skip("mpifort.openmpi is not there: apt install openmpi-bin libopenmpi-dev gfortran")
    folder = workshop.folder
    glue, program = folder / "landbridge_fortran.o", folder / name
    compiled(mpicc, "-O2", *FLAGS, "-c", C / "fortran" / "landbridge_fortran.c", "-o", glue)
    sources = [C / "fortran" / "landbridge.f90", PROGRAMS / f"{name}.f90"]
    compiled(mpifort, "-O2", "-Wall", f"-J{folder}", *sources, glue, "-o", program, *LINK)
    return [mpiexec, "--allow-run-as-root", "--oversubscribe"], program


def test_fortran(workshop):
    start, program = built_fortran(workshop, "redistribute")
    done = workshop.run([*start, "-n", 4, program], limit=60).check()
    assert "fortran: good" in done.out, str(done)


@pytest.mark.parametrize(("what", "other"), [("export", "fetch"), ("fetch", "export")])
@pytest.mark.parametrize("site", ["b", pytest.param("a", marks=MATRIX)], ids=["apart", "together"])
@pytest.mark.one_mpi
def test_couplings_with_python(workshop, mpi, what, other, site):
    coupled, program = Coupled(workshop), built(workshop, mpi, name="couple")
    environment = coupled.environment(mpi, "a")
    words = [*mpi.launcher, "-n", 3, program, "c@a", what]
    runs = [
        workshop.start(words, environment=environment, limit=120),
        coupled.start(mpich(), site, 2, PROGRAMS / "couple_c.py", "c@a", other),
    ]
    done = [run.finish() for run in runs]
    assert f"{what}: good" in done[0].check().out and f"{other}: good" in done[1].check().out, "\n".join(map(str, done))


def test_a_coupling_of_c_that_cannot_be_is_refused(workshop, mpich_only):
    coupled, program = Coupled(workshop), built(workshop, mpich_only, name="couple")
    environment = coupled.environment(mpich_only, "a")
    words = [mpich_only.mpiexec, "-n", 3, program, "c@a"]
    alone = workshop.start([*words, "alone"], environment=environment, limit=60).finish().check()
    assert "alone: good" in alone.out, str(alone)
    for what, other in (("wrong", "serve"), ("leave", "wait")):
        run = workshop.start([*words, what], environment=environment, limit=60)
        python = coupled.start(mpich_only, "b", 2, PROGRAMS / "couple_c.py", "c@a", other)
        done = [run.finish(), python.finish()]
        assert f"{what}: good" in done[0].check().out, "\n".join(map(str, done))
        assert f"{other}: good" in done[1].check().out, "\n".join(map(str, done))


@pytest.mark.parametrize(("what", "other"), [("export", "fetch"), ("fetch", "export")])
def test_couplings_of_fortran_with_python(workshop, mpich_only, what, other):
    start, program = built_fortran(workshop, "couple")
    coupled = Coupled(workshop)
    environment = {**coupled.environment(mpich_only, "a"), "LD_LIBRARY_PATH": ""}
    run = workshop.start([*start, "-n", 3, program, "f@a", what], environment=environment, limit=120)
    python = coupled.start(mpich_only, "b", 2, PROGRAMS / "couple_c.py", "f@a", other)
    done = [run.finish(), python.finish()]
    assert f"{what}: good" in done[0].check().out and f"{other}: good" in done[1].check().out, "\n".join(map(str, done))
