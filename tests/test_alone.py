"""`run` without a sites file: on this machine, with each MPI."""

import re

from harness import LANDBRIDGE, PROGRAMS


def alone(workshop, mpi, ranks, *program):
    """Runs a program for a user who has no sites file."""
    home = workshop.folder / "home"
    home.mkdir(exist_ok=True)
    environment = {**mpi.environment, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    words = [LANDBRIDGE, "run", "-n", ranks, *program]
    return workshop.start(words, environment=environment).finish()


def test_helloworld(workshop, mpi):
    done = alone(workshop, mpi, 4, mpi.python, "-m", "mpi4py.bench", "helloworld").check()
    found = re.findall(r"I am process (\d) of 4 on (\S+)$", done.out, re.MULTILINE)
    assert sorted(rank for rank, _ in found) == list("0123") and len({host for _, host in found}) == 1, str(done)
    assert done.err.startswith("landbridge: no sites file, so all ranks run on this machine;"), str(done)


def test_messages_collectives_and_windows(workshop, mpi):
    done = alone(workshop, mpi, 3, mpi.python, PROGRAMS / "messages.py", 22).check()
    assert "messages: 198 good" in done.out, str(done)
    done = alone(workshop, mpi, 4, mpi.python, PROGRAMS / "collectives.py").check()
    assert "collectives: 4 ranks good" in done.out, str(done)
    done = alone(workshop, mpi, 4, mpi.python, PROGRAMS / "one_sided.py").check()
    assert "one-sided: 4 ranks good" in done.out, str(done)


def test_ranks_share_memory(workshop, mpi):
    code = "from mpi4py import MPI; print('beside', MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).size, flush=True)"
    done = alone(workshop, mpi, 3, mpi.python, "-c", code).check()
    assert done.out.count("beside 3") == 3, str(done)
