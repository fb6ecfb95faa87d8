"""Several programs in one job, with each MPI."""

import json
import re

import pytest

from harness import LANDBRIDGE, PROGRAMS

LINE = re.compile(
    r"^(\w+): rank (\d+) of (\d+) at (\w+), program (\d+) of (\S+), rank (\d+) of (\d+) there, universe (\d+)$",
    re.MULTILINE,
)


def run(workshop, mpi, *words, **options):
    command = [LANDBRIDGE, "run", f"--json={workshop.folder / 'run.json'}", *words]
    return workshop.lab(command, environment=mpi.environment, **options).finish()


def program(mpi, name):
    return [mpi.python, PROGRAMS / "appnum.py", name]


@pytest.mark.one_mpi
def test_programs_know_their_number_across_sites(workshop, mpi):
    done = run(
        workshop,
        mpi,
        "-n",
        1,
        *program(mpi, "head"),
        ":",
        "-n",
        4,
        *program(mpi, "ocean"),
        ":",
        "-n",
        3,
        *program(mpi, "air"),
    )
    done.check()
    sites = "aaaabbbb"
    expected = [
        ("head", 0, 0, 1),
        *(("ocean", 1, rank, 4) for rank in range(4)),
        *(("air", 2, rank, 3) for rank in range(3)),
    ]
    expected = [
        (name, str(rank), "8", sites[rank], str(number), "head,ocean,air", str(inner), str(size), "8")
        for rank, (name, number, inner, size) in enumerate(expected)
    ]
    assert sorted(LINE.findall(done.out), key=lambda found: int(found[1])) == expected, str(done)
    assert workshop.summary()["mpi"] == mpi.name


def test_each_program_at_a_site_of_its_own(workshop, mpi):
    done = run(
        workshop, mpi, "--site", "b=3", *program(mpi, "ocean"), ":", "--site", "a=2", *program(mpi, "air")
    ).check()
    found = sorted((int(rank), name, site, number) for name, rank, _, site, number, *_ in LINE.findall(done.out))
    assert found == [(rank, "ocean", "b", "0") for rank in range(3)] + [(rank, "air", "a", "1") for rank in (3, 4)], (
        str(done)
    )
    summary = json.loads((workshop.folder / "run.json").read_text())
    assert [(site["name"], site["ranks"]) for site in summary["sites"]] == [("b", [0, 1, 2]), ("a", [3, 4])]


def test_programs_on_one_node(workshop, mpi):
    words = ["-n", 2, *program(mpi, "ocean"), ":", "-n", 2, *program(mpi, "air")]
    done = run(workshop, mpi, *words, sites=1, nodes=1).check()
    found = sorted((int(rank), name, number) for name, rank, _, _, number, *_ in LINE.findall(done.out))
    assert found == [(0, "ocean", "0"), (1, "ocean", "0"), (2, "air", "1"), (3, "air", "1")], str(done)


@pytest.mark.one_mpi
def test_a_program_without_mpi_among_them_is_named(workshop, mpi):
    done = run(workshop, mpi, "-n", 1, *program(mpi, "ocean"), ":", "-n", 1, "hostname", sites=1, nodes=1)
    done.fails_naming("hostname uses no MPI", f"uses {mpi.name}", "all programs of a job need the same MPI library")
