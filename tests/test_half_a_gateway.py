"""A gateway that reaches the other sites and not its own nodes: of its two cards, only the inner one's cable is pulled.
Its trunks stay up, so other sites see nothing wrong; the job goes on through the site's other gateways."""

import pytest

from conftest import mpich
from harness import LANDBRIDGE

MATRIX = pytest.mark.matrix
PROGRAM = """
import os, sys, time
import numpy as np
from mpi4py import MPI

# It ends 5 s and two rounds after the cable has been pulled, however slow the machine is.
comm, started, pulled = MPI.COMM_WORLD, *sys.argv[1:]
end, last, round = None, None, 0
while True:
    if end is None and os.path.exists(pulled):
        end, last = time.monotonic() + 5, round + 2
    if comm.bcast(end is not None and time.monotonic() > end and round >= last, 0):
        break
    for size in (1, 5_000, 500_000):
        sent = [np.random.default_rng((comm.rank, to, round, size)).bytes(size) for to in range(comm.size)]
        got = [np.zeros(size, np.uint8) for _ in range(comm.size)]
        requests = [comm.Irecv(place, source) for source, place in enumerate(got)]
        requests += [comm.Isend(np.frombuffer(data, np.uint8), to) for to, data in enumerate(sent)]
        MPI.Request.Waitall(requests)
        for source, place in enumerate(got):
            expected = np.random.default_rng((source, comm.rank, round, size)).bytes(size)
            assert place.tobytes() == expected, (source, round)
    total = np.zeros(100)
    comm.Allreduce(np.full(100, float(comm.rank)), total)
    assert (total == sum(range(comm.size))).all()
    round += 1
    if comm.rank == 0 and round == 3:
        open(started, "w").close()
if comm.rank == 0:
    print("exact, rounds:", round)
"""
# The leading gateway and another one, of the site where the job was started and of the other.
CASES = [
    (2, 2, "b-gw1"),
    *(
        pytest.param(*case, marks=MATRIX)
        for case in [(2, 2, "b-gw2"), (2, 2, "a-gw1"), (2, 2, "a-gw2"), (2, 3, "b-gw1"), (3, 2, "c-gw1")]
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("sites, gateways, host", CASES)
def test_the_job_goes_on_through_the_others(workshop, isolated, sites, gateways, host):
    mpi, started, pulled = mpich(), workshop.folder / "started", workshop.folder / "pulled"
    (workshop.folder / "program.py").write_text(PROGRAM)
    script = (
        f"{LANDBRIDGE} run -n 6 -- {mpi.python} program.py {started} {pulled} & job=$!; "
        f"until [ -e {started} ]; do kill -0 $job || exit 9; sleep 0.1; done; "
        f"{LANDBRIDGE} lab enter {host} -- ip link set eth0 down; touch {pulled}; wait $job"
    )
    lab = workshop.lab(
        ["bash", "-c", script], sites=sites, options=["--gateways", gateways], environment=mpi.environment, limit=90
    )
    done = lab.finish()
    assert done.code == 0 and "exact, rounds:" in done.out, str(done)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["a-gw1", "b-gw1"])
def test_a_run_right_after_a_leading_gateway_has_lost_its_machine(workshop, isolated, host):
    """The other sites have not noticed yet, and its address does not answer: the job runs through the second one."""
    run = f"{LANDBRIDGE} run -n 2 --mpi none -- hostname"
    script = f"{run} > /dev/null; {LANDBRIDGE} lab unplug {host}; {run}"
    done = workshop.lab(["bash", "-c", script], options=["--gateways", 2]).finish()
    assert done.code == 0 and len(done.out.split()) == 2, str(done)
    # The other site is asked again, or has noticed.
    assert host != "a-gw1" or "site a: gateway gw1 did not answer in time" in done.err, str(done)
