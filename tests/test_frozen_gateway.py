"""The only gateway of a site hangs for as long as its peers need to give it up, and goes on: not all have noticed then,
and each that has reports something else to the launcher. The job ends as one that lost its gateway, which it names."""

import json

import pytest

from conftest import mpich
from harness import LANDBRIDGE

MATRIX = pytest.mark.matrix
PROGRAM = """
import sys, time
import numpy as np
from mpi4py import MPI

comm, end = MPI.COMM_WORLD, time.monotonic() + 60
mine, all = np.zeros(1000), np.zeros(1000 * comm.size)
while comm.bcast(time.monotonic() < end, 0):
    comm.Allgather(mine, all)
    if comm.rank == 0:
        open(sys.argv[1], "w").close()
    time.sleep(0.005)
"""
FROZEN = [
    ("a-gw1", 8),
    *(pytest.param(host, time, marks=MATRIX) for host, time in [("a-gw1", 6), ("b-gw1", 6), ("b-gw1", 7)]),
]


@pytest.mark.slow
@pytest.mark.parametrize("host, seconds", FROZEN)
def test_it_is_named_though_it_goes_on(workshop, isolated, host, seconds):
    mpi, started, summary = mpich(), workshop.folder / "started", workshop.folder / "run.json"
    (workshop.folder / "program.py").write_text(PROGRAM)
    script = (
        f"{LANDBRIDGE} run -n 4 --json={summary} -- {mpi.python} program.py {started} & job=$!; "
        f"until [ -e {started} ]; do kill -0 $job || exit 9; sleep 0.1; done; "
        f"{LANDBRIDGE} lab freeze {host}; sleep {seconds}; {LANDBRIDGE} lab thaw {host}; wait $job"
    )
    done = workshop.lab(["bash", "-c", script], environment=mpi.environment).finish()
    assert done.code == 75, str(done)
    assert json.loads(summary.read_text())["failure"]["site"] == host[0], str(done)
    assert "no sign of life for" in done.err.splitlines()[-1], str(done)
