"""Batch jobs in a lab with Slurm, and the node services that stage their files."""

import os
from pathlib import Path

from harness import LANDBRIDGE, Process
from services import start

LAB = f"{LANDBRIDGE} lab"


def cluster(services=("slurm", "node_service")):
    starter = 'kind = "slurm"\nnode_service = 7760'
    return {"starter": starter, "services": list(services), "nodes": False}


def sites():
    return {"a": cluster(), "b": {}}


def script(person, *lines):
    """Root's commands on site a's login node; lines that begin with `anna: ` are the user's."""
    own = " ".join(f"'{word}'" for word in person.words("bash", "-c"))
    typed = [f"{own} {quoted(line.removeprefix('anna: '))}" if line.startswith("anna: ") else line for line in lines]
    return ["bash", "-ec", "\n".join(["cd /", *typed])]


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def on(node, command):
    """A command of root's on a node, each of which has a /tmp of its own."""
    return f"{LAB} enter {node} -- sh -c {quoted(command)}"


def begin(workshop, person, *lines, nodes=4, staging=False, **options):
    plan = {"a": cluster(services=["slurm_staging"]), "b": {}} if staging else sites()
    return start(workshop, plan, script(person, *lines), nodes=nodes, host="a-gw1", person=person, **options)


MUNGED = "/run/slurm-a/munge/socket"


def line(words):
    return " ".join(quoted(str(word)) for word in words)


def at_work_as(person, kind):
    """This user's processes of a kind. A mover has no environment of a test's, by which others are found."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{entry}").st_uid == person.uid:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().decode().split("\0")[:-1]
                found.append(Process(int(entry), words))
        except OSError:
            continue
    return [process for process in found if process.is_landbridge(kind)]


MOVE = f"anna: {LANDBRIDGE} stage move --json"


def job(workshop, person, name, *directives, body="true"):
    """A job script of this user's."""
    path = workshop.folder / "homes" / f"{name}.sh"
    lines = ["#!/bin/sh", f"#SBATCH --job-name={name}", *(f"#BB_LUA landbridge {words}" for words in directives), body]
    path.write_text("\n".join(lines) + "\n")
    person.owns(path)
    return path


# A transfer with a rate takes the cores that it needs for it, so that a busy machine does not starve these tests.
RATE = "rate=200MB/s"
NODES = range(1, 5)


def until(condition, seconds=60):
    """Shell words that wait for a condition."""
    count = int(seconds * 5)
    return (
        f"for i in $(seq {count}); do {condition} && break; test $i -lt {count} || {{ echo TOO LATE: "
        f"{quoted(condition)};"
        f" squeue -o '%i %j %T %r %Y %N'; exit 9; }}; sleep 0.2; done"
    )


# Slurm may kill a teardown that it has just started; then the next sweep but one does it, within a minute.
FORGOTTEN = until('test -z "$(ls /run/slurm-a/state/landbridge)"', 90)


def gone(name):
    """Until a job is over, and nothing is known of any job's copies."""
    over = until(f'test -z "$(squeue -h -n {name} -o %i)"', 90)
    return f"{over}; {FORGOTTEN}"


def occupied(bob, node, minutes):
    """Another user's job on a node, which Slurm expects to end after some minutes. Slurm rounds: keep ends apart."""
    words = bob.words(
        "sbatch",
        "-w",
        f"n{node}",
        "--exclusive",
        f"-t{minutes}",
        "-J",
        f"busy{node}",
        "-o",
        "/dev/null",
        "--chdir=/",
        "--wrap",
        "exec sleep 1000",
    )
    return f"{line(words)}; {until(f'squeue -h -t R -n busy{node} -o %i | grep -q .')}"


def staged(name, node):
    """Until a job's input is complete on a node: a target appears as a whole."""
    return until(f"{LAB} enter a-n{node} -- test -e /tmp/{name}")


def left():
    """The processes and files that are left on each node."""
    return [on(f"a-n{node}", f'echo "left on n{node}:" $(ls -A /tmp)') for node in NODES]


def assert_nothing_left(done):
    for node in NODES:
        assert f"left on n{node}:\n" in done.out, str(done)


def service(running, node):
    """The node service of a node of site a. None while it is started again."""
    found = [
        process
        for process in running.processes("slurm")
        if process.words[1:5] == ["slurm", "node-service", "--node", node]
    ]
    return found[0] if found else None
