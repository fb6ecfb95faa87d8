"""Programs that are not MPI programs, or not only: those that use libfabric themselves, and oneCCL."""

import shutil
import subprocess

import pytest

from conftest import intel
from harness import LANDBRIDGE, PROGRAMS

# Every rank puts its address into PMI's key-value space, and each sends to the next one: what OpenSHMEM and its kin do.
RING = PROGRAMS / "fabric_ring.c"


@pytest.fixture
def ring(workshop):
    """The ring as a program, linked to libfabric and to no MPI."""
    if not shutil.which("cc") or subprocess.run(["cc", "-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null"], capture_output=True, check=False).returncode:
        pytest.skip("no C compiler with libfabric's headers (package libfabric-dev)")
    program = workshop.folder / "ring"
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", RING, "-o", program, "-lfabric"], check=True)
    return program


@pytest.mark.parametrize("choice", [[], ["--mpi", "none"]])
def test_a_program_that_uses_libfabric_itself(workshop, ring, choice):
    done = workshop.lab([LANDBRIDGE, "run", "-n", 4, *choice, "--", ring]).finish().check()
    lines = sorted(done.out.splitlines())
    assert lines == [f"rank {rank} of 4: heard {(rank + 3) % 4} over landbridge" for rank in range(4)], str(done)


def test_behind_a_shell_it_has_to_be_named(workshop, ring):
    run = [LANDBRIDGE, "run", "-n", 2]
    done = workshop.lab([*run, "--", "sh", "-c", f"exec {ring}"], nodes=1).finish()
    assert done.code != 0 and "--mpi none" in done.err, str(done)
    done = workshop.lab([*run, "--mpi", "none", "--", "sh", "-c", f"exec {ring}"], nodes=1).finish().check()
    assert done.out.count("over landbridge") == 2, str(done)


def test_a_rank_that_dies_ends_the_job(workshop, ring):
    done = workshop.lab([LANDBRIDGE, "run", "-n", 4, "--mpi", "none", "--", ring, "die"]).finish()
    assert done.code == 128 + 9 and "rank 2" in done.err, str(done)


def test_oneccl_across_sites(workshop):
    """No setting of oneCCL's is given: `run` sets what it needs across sites."""
    program = PROGRAMS / "oneccl"
    if not program.exists():
        pytest.skip(f"{program} is not there: run make programs (it needs a C++ compiler and libhwloc-dev)")
    done = workshop.across(intel(), 4, [program], limit=120).finish().check()
    assert "oneccl: 4 ranks good" in done.out, str(done)
