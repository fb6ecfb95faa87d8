"""Many ranks at once, with a gateway's default settings."""

import pytest

from harness import LANDBRIDGE

DEFAULTS = ["--gateway-memory", "256MiB"]
ALLREDUCE = """
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.allreduce(world.rank) == world.size * (world.size - 1) // 2
world.Barrier()
if world.rank == 0: print(f"crowd: {world.size} ranks good")
"""


@pytest.mark.alone
def test_two_thousand_ranks_start(workshop):
    """An agent that starts 500 ranks on a busy machine takes seconds for that, and answers its gateway meanwhile."""
    done = workshop.lab([LANDBRIDGE, "run", "-n", 2000, "--", "true"], options=DEFAULTS, limit=120).finish().check()
    assert not done.out, str(done)


@pytest.mark.slow
@pytest.mark.alone
def test_256_ranks_start_and_reduce(workshop, mpich_only):
    program = [mpich_only.python, "-c", ALLREDUCE]
    done = workshop.across(mpich_only, 256, program, options=DEFAULTS, limit=240).finish().check()
    assert "crowd: 256 ranks good" in done.out, str(done)


@pytest.mark.slow
@pytest.mark.alone
def test_64_ranks_of_open_mpi_leave_their_launcher_a_core(workshop, openmpi_only):
    """While they wait for each other to start, they poll 1,000 times a second, not 10,000 times: with that no
    launcher, agent or kernel thread had a core for up to a minute."""
    slack = "assert open('/proc/self/timerslack_ns').read().split() == ['1000000']"
    done = (
        workshop.across(openmpi_only, 64, [openmpi_only.python, "-c", ALLREDUCE + slack], options=DEFAULTS, limit=240)
        .finish()
        .check()
    )
    assert "crowd: 64 ranks good" in done.out, str(done)
