"""`landbridge stage --mode`: blocks that are pulled, sent and broadcast."""

import json
import os
import random
import re

import numpy as np
import pytest

from harness import LANDBRIDGE, ONCE
from test_stage import MOVE, arrived, description, in_lab, make_tree, moved, nothing_hidden, on
from test_stage_nodes import STAGE, part

MODES = ["pull", "send", "bcast"]
# Of a tree of `make_tree`, with a margin for headers.
TREE = 9_222_998
# A rate gives movers the cores that they need for it, also on a busy machine.
QUICK = "--rate 200MB/s --block 256KiB"
CLOSED = re.compile(r"job closed job=.* received=(\d+)")


def crossed(site, jobs=1):
    """Shell words that print the bytes from the WAN to a site in each job, once its gateway has closed them."""
    log = f"$LANDBRIDGE_LAB/log/{site}-gw1.log"
    return f"until [ $(grep -c 'job closed' {log}) -ge {jobs} ]; do sleep 0.05; done; grep 'job closed' {log}"


@pytest.mark.parametrize("mode", MODES)
def test_all_nodes_of_three_sites_get_a_tree(workshop, mode):
    """Large, small and sparse files, also to the source's own node, over each trunk once."""
    source = make_tree(workshop.folder / "source")
    nodes = ["a/n1", "a/n2", "b/n1", "b/n2", "c/n1", "c/n2"]
    for node in nodes:
        (workshop.folder / "to" / node).mkdir(parents=True)
    done = (
        in_lab(
            workshop,
            (
                f"{STAGE} in --json --mode {mode} {QUICK} --host {','.join(nodes)} "
                f"a/n1:{source}={workshop.folder}/to/%s/%n/"
            ),
            crossed("b"),
            crossed("c"),
            sites=3,
        )
        .finish()
        .check()
    )
    for node in nodes:
        assert description(workshop.folder / "to" / node / "source") == description(source), node
        nothing_hidden(workshop.folder / "to" / node)
    received = list(map(int, CLOSED.findall(done.out)))
    assert len(received) == 2 and all(TREE < one < ONCE * TREE for one in received), received


@pytest.mark.parametrize("mode", ["send", "bcast"])
def test_after_a_kill_each_target_gets_what_it_lacks(workshop, isolated, mode):
    """One target has lost its blocks: the others get nothing twice, and the trunk is crossed once for all."""
    source, size = workshop.folder / "source", 16_000_000
    source.write_bytes(random.Random(1).randbytes(size))
    targets = [workshop.folder / node / "target" for node in ("n1", "n2", "n3")]
    for target in targets:
        target.parent.mkdir()
    move = f"--block 128KiB --mode {mode} --host b/n1,b/n2,b/n3 a/n1:{source}={workshop.folder}/%n/target"
    running = in_lab(
        workshop,
        f"{STAGE} in --rate 12MB/s {move} && exit 1 || true",
        f"cd {workshop.folder}; touch stopped; while [ ! -e go ]; do sleep 0.05; done",
        f"{STAGE} in --json --rate 200MB/s {move}",
        crossed("b", 2),
        nodes=3,
    )
    running.wait_for(lambda: all(arrived(target.parent) > 24 for target in targets), 30, "some blocks")
    movers = [process for process in running.processes("mover") if process.has("LANDBRIDGE_RANK=3")]
    assert len(movers) == 1 and movers[0].kill()
    running.wait_for((workshop.folder / "stopped").exists, 40, "the end of the transfer")
    for area in targets[0].parent.iterdir():
        for path in area.iterdir():
            path.unlink()
        area.rmdir()
    (workshop.folder / "go").touch()
    done = running.finish().check()
    assert "b/n3" in done.err or "node n3" in done.err, str(done)
    lines = [line for line in done.out.splitlines() if line.startswith("{")]
    resumed = {one["to"][:4]: one["resumed"] for one in json.loads(lines[-1])["moved"]}
    assert resumed["b/n1"] == 0 and resumed["b/n2"] > 3_000_000 and resumed["b/n3"] > 3_000_000, resumed
    for target in targets:
        assert target.read_bytes() == source.read_bytes()
        nothing_hidden(target.parent)
    _, received = map(int, CLOSED.findall(done.out))
    assert size < received < ONCE * size, received


