"""Programs that are not MPI programs, or not only: those that use libfabric themselves, and oneCCL."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import intel
from harness import LANDBRIDGE, PROGRAMS

# Every rank puts its address into PMI's key-value space, and each sends to the next one, as OpenSHMEM does.
RING = PROGRAMS / "fabric_ring.c"
# Programs that sleep while they wait, with the calls of Mercury and ADIOS2's SST among them.
WAIT = PROGRAMS / "fabric_wait.c"


def compiled(source, folder):
    """A program linked to libfabric and to no MPI."""
    includes = ["cc", "-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null"]
    if not shutil.which("cc") or subprocess.run(includes, capture_output=True, check=False).returncode:
        pytest.skip("no C compiler with libfabric's headers (package libfabric-dev)")
    program = folder / source.stem
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, source, "-o", program, "-lfabric", "-lpthread"], check=True)
    return program


@pytest.fixture
def ring(workshop):
    return compiled(RING, workshop.folder)


@pytest.fixture
def sleeper(workshop):
    return compiled(WAIT, workshop.folder)


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


# Two nodes a site with a rank each: through the gateways only. One site: a node's memory, and two nodes' network.
PLACES = {"across-sites": (2, 2, 4), "in-a-node": (1, 1, 2), "between-nodes": (1, 2, 2)}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", ["fd", "auto", "sst", pytest.param("mercury", marks=pytest.mark.matrix)])
def test_programs_that_sleep_while_they_wait(workshop, sleeper, what, place):
    sites, nodes, ranks = PLACES[place]
    run = [LANDBRIDGE, "run", "-n", ranks, "--mpi", "none", "--", sleeper, what]
    done = workshop.lab(run, sites=sites, nodes=nodes, limit=120).finish().check()
    assert done.out.count(f"{what} good over landbridge") == ranks, str(done)
    # An idle wait, and a target that sleeps, cost next to nothing. A rank that polls would take all of two seconds.
    spent = [float(time) for time in re.findall(r"([0-9.]+) s of processor time", done.out)]
    assert len(spent) == (0 if what == "mercury" else ranks // 2), str(done)
    assert all(time < 0.6 for time in spent), str(done)


def test_fi_info_shows_what_a_program_can_ask_for(workshop):
    if not shutil.which("fi_info"):
        pytest.skip("no fi_info (package libfabric-bin)")
    environment = {**os.environ, "FI_PROVIDER_PATH": str(LANDBRIDGE.parent)}
    for asked, shown in [
        (["-a", "FI_ADDR_STR"], ["addr_format: FI_ADDR_STR", "src_addr: fi_sockaddr_in://"]),
        ([], ["addr_format: FI_SOCKADDR_IN", "control_progress: FI_PROGRESS_MANUAL"]),
    ]:
        words = ["fi_info", "-p", "landbridge", "-v", *asked]
        text = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
        assert all(line in text for line in shown), text


def test_oneccl_across_sites(workshop):
    """No setting of oneCCL's is given: `run` sets the variables that it needs across sites."""
    program = PROGRAMS / "oneccl"
    if not program.exists():
        pytest.skip(f"{program} is not there: run make programs (it needs a C++ compiler and libhwloc-dev)")
    done = workshop.across(intel(), 4, [program], limit=120).finish().check()
    assert "oneccl: 4 ranks good" in done.out, str(done)
