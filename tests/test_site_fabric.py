"""Sites with a network of their own, reached through libfabric's tcp and shm: different ones in one job, on each
MPI."""

import os
import re
from pathlib import Path

import pytest

from harness import LANDBRIDGE, PROGRAMS
from services import start

END_S = 5.0
# Shared memory, MPI's or ours, would leave nothing to do for the fabric of a site with one node.
NOT_LOCAL = {"MPIR_CVAR_NOLOCAL": "1", "I_MPI_FABRICS": "ofi"}
NO_MEMORY = 'memory = "off"'
SYSTEM = Path("/usr/lib/x86_64-linux-gnu/libfabric.so.1")


@pytest.fixture
def libfabric():
    if not SYSTEM.exists():
        pytest.skip(f"{SYSTEM} is not there: apt install libfabric1")


def site(fabric, *lines):
    return {"head": "\n".join([f'fabric = "{fabric}"', *lines, ""])}


def begin(workshop, mpi, sites, program, *options, ranks=4, nodes=2, environment=None, limit=120):
    """`landbridge run` across sites, some of which have a fabric; the provider's notes go to `notes`."""
    words = [
        LANDBRIDGE,
        "run",
        "-n",
        ranks,
        "--mpi",
        mpi.name,
        f"--json={workshop.folder / 'run.json'}",
        *options,
        "--",
        *program,
    ]
    environment = {**mpi.environment, "LANDBRIDGE_LOG_FILE": str(workshop.folder / "notes"), **(environment or {})}
    return start(workshop, sites, words, environment=environment, nodes=nodes, limit=limit)


def fabrics(workshop):
    """The fabric that each rank's endpoint reported: {(site, rank): text or None}."""
    notes = (workshop.folder / "notes").read_text()
    opened = re.findall(r"\(rank (\d+) at site #(\d+)\) opened(?:, fabric (.*))?$", notes, re.MULTILINE)
    assert opened, notes
    return {(int(site), int(rank)): fabric or None for rank, site, fabric in opened}


def through(workshop, **wanted):
    """Every rank used its site's fabric: a provider's name, or None."""
    found = fabrics(workshop)
    for (number, _), fabric in found.items():
        expected = wanted["ab"[number]]
        assert (fabric is None) == (expected is None), found
        assert expected is None or re.match(rf"{expected}\b", fabric), found
    assert len({number for number, _ in found}) == 2, found


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    "program, good",
    [
        ("messages.py", "messages: 1408 good"),
        ("one_sided.py", "one-sided: 8 ranks good"),
        ("collectives.py", "collectives: 8 ranks good"),
    ],
)
def test_a_site_with_a_fabric_and_one_without(workshop, mpi, isolated, libfabric, program, good):
    done = (
        begin(workshop, mpi, {"a": site("tcp")}, [mpi.python, PROGRAMS / program], ranks=8, limit=240).finish().check()
    )
    assert good in done.out, str(done)
    through(workshop, a="tcp", b=None)


def test_two_sites_with_unlike_fabrics(workshop, mpi, isolated, libfabric):
    """Four ranks on the one node of each site, none of them through MPI's own shared memory."""
    sites = {"a": site("tcp", NO_MEMORY), "b": site("shm", NO_MEMORY)}
    program = [mpi.python, PROGRAMS / "messages.py", 22]
    done = begin(workshop, mpi, sites, program, ranks=6, nodes=1, environment=NOT_LOCAL, limit=240).finish().check()
    assert "messages: 792 good" in done.out, str(done)
    through(workshop, a="tcp", b="shm")


def test_semantics_through_a_fabric(workshop, mpi, isolated, libfabric):
    sites = {"a": site("shm", NO_MEMORY), "b": site("tcp", NO_MEMORY)}
    done = (
        begin(workshop, mpi, sites, [mpi.built(PROGRAMS / "semantics")], ranks=4, nodes=1, environment=NOT_LOCAL)
        .finish()
        .check()
    )
    assert "all good" in done.out, str(done)
    through(workshop, a="shm", b="tcp")


def test_a_libfabric_of_the_sites_own(workshop, mpi, isolated, libfabric):
    """In addition to the one that MPI brings: two in one process, which must not interfere."""
    sites = {"a": site("tcp", f'libfabric = "{SYSTEM}"')}
    done = begin(workshop, mpi, sites, [mpi.python, PROGRAMS / "messages.py", 11]).finish().check()
    assert "messages: 176 good" in done.out, str(done)
    assert all(str(SYSTEM) in fabric for (number, _), fabric in fabrics(workshop).items() if number == 0)


@pytest.mark.one_mpi
@pytest.mark.parametrize("fabric", ["tcp", "shm"])
def test_a_killed_rank_ends_the_job(workshop, mpi, isolated, libfabric, fabric):
    working = workshop.folder / "working"
    running = begin(
        workshop,
        mpi,
        {"a": site(fabric, NO_MEMORY)},
        [mpi.python, PROGRAMS / "endless.py", working],
        nodes=1,
        environment=NOT_LOCAL,
    )
    running.wait_for(working.exists, 60, "the job's ranks")
    ranks = [
        process
        for process in running.processes()
        if str(PROGRAMS / "endless.py") in process.words and "run" not in process.words
    ]
    victim = [p for p in ranks if b"LANDBRIDGE_RANK=1" in Path(f"/proc/{p.pid}/environ").read_bytes().split(b"\0")]
    victim[0].kill()
    running.finish(within=END_S + 5).fails_naming("site a", "rank 1")
    left = [name for name in os.listdir("/dev/shm") if "fi_" in name]
    assert not left, left


def test_a_fabric_that_is_cut_ends_the_job(workshop, mpich_only, isolated, libfabric):
    """Its provider reports nothing, and TCP, on another address, still works."""
    program = [mpich_only.python, PROGRAMS / "cut.py", "127.0.0.1/8", "lo"]
    environment = {**NOT_LOCAL, "FI_TCP_IFACE": "lo"}
    done = begin(workshop, mpich_only, {"a": site("tcp", NO_MEMORY)}, program, nodes=1, environment=environment).finish(
        within=60
    )
    done.fails_naming("site a", "fabric tcp", "has stopped delivering")
    assert "cut" in done.out and "went on" not in done.out, str(done)


@pytest.mark.one_mpi
def test_a_provider_that_is_not_there_is_named_with_what_is(workshop, mpi, isolated, libfabric):
    done = begin(workshop, mpi, {"b": site("cxi")}, [mpi.python, PROGRAMS / "messages.py", 11]).finish()
    done.fails_naming(
        "site b: node n", "the site's fabric `cxi` cannot be used", "no provider `cxi` here", "tcp", "shm"
    )


def test_a_libfabric_that_is_not_there_is_named(workshop, mpich_only, isolated):
    sites = {"a": site("tcp", 'libfabric = "/no/such/libfabric.so.1"')}
    done = begin(workshop, mpich_only, sites, [mpich_only.python, PROGRAMS / "messages.py", 11]).finish()
    done.fails_naming("site a: node n", "/no/such/libfabric.so.1")
