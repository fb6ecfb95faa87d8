"""Tests that run side by side do not interfere, and tests that must be alone are."""

import subprocess
import sys
import threading
import time

import pytest

import harness
import room
from harness import ROOT, Workshop

APART = ROOT / "tests" / "apart.py"

TAKE = """
import os, pathlib, socket, sys
server = socket.create_server(("0.0.0.0", 7700))
names = [pathlib.Path(folder, "landbridge-here") for folder in ("/tmp", "/run", "/dev/shm")]
for name in names:
    name.touch(exist_ok=False)
socket.create_connection(("127.0.0.1", 7700))
print([name for _, name in socket.if_nameindex()], os.getuid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session", autouse=True)
def built():
    """These tests need nothing built."""


@pytest.fixture
def apart():
    done = subprocess.run([sys.executable, APART, "-c", ""], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())


def test_workers_share_neither_ports_nor_files(apart):
    """Two workers use the same port and the same names at the same time, and nothing of it is visible here."""
    before = harness.litter()
    words = [sys.executable, APART, "-c", TAKE]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    both = [subprocess.Popen(words, text=True, **pipes) for _ in range(2)]
    said = [worker.stdout.readline() for worker in both]
    left = harness.litter() - before
    errors = [worker.communicate()[1] for worker in both]
    assert [worker.returncode for worker in both] == [0, 0], errors
    assert len(set(said)) == 1 and said[0].startswith("['lo'"), said
    assert not left


def test_workers_see_what_they_test(apart):
    """Also if the checkout lies below a folder that workers have of their own."""
    code = f"import pathlib; print(pathlib.Path({str(APART)!r}).exists())"
    done = subprocess.run([sys.executable, APART, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_what_a_test_leaves_behind_is_named(tmp_path, monkeypatch):
    found = {"/tmp/landbridge-before"}
    monkeypatch.setattr(harness, "litter", lambda: set(found))
    monkeypatch.setattr(harness, "GRACE_S", 0.1)
    workshop = Workshop(tmp_path)
    workshop.close()
    found.add("/tmp/landbridge-left")
    with pytest.raises(AssertionError, match=r"left behind: .*landbridge-left"):
        workshop.close()


def test_one_that_waits_to_be_alone_comes_in_next_and_stays_alone(tmp_path):
    order, inside = [], []

    def take_part(name, alone, leave):
        with room.entered(tmp_path, alone):
            inside.append(name)
            order.append((name, sorted(inside)))
            leave.wait(30)
            inside.remove(name)

    leave = {name: threading.Event() for name in ("one", "two", "alone", "late")}
    threads = {
        name: threading.Thread(target=take_part, args=(name, name == "alone", event), daemon=True)
        for name, event in leave.items()
    }
    for name in ("one", "two"):
        threads[name].start()
    harness.wait_until(lambda: len(order) == 2, 10, "two side by side")
    threads["alone"].start()
    time.sleep(0.2)
    threads["late"].start()
    time.sleep(0.2)
    assert len(order) == 2, order
    for name in ("one", "two"):
        leave[name].set()
    harness.wait_until(lambda: len(order) == 3, 10, "the one that is alone")
    assert order[2] == ("alone", ["alone"])
    leave["alone"].set()
    leave["late"].set()
    for thread in threads.values():
        thread.join(10)
    assert order[3][0] == "late", order
