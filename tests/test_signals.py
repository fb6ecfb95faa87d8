"""Signals that reach a launcher: Ctrl-Z, a hangup under nohup, and the warnings of batch systems."""

import signal
import time
from pathlib import Path

import pytest

from harness import LANDBRIDGE, LoopbackSites, wait_until

# Longer than any silence that gateways, agents or ranks put up with.
STOPPED_S = 8.0
COUNTS = "trap 'echo resumed' CONT; n=0; while [ ! -e $1 ]; do n=$((n+1)); echo $n; sleep 0.1; done; echo end"


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def launcher(running):
    return next(process for process in running.processes("run") if process.pid)


def ranks(running, word):
    return [process for process in running.processes() if process.words[:1] == ["bash"] and word in process.words]


@pytest.mark.parametrize("where", ["alone", "two sites"])
def test_a_job_that_was_stopped_goes_on_when_it_is_continued(workshop, where, tmp_path):
    stop, environment, places = tmp_path / "stop", {}, ["-n", "2"]
    if where == "two sites":
        sites = LoopbackSites(workshop)
        for name in ("a", "b"):
            sites.start_gateway(name)
        environment, places = {"LANDBRIDGE_SITES": str(sites.file)}, ["--site", "a=1", "--site", "b=1"]
    words = [LANDBRIDGE, "run", *places, "--", "bash", "-c", COUNTS, "counts", stop]
    running = workshop.start(words, environment=environment, limit=60)
    running.wait_for(lambda: running.out().count("3\n") >= 2, 20, "both ranks to count")
    process = launcher(running)
    process.kill(signal.SIGTSTP)
    wait_until(lambda: state(process.pid) == "T", 5, "the launcher to stop")
    counting = ranks(running, str(stop))
    assert len(counting) >= 2
    wait_until(lambda: all(state(rank.pid) == "T" for rank in counting), 5, "the ranks to stop")
    time.sleep(STOPPED_S)
    process.kill(signal.SIGCONT)
    wait_until(lambda: running.out().count("resumed") == 2, 10, "the ranks to go on")
    stop.write_text("stop\n")
    done = running.finish(within=20).check()
    assert done.out.count("end\n") == 2, str(done)


def test_a_hangup_that_is_ignored_stays_ignored(workshop, tmp_path):
    stop = tmp_path / "stop"
    words = ["nohup", LANDBRIDGE, "run", "-n", "1", "--", "bash", "-c", COUNTS, "counts", stop]
    running = workshop.start(words, limit=40)
    running.wait_for(lambda: "3\n" in running.out(), 20, "the rank to count")
    launcher(running).kill(signal.SIGHUP)
    before = running.out().count("\n")
    wait_until(lambda: running.out().count("\n") > before + 5, 10, "the rank to go on")
    stop.write_text("stop\n")
    running.finish(within=20).check()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGURG, signal.SIGXCPU])
def test_warnings_of_batch_systems_reach_the_ranks(workshop, number):
    program = f"trap 'echo warned; exit 0' {number.value}; echo ready; while :; do sleep 0.05; done"
    running = workshop.start([LANDBRIDGE, "run", "-n", "2", "--", "bash", "-c", program], limit=40)
    running.wait_for(lambda: running.out().count("ready") == 2, 20, "the ranks")
    launcher(running).kill(number)
    done = running.finish(within=20).check()
    assert done.out.count("warned") == 2, str(done)
