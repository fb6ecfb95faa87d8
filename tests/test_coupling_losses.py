"""Couplings whose gateways freeze, whose nodes lose their network, or that a third program wants to join."""

import os
import signal
import time
from pathlib import Path

import pytest

from conftest import mpich
from coupled import PACKAGE, PATH, Coupled
from harness import LANDBRIDGE, wait_until

# They take longer than a side may be missing from all boards.
VERSIONS = 30
TASKS = ("export", "fetch")
PROGRAM = """
import sys, time
import numpy as np, landbridge as lb
task, delay, versions = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
layout = lb.Layout((600,), [lb.Whole()])
try:
    with lb.join("pair@a", timeout=40) as coupling:
        print("joined", flush=True)
        time.sleep(delay)
        for version in range(versions):
            if task == "export":
                coupling.export("v", np.full(600, float(version)), layout, version=version)
                time.sleep(0.6)
            else:
                assert (coupling.fetch("v", layout, version=version) == version).all()
                print("fetched", version, flush=True)
    print("ended well", flush=True)
except lb.CouplingError as error:
    print("heard:", error, flush=True)
"""


def start_pair(coupled, delay=0):
    def program(task):
        return f"import sys; sys.argv = ['-', {task!r}, {delay}, {VERSIONS}]\n{PROGRAM}"

    pair = [coupled.python(mpich(), site, program(task)) for site, task in zip("ab", TASKS)]
    for run in pair:
        wait_until(lambda run=run: "joined" in run.out(), 30, "the coupling")
    return pair


def assert_all_came(pair):
    done = [run.finish(within=60) for run in pair]
    assert all("ended well" in each.out for each in done), "\n".join(map(str, done))
    assert f"fetched {VERSIONS - 1}" in done[1].out, str(done[1])


def test_a_programs_own_limit_holds_while_its_gateway_is_frozen(workshop):
    """The helper has a longer limit to reach a gateway, but the program has set its own."""
    coupled = Coupled(workshop)
    os.kill(coupled.gateways["a", 1].child.pid, signal.SIGSTOP)
    try:
        text = "import landbridge as lb; lb.join('pair@b', timeout=2)"
        done = coupled.python(mpich(), "a", text).finish(within=60)
    finally:
        os.kill(coupled.gateways["a", 1].child.pid, signal.SIGCONT)
    assert "no coupling within 2 s: no gateway of site a has answered yet" in done.err, str(done)


@pytest.mark.parametrize("site", "ab")
def test_a_third_side_leaves_a_pair_at_two_gateways_alone(workshop, site):
    """The exporter is on the board of one of its site's gateways, the fetcher on both boards."""
    coupled = Coupled(workshop, gateways=2)
    pair = start_pair(coupled)
    third = coupled.python(mpich(), site, "import landbridge as lb; lb.join('pair@a', timeout=20)").finish(within=40)
    third.fails_naming("pair@a already has two sides", "take another name")
    assert_all_came(pair)


def test_two_of_three_that_join_at_once_are_coupled_and_the_third_is_refused(workshop):
    coupled = Coupled(workshop, gateways=2)
    for number in range(3):
        refused = workshop.folder / f"refused-{number}"
        # The pair stays for as long as the third waits, which is longer on a busy machine.
        text = f"""
import pathlib, time
import landbridge as lb
refused = pathlib.Path({str(refused)!r})
try:
    with lb.join("pair@a", timeout=50):
        while not refused.exists():
            time.sleep(0.1)
    print("joined")
except lb.CouplingError as error:
    print("heard:", error)
    refused.touch()
"""
        done = [run.finish(within=60) for run in [coupled.python(mpich(), site, text) for site in "abb"]]
        outs = sorted(each.out for each in done)
        assert [out.startswith("joined") for out in outs] == [False, True, True], "\n".join(map(str, done))
        assert "pair@a already has two sides" in outs[0], "\n".join(map(str, done))


def test_a_pair_joins_again_at_once_although_a_gateway_is_frozen(workshop):
    """Boards forget the sides of before on the ways through the frozen gateway, too."""
    coupled = Coupled(workshop, gateways=2)
    text = """
import time
import landbridge as lb
for number in range(6):
    with lb.join("pair@a", timeout=30):
        print("joined", number, flush=True)
        time.sleep(0.5)
"""
    pair = [coupled.python(mpich(), site, text) for site in "ab"]
    wait_until(lambda: "joined 0" in pair[1].out(), 30, "the coupling")
    gateway = coupled.gateways["b", 2].child
    os.kill(gateway.pid, signal.SIGSTOP)
    try:
        for run in pair:
            done = run.finish(within=60)
            assert "joined 5" in done.out, str(done)
            assert done.seconds < 25, str(done)
    finally:
        os.kill(gateway.pid, signal.SIGCONT)