@pytest.mark.parametrize("mode", ["send", "bcast"])
def test_what_is_sent_is_steered_by_its_targets(workshop, mode):
    """It is slow, waits, goes on, gets faster, and in a second attempt is given up."""
    source = workshop.folder / "source"
    source.write_bytes(random.Random(2).randbytes(20_000_000))
    for node in ("n1", "n2"):
        (workshop.folder / node).mkdir()
    move = f"{STAGE} in --mode {mode} --harm 100 --rate 2MB/s --block 256KiB --host b/n1,b/n2"
    move += f" a/n1:{source}={workshop.folder}/%n/target"
    begun = f"until {STAGE} status --json | grep -q '\"arrived\":[1-9]'; do sleep 0.1; done"
    done = (
        in_lab(
            workshop,
            f"export XDG_STATE_HOME={workshop.folder}",
            f"{move} & moving=$!",
            f"{begun}; {STAGE} pause; before=",
            f'while now=$({STAGE} status --json | grep -o \'"arrived":[0-9]*\'); [ "$now" != "$before" ]; do',
            "before=$now; sleep 0.6; done",
            f"{STAGE} status --json; sleep 0.6; {STAGE} status --json",
            f"{STAGE} resume; {STAGE} rate $moving 500MB/s; wait $moving",
            f"cd {workshop.folder}; for node in n1 n2; do cmp source $node/target; rm $node/target; done",
            f"{move} & moving=$!",
            f"{begun}; {STAGE} cancel; wait $moving && exit 9 || true",
        )
        .finish()
        .check()
    )
    (early,), (late,) = [json.loads(line)["transfers"] for line in done.out.splitlines() if line.startswith("{")]
    assert early["paused"] and late["arrived"] == early["arrived"] < 40_000_000, (early, late)
    assert "cancelled" in done.err, str(done)
    assert [os.listdir(workshop.folder / node) for node in ("n1", "n2")] == [[], []]


def test_a_checkpoint_that_is_sent_gets_another_layout(workshop):
    array = np.random.default_rng(1).random((60, 44))
    for process in range(6):
        (workshop.folder / f"x.{process}").write_bytes(part(array, [(3, 20), (2, 22)], process).tobytes())
    layouts = "--from-layout '60x44/8:block(3),block(2)' --to-layout '60x44/8:cyclic(4,4),whole'"
    there = f"b/n1:{workshop.folder}/to/y.%r"
    in_lab(
        workshop, f"{MOVE} --mode send --no-checksum {QUICK} {layouts} a/n2:{workshop.folder}/x.%r {there}"
    ).finish().check()
    for process in range(4):
        expected = part(array, [(4, 4), (1, 44)], process).tobytes()
        assert (workshop.folder / "to" / f"y.{process}").read_bytes() == expected, process


def test_many_sources_are_broadcast_a_few_at_a_time(workshop):
    """Far more than movers post receives for at the same time."""
    source = workshop.folder / "source"
    source.mkdir()
    for number in range(80):
        (source / str(number)).write_bytes(random.Random(number).randbytes(number * 100))
    move = f"{MOVE} --mode bcast {QUICK} {source}/* 'b/*:/tmp/all/'"
    make, keep = (
        [on(f"b-n{node}", line.format(node)) for node in (1, 2)]
        for line in ("mkdir /tmp/all", f"cp -a /tmp/all {workshop.folder}/copy{{}}")
    )
    in_lab(workshop, *make, f"{move} | tail -1", *keep).finish().check()
    for node in (1, 2):
        assert description(workshop.folder / f"copy{node}") == description(source), node


def test_on_one_machine_modes_make_no_difference(workshop):
    source, target = workshop.folder / "source", workshop.folder / "target"
    source.write_bytes(b"x" * 100_000)
    words = [LANDBRIDGE, "stage", "move", "--json"]
    assert moved(workshop.run([*words, "--mode", "bcast", source, target]))[0]["bytes"] == 100_000
    assert target.read_bytes() == source.read_bytes()
    workshop.run([*words, "--mode", "push", source, target]).fails_naming("'push'", "--mode", "pull, send, bcast")
