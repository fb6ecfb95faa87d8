"""No file of a job stays on its nodes, whichever process dies, at any time."""

import signal

import pytest

from harness import LANDBRIDGE, PROGRAMS, wait_until
from test_failures import END_S

# Output of our script about a node's `/dev/shm` and `/tmp` when nothing is left there.
CLEAN = "LEFT[]"


def left_on(host):
    """Shell words that list a node's `/dev/shm` and `/tmp`, after giving agents time to end."""
    names = f"{LANDBRIDGE} lab enter {host} -- find /dev/shm /tmp -mindepth 1"
    return (
        f'for i in $(seq 40); do left=$({names}) || left=unknown; test -z "$left" && break; sleep 0.1; done; '
        'echo "LEFT[$left]"'
    )


def job(mpi, program, options=""):
    """A script that runs a program on two ranks of each of two nodes and prints their remains. The exit code is
    the job's."""
    words = " ".join(f"'{word}'" for word in map(str, program))
    run = f"{LANDBRIDGE} run --site a=2 --site b=2 --mpi {mpi.name} {options} -- {words}"
    return ["bash", "-c", f"{run}; code=$?; {left_on('a-n1')}; {left_on('b-n1')}; exit $code"]


def in_lab(workshop, mpi, program, **options):
    return workshop.lab(job(mpi, program), nodes=1, environment=mpi.environment, limit=60, **options)


def leaves_nothing(done):
    assert done.out.count(CLEAN) == 2, str(done)
    return done


@pytest.mark.one_mpi
@pytest.mark.parametrize("victim", ["agent", "agent-worker", "rank", "run", "gateway"])
def test_nothing_stays_after_a_kill(workshop, mpi, isolated, victim):
    """`agent` is the keeper."""
    working = workshop.folder / "working"
    running = in_lab(workshop, mpi, [mpi.python, PROGRAMS / "endless.py", working])
    running.wait_for(working.exists, 30, "the job's ranks")
    if victim == "rank":
        found = [
            process
            for process in running.processes()
            if process.words[:2] == [str(mpi.python), str(PROGRAMS / "endless.py")]
        ]
    else:
        found = running.processes(victim)
    sorted(found, key=lambda process: process.pid)[0].kill(signal.SIGKILL)
    assert leaves_nothing(running.finish(within=4 * END_S)).code != 0


def test_nothing_stays_of_a_rank_that_dies_in_init(workshop, mpich_only, isolated):
    """The file exists, and its maker dies before its neighbours have opened it."""
    done = in_lab(workshop, mpich_only, [mpich_only.python, PROGRAMS / "early.py"]).finish()
    done.fails_naming("rank", "signal 9")
    leaves_nothing(done)


@pytest.mark.one_mpi
def test_nothing_stays_after_success(workshop, mpi, isolated):
    leaves_nothing(in_lab(workshop, mpi, [mpi.python, "-m", "mpi4py.bench", "helloworld"]).finish().check())


def test_a_file_for_a_window_goes_and_a_neighbours_stays(workshop, mpich_only, isolated):
    """MPICH unlinks the file of a window once all ranks have it. Among files of that kind only those that nobody has
    open, and that appeared while the job ran, can be the job's."""
    held = "exec 9>/dev/shm/mpich_shar_tmpNEIGHB; : >/dev/shm/mpich_shar_tmpBEFORE; sleep 1"
    script = job(mpich_only, [mpich_only.python, PROGRAMS / "stray.py"])
    script[2] = f"{held}; {script[2]}"
    done = workshop.lab(script, nodes=1, environment=mpich_only.environment, limit=60).finish()
    done.fails_naming("rank", "signal 9")
    left = sorted(line.removeprefix("LEFT[").removesuffix("]") for line in done.out.splitlines() if "/dev/shm" in line)
    assert left == [f"/dev/shm/mpich_shar_tmp{name}" for name in ("BEFORE", "NEIGHB")], str(done)


@pytest.mark.one_mpi
def test_the_next_agent_removes_what_two_killed_ones_left(workshop, mpi, isolated):
    working, again = workshop.folder / "working", workshop.folder / "again"
    endless = job(mpi, [mpi.python, PROGRAMS / "endless.py", working])[2].split("; code=")[0]
    script = (
        f"{endless}; while ! [ -e {again} ]; do sleep 0.1; done; "
        + job(mpi, [mpi.python, "-m", "mpi4py.bench", "helloworld"])[2]
    )
    running = workshop.lab(["bash", "-c", script], nodes=1, environment=mpi.environment, limit=90)
    running.wait_for(working.exists, 30, "the job's ranks")
    agents = running.processes("agent") + running.processes("agent-worker")
    assert len(agents) == 4, [process.words for process in running.processes()]
    for process in agents:
        process.kill(signal.SIGSTOP)
    for process in agents:
        process.kill(signal.SIGKILL)
    wait_until(lambda: not running.processes("run"), 30, "the job's end")
    again.touch()
    leaves_nothing(running.finish().check())
