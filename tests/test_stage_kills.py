"""Processes are killed or frozen at any time: the same `landbridge stage move` continues, and all arrives once."""

import json
import os
import random
import sys
from pathlib import Path

import pytest

from harness import LANDBRIDGE, ROOT
from services import start
from slurm_jobs import at_work_as, on, script, sites
from test_stage import arrived, make_tree
from victims import Victims

NODES = ("n1", "n2")
HOSTS = [f"{site}-{node}" for site in "ab" for node in (*NODES, "gw1")]
# Until something moves again. The longest wait is for an agent that was being started when its site's leading gateway
# was lost: `run` gives it 5 s, and up to eight times that on a busy machine.
AGAIN_S = 60
# Attempts of a transfer after the last blow. The first may still meet a service that is only being started again.
ATTEMPTS = 5
SAME = "import sys; from test_stage import description; sys.exit(description(sys.argv[1]) != description(sys.argv[2]))"


def continued(words, enough):
    """A user's command, again and again until it succeeds."""
    move = f"{LANDBRIDGE} stage move --json --harm 100 --rate 8MB/s --block 128KiB {words}"
    again = f"do test ! -e {enough} || tries=$((tries + 1)); test $tries -lt {ATTEMPTS}; sleep 0.2; done"
    return ["tries=0; until", f"anna: {move}", again]


def arrived_once(node, folder, source):
    """A copy of the source and nothing else is in a folder of a node. Removes it."""
    same = f"PYTHONPATH={ROOT / 'tests'} {sys.executable} -c '{SAME}' {source} {folder}/copy"
    return on(node, f'ls -A {folder}; test "$(ls -A {folder})" = copy && {same} && rm -r {folder}/copy')


@pytest.mark.parametrize(
    ("blows", "gateways"),
    [
        (4, 1),
        pytest.param(100, 1, marks=pytest.mark.matrix),
        pytest.param(100, 2, marks=pytest.mark.matrix),
    ],
)
def test_after_random_kills_all_arrives_once(workshop, people, slurm, blows, gateways):
    """Movers, the command, agents, gateways and node services. From a node of a site without a batch system to two
    nodes of a cluster, where node services start the movers, and from one of these to the other site's gateway."""
    anna, _ = people
    source, back, enough = (workshop.folder / name for name in ("source", "back", "enough"))
    make_tree(source)
    for number in range(4):
        (source / f"larger{number}").write_bytes(random.Random(number).randbytes(10_000_000))
    back.mkdir()
    steps = [
        f"until [ -e {enough} ]; do",
        *continued(f"b/n1:{source} a/{','.join(NODES)}:/tmp/copy", enough),
        arrived_once("a-n1", "/tmp", source),
        *continued(f"a/n2:/tmp/copy b:{back}/copy", enough),
        arrived_once("b-gw1", back, source),
        arrived_once("a-n2", "/tmp", source),
        "done",
        f"anna: {LANDBRIDGE} stage status --json",
        *(on(host, f"echo left on {host}: $(ls -A /tmp; ls -A /dev/shm)") for host in HOSTS),
    ]
    plan = {name: {**site, "restart": True} for name, site in sites().items()}
    running = start(
        workshop,
        plan,
        script(anna, *steps),
        nodes=2,
        host="a-gw1",
        person=anna,
        options=["--gateways", gateways],
        limit=120 + 10 * blows,
    )

    def found(*kinds):
        """Those of the lab's own sites by their environment, those that a node service has started by their user."""
        both = [process for kind in kinds for process in (*running.processes(kind), *at_work_as(anna, kind))]
        return list({process.pid: process for process in both}.values())

    def receiving():
        """Movers whose node has a part of the copy."""
        return [mover for mover in found("mover") if arrived(Path(f"/proc/{mover.pid}/root/tmp")) > 40]

    victims = Victims(
        {
            "mover": lambda: found("mover"),
            "command": lambda: found("stage", "run"),
            "agent": lambda: found("agent", "agent-worker"),
            "gateway": lambda: found("gateway"),
            "node service": lambda: found("node-service"),
        },
        freezes=("mover", "gateway"),
        rounds=blows,
    )
    # Chance alone may strike only before the first block has arrived.
    running.wait_for(receiving, AGAIN_S, "a part of a copy")
    victims.hit("mover", receiving())
    victims.strike(lambda: running.wait_for(lambda: found("mover"), AGAIN_S, f"movers ({victims})"))
    enough.touch()
    done = running.finish()
    assert done.code == 0, f"{victims}\n{done}"
    print(victims)
    told = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert any(one["resumed"] > 0 for what in told for one in what.get("moved", [])), f"{victims}\n{done}"
    assert told[-1]["transfers"] == [], f"{victims}\n{done}"
    for host in HOSTS:
        assert f"left on {host}:\n" in done.out, f"{victims}\n{done}"
    assert not found("mover", "stage", "run", "agent", "agent-worker", "gateway", "node-service"), str(victims)
    sockets = anna.home / ".local" / "state" / "landbridge" / "stage"
    left = [os.path.join(at, name) for at, _, names in os.walk(sockets) for name in names]
    assert not left, f"{victims}: {left}"