def test_both_sides_hear_that_all_gateways_were_restarted(workshop):
    """The side that has not opened the job keeps its connection to the other's processes."""
    coupled = Coupled(workshop, gateways=2)
    pair = [coupled.python(mpich(), "a", f"import sys; sys.argv = ['-', {task!r}, 0, 60]\n{PROGRAM}") for task in TASKS]
    for run in pair:
        wait_until(lambda run=run: "joined" in run.out(), 30, "the coupling")
    gateways = [coupled.gateways["a", number] for number in (1, 2)]
    for gateway in gateways:
        gateway.child.kill()
    for number, gateway in enumerate(gateways, 1):
        gateway.finish()
        coupled.sites.start_gateway("a", number=number)
    for run in pair:
        done = run.finish(within=30)
        assert "heard: " in done.out and "gateway gw" in done.out, str(done)
        assert "no sign of life" not in done.out, str(done)


@pytest.mark.parametrize("site", "ab")
def test_a_pair_joins_again_at_once_after_all_gateways_of_a_site_were_restarted(workshop, site):
    """Neither program closes the coupling that it has lost, and sides of before are on the boards for a while."""
    coupled = Coupled(workshop, gateways=2)
    text = """
import time
import numpy as np, landbridge as lb
layout, again, kept = lb.Layout(8, lb.Whole()), 0, []
while True:
    try:
        coupling = lb.join("pair@a", timeout=30)
    except lb.CouplingError as error:
        assert "Connection refused" in str(error), error
        time.sleep(0.2)
        continue
    kept.append(coupling)
    print("joined", again, flush=True)
    try:
        for version in range(200 if again == 0 else 5):
            coupling.export("v", np.zeros(8), layout, version=version)
            coupling.fetch("v", layout, version=version)
            time.sleep(0.2)
        break
    except lb.CouplingError as error:
        print("heard:", error, flush=True)
        again += 1
coupling.close()
print("ended well")
"""
    pair = [coupled.python(mpich(), each, text) for each in "ab"]
    for run in pair:
        wait_until(lambda run=run: "joined 0" in run.out(), 30, "the coupling")
    gateways = [coupled.gateways[site, number] for number in (1, 2)]
    for gateway in gateways:
        gateway.child.kill()
    for number, gateway in enumerate(gateways, 1):
        gateway.finish()
        coupled.sites.start_gateway(site, number=number)
    done = [run.finish(within=60) for run in pair]
    assert all("ended well" in each.out and "joined 2" not in each.out for each in done), "\n".join(map(str, done))


def test_two_of_one_site_meet_although_the_first_gateway_was_silent_for_one(workshop):
    coupled = Coupled(workshop, gateways=2)
    # Neither leaves before the other has joined, which takes seconds on a busy machine.
    join = f"""
import os, time
import landbridge as lb
lb.join("pair@a", timeout=60)
print("joined", flush=True)
os.mkdir(f"{workshop.folder}/joined-{{os.getpid()}}")
while sum(name.startswith("joined-") for name in os.listdir({str(workshop.folder)!r})) < 2:
    time.sleep(0.1)
"""
    gateway = coupled.gateways["a", 1].child
    os.kill(gateway.pid, signal.SIGSTOP)
    try:
        first = coupled.python(mpich(), "a", join)
        # It is posted at the second gateway, after two seconds.
        time.sleep(6)
    finally:
        os.kill(gateway.pid, signal.SIGCONT)
    second = coupled.python(mpich(), "a", join)
    done = [run.finish(within=60) for run in (first, second)]
    assert all("joined" in each.out for each in done), "\n".join(map(str, done))


@pytest.mark.parametrize("site", "ab")
def test_a_frozen_gateway_with_a_spare_ends_no_coupling(workshop, site):
    coupled = Coupled(workshop, gateways=2)
    pair = start_pair(coupled)
    wait_until(lambda: "fetched 1" in pair[1].out(), 20, "the first versions")
    # Programs dial the first gateway first.
    gateway = coupled.gateways[site, 1].child
    os.kill(gateway.pid, signal.SIGSTOP)
    try:
        assert_all_came(pair)
    finally:
        os.kill(gateway.pid, signal.SIGCONT)


def stopped_in_join(workshop, site):
    """Returns two sites and a program at one of them that is stopped while it waits for a partner."""
    coupled = Coupled(workshop, gateways=2)
    join = PROGRAM.replace("timeout=40", "timeout=60")
    program = coupled.python(mpich(), site, f"import sys; sys.argv = ['-', 'export', 0, 2]\n{join}")
    children = f"/proc/{program.child.pid}/task/{program.child.pid}/children"
    wait_until(lambda: Path(children).read_text(), 30, "the first program's helper")
    # It is on the board now.
    time.sleep(2)
    os.kill(program.child.pid, signal.SIGSTOP)
    return coupled, program


