"""Processes that die in mid-run: the job ends within five seconds, names process and host, and leaves nothing."""

import signal

import pytest

from harness import LANDBRIDGE, PROGRAMS, wait_until

# From the failure to the end of `landbridge run`, the lab's own end included.
END_S = 5.0


@pytest.mark.parametrize("how", ["segv", "kill", "9"])
@pytest.mark.one_mpi
def test_a_rank_that_crashes_is_named(workshop, mpi, how):
    done = workshop.across(mpi, 4, [mpi.python, PROGRAMS / "crash.py", 3, how], limit=30).finish()
    done.fails_naming("site b", "rank 3")
    failure = workshop.summary()["failure"]
    assert failure["site"] == "b" and failure["rank"] == 3 and failure["node"], failure
    assert failure["node"] in done.err, str(done)
    if how.isdecimal():
        assert done.code == 9, str(done)


def test_an_abort_ends_the_job_with_its_code(workshop, mpi):
    done = workshop.across(mpi, 4, [mpi.python, PROGRAMS / "abort.py", 2, 37], limit=30).finish()
    assert done.code == 37, str(done)
    done.fails_naming("site b", "rank 2", "MPI_Abort with code 37")


def start_endless(workshop, mpi, **options):
    """An endless job in a lab; returns once all its ranks work together."""
    working = workshop.folder / "working"
    running = workshop.across(mpi, 4, [mpi.python, PROGRAMS / "endless.py", working], limit=60, **options)
    running.wait_for(working.exists, 30, "the job's ranks")
    return running


def named(process, *hosts):
    """Which of the hosts a process's command line names."""
    return [host for host in hosts if any(host in word for word in process.words)]


@pytest.mark.one_mpi
@pytest.mark.parametrize("victim", ["first", "last"])
@pytest.mark.parametrize("which", ["agent", "agent-worker"])
def test_a_killed_agent_ends_the_job(workshop, mpi, which, victim):
    """An agent is two processes, the keeper and its worker; neither death may leave a rank behind."""
    running = start_endless(workshop, mpi)
    agents = sorted(running.processes(which), key=lambda process: process.pid)
    assert len(agents) == 4, [process.words for process in running.processes()]
    agents[0 if victim == "first" else -1].kill()
    done = running.finish(within=END_S)
    done.fails_naming("site", "node", "agent")
    failure = workshop.summary()["failure"]
    assert failure["site"] in ("a", "b") and failure["node"], failure


@pytest.mark.one_mpi
@pytest.mark.parametrize("victim", [0, 1], ids=["own-gateway", "remote-gateway"])
def test_a_killed_gateway_ends_the_job(workshop, mpi, victim):
    running = start_endless(workshop, mpi)
    site = "ab"[victim]
    gateways = [process for process in running.processes("gateway") if named(process, site)]
    gateways = [process for process in gateways if process.words[process.words.index("--site") + 1] == site]
    assert len(gateways) == 1, [process.words for process in running.processes("gateway")]
    gateways[0].kill()
    done = running.finish(within=END_S)
    done.fails_naming("gateway", f"site {site}")
    assert workshop.summary()["failure"]["site"] == site


@pytest.mark.one_mpi
def test_a_killed_launcher_takes_its_job_along(workshop, mpi):
    """kill -9 of `landbridge run`: agents and ranks at both sites end, and so does the lab whose command it was."""
    running = start_endless(workshop, mpi)
    launchers = running.processes("run")
    assert len(launchers) == 1
    launchers[0].kill()
    assert running.finish(within=END_S).code != 0


def test_ranks_of_a_killed_launcher_end_while_the_lab_lives(workshop, mpich_only):
    working = workshop.folder / "working"
    run = f"{LANDBRIDGE} run -n 4 -- {mpich_only.python} {PROGRAMS / 'endless.py'} {working}"
    script = f"{run} & while ! [ -e {working} ]; do sleep 0.1; done; kill -9 $!; wait; touch gone; sleep 60"
    running = workshop.lab(["bash", "-c", script], environment=mpich_only.environment)
    wait_until((workshop.folder / "gone").exists, 30, "the launcher's end")

    def ranks():
        return [process for process in running.processes() if str(PROGRAMS / "endless.py") in process.words]

    wait_until(lambda: not ranks() and not running.processes("agent"), END_S, "ranks to end")
    assert len(running.processes("gateway")) == 2, "gateways outlive a job"
    running.child.send_signal(signal.SIGTERM)
    running.finish(within=END_S)


@pytest.mark.one_mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_the_job(workshop, mpi, number):
    running = start_endless(workshop, mpi)
    running.processes("run")[0].kill(number)
    done = running.finish(within=END_S)
    assert done.code == 128 + number, str(done)


def test_a_rank_that_leaves_without_finalize_is_noticed(workshop, mpich_only):
    """Exit code 0 without MPI_Finalize while the others wait for it: no hang."""
    done = workshop.across(mpich_only, 4, [mpich_only.python, PROGRAMS / "crash.py", 2, 0], limit=30).finish()
    done.fails_naming("rank 2", within=20)


@pytest.mark.one_mpi
def test_nothing_stays_in_a_nodes_shared_memory(workshop, mpi):
    """MPICH removes its files there only at MPI_Finalize; a killed rank never gets there."""
    run = f"{LANDBRIDGE} run --site a=2 --site b=2 --mpi {mpi.name} -- {mpi.python} {PROGRAMS / 'crash.py'} 1 9"
    wait = 'for i in $(seq 25); do [ -z "$(ls -A /dev/shm)" ] && break; sleep 0.2; done'
    script = f"{run}; code=$?; {wait}; echo left: $(ls -A /dev/shm); exit $code"
    done = workshop.lab(["bash", "-c", script], nodes=1, environment=mpi.environment, limit=30).finish()
    done.fails_naming("site a", "rank 1")
    assert "left:\n" in done.out, str(done)


@pytest.mark.one_mpi
@pytest.mark.parametrize("site", ["a", "b"], ids=["own-site", "remote-site"])
def test_the_last_word_about_a_site_without_gateways_is_ours(workshop, mpi, site):
    """Both gateways of a site, one after the other: ranks, agents and the launcher notice at different times, and
    MPI complains at length."""
    working, told = workshop.folder / "working", workshop.folder / "told"
    run = f"{LANDBRIDGE} run -n 4 --mpi {mpi.name} -- {mpi.python} {PROGRAMS / 'endless.py'} {working} 2>{told}"
    running = workshop.lab(["bash", "-c", run], options=["--gateways", 2], environment=mpi.environment)
    running.wait_for(working.exists, 30, "the job's ranks")
    gateways = [
        process for process in running.processes("gateway") if process.words[process.words.index("--site") + 1] == site
    ]
    assert len(gateways) == 2, [process.words for process in running.processes("gateway")]
    for gateway in gateways:
        gateway.kill()
    done = running.finish(within=3 * END_S)
    last = told.read_text().splitlines()[-1]
    assert last.startswith(f"landbridge: site {site}: ") and "gateway" in last and "`landbridge sites check`" in last, (
        told.read_text()
    )
    assert done.code == 75, str(done)