def start_partner(coupled):
    return coupled.python(mpich(), "a", f"import sys; sys.argv = ['-', 'fetch', 0, 2]\n{PROGRAM}")


@pytest.mark.parametrize("site", "ab")
def test_a_program_that_is_stopped_while_it_waits_for_a_partner_is_missed(workshop, site):
    coupled, first = stopped_in_join(workshop, site)
    try:
        second = start_partner(coupled).finish(within=60)
    finally:
        os.kill(first.child.pid, signal.SIGCONT)
    assert "has not connected to a gateway of its site" in second.out, str(second)
    done = first.finish(within=30)
    assert "heard:" in done.out and "nobody else" not in done.out, str(done)


@pytest.mark.parametrize("site", "ab")
def test_a_program_that_is_stopped_for_a_moment_before_its_partner_comes_is_waited_for(workshop, site):
    coupled, first = stopped_in_join(workshop, site)
    second = start_partner(coupled)
    time.sleep(5.5)
    os.kill(first.child.pid, signal.SIGCONT)
    done = [run.finish(within=60) for run in (first, second)]
    assert all("ended well" in each.out for each in done), "\n".join(map(str, done))


def script_of(workshop, fault, delay=0, versions=VERSIONS):
    """Returns a script for a lab: an exporter at a-n1 and a fetcher at b-n1, which write to a.out and b.out, and a
    fault."""
    (workshop.folder / "program.py").write_text(PROGRAM)

    def program(site, task, delay):
        enter = f"{LANDBRIDGE} lab enter {site}-n1 -- env LANDBRIDGE_SITE_NAME={site}"
        return f"{enter} timeout 100 {mpich().python} program.py {task} {delay} {versions} > {site}.out 2>&1"

    return (
        f"{program('a', 'export', delay)} & exporter=$!; {program('b', 'fetch', 0)} & fetcher=$!;"
        f" while ! grep -q joined b.out; do sleep 0.1; done; sleep 1; {fault}; wait; cat a.out b.out"
    )


def in_lab(workshop, script, gateways):
    options = ["--isolation", "namespaces", "--gateways", gateways]
    environment = {**mpich().environment, "PYTHONPATH": str(PACKAGE), "PATH": PATH}
    return workshop.lab(["bash", "-c", script], sites=2, options=options, environment=environment, limit=150).finish()


@pytest.mark.parametrize("gateways", [1, 2])
def test_an_unplugged_fetcher_that_waits_for_a_first_version_hears_of_it(workshop, gateways, isolated):
    fault = f"{LANDBRIDGE} lab unplug b-n1; date +%s > began; wait $fetcher; date +%s > ended"
    done = in_lab(workshop, script_of(workshop, fault, delay=60), gateways)
    took = [int((workshop.folder / name).read_text()) for name in ("began", "ended")]
    assert "heard:" in (workshop.folder / "b.out").read_text(), str(done)
    assert "heard:" in (workshop.folder / "a.out").read_text(), str(done)
    # The exporter sleeps for 60 s: only a hang takes longer than that.
    assert took[1] - took[0] < 55, took


def test_a_side_that_was_frozen_hears_of_its_end_as_soon_as_it_runs_again(workshop, isolated):
    fault = f"{LANDBRIDGE} lab freeze b-n1; sleep 20; {LANDBRIDGE} lab thaw b-n1"
    done = in_lab(workshop, script_of(workshop, fault), 2)
    assert "heard:" in (workshop.folder / "a.out").read_text(), str(done)
    text = (workshop.folder / "b.out").read_text()
    # Not by the absence of its partner, which it would notice much later.
    assert "heard:" in text and "there is no sign of life of it" not in text, str(done)


@pytest.mark.parametrize(
    ("how", "undo", "victims"),
    [("freeze", "thaw", ["a-gw1", "a-gw2"]), ("unplug", "plug", ["a-gw1", "b-gw1"])],
)
def test_gateways_that_are_absent_in_turn_end_no_coupling(workshop, how, undo, victims, isolated):
    """Each is away for longer than others are patient with it, and back before the next. Either site may have opened
    the coupling's job."""
    turns = [f"{LANDBRIDGE} lab {how} {victim}; sleep 9; {LANDBRIDGE} lab {undo} {victim}" for victim in victims]
    versions = 70
    done = in_lab(workshop, script_of(workshop, "; sleep 6; ".join(turns), versions=versions), 2)
    assert done.out.count("ended well") == 2, str(done)
    assert f"fetched {versions - 1}" in done.out, str(done)
