"""Standard input of `run`, from pipes and terminals, across sites."""

import hashlib
import os
import pty
import time

from harness import LANDBRIDGE, LoopbackSites, wait_until

# Reads everything in pieces, and prints its digest.
DIGEST = """import hashlib, sys
digest = hashlib.sha256()
while piece := sys.stdin.buffer.read(1 << 20):
    digest.update(piece)
print(digest.hexdigest())"""
PIECE = bytes(range(256)) * 4096
PIECES = 100


def test_100_megabytes_arrive_exactly_at_another_site(workshop):
    """In the lab, the last rank is behind the WAN."""
    producer = (
        f"import sys\nfor n in range({PIECES}): sys.stdout.buffer.write(n.to_bytes(4, "
        "'little') + bytes(range(256)) * 4096)"
    )
    script = f"python3 -c \"{producer}\" | {LANDBRIDGE} run -n 2 --stdin 1 -- python3 -c '{DIGEST}'"
    done = workshop.lab(["bash", "-c", script], nodes=1, limit=120).finish().check()
    expected = hashlib.sha256(b"".join(n.to_bytes(4, "little") + PIECE for n in range(PIECES))).hexdigest()
    assert sorted(done.out.split()) == sorted([expected, hashlib.sha256().hexdigest()]), str(done)


def at_a_terminal(workshop, program):
    sites = LoopbackSites(workshop)
    sites.start_gateway("a")
    leader, follower = pty.openpty()
    words = ["setsid", "--ctty", "--wait", LANDBRIDGE, "run", "--site", "a=1", "--", "bash", "-c", program]
    running = workshop.start(words, environment={"LANDBRIDGE_SITES": str(sites.file)}, limit=30, stdin=follower)
    os.close(follower)
    return leader, running


def test_a_terminal_is_read_line_by_line_to_its_end(workshop):
    leader, running = at_a_terminal(workshop, "while read line; do echo got $line; done; echo end")
    os.write(leader, b"one\n")
    wait_until(lambda: "got one" in running.out(), 10, "the first line")
    os.write(leader, b"two\n\x04")
    done = running.finish().check()
    assert done.out == "got one\ngot two\nend\n", str(done)


def test_a_silent_terminal_holds_nothing_up(workshop):
    leader, running = at_a_terminal(workshop, "echo done")
    assert running.finish(within=30).check().out == "done\n"
    os.close(leader)


def test_a_job_in_the_background_of_a_terminal_goes_on(workshop):
    """A process that reads a terminal from the background is stopped by the system."""
    sites = LoopbackSites(workshop)
    sites.start_gateway("a")
    leader, follower = pty.openpty()
    # With job control, bash keeps the terminal and gives the job a process group of its own.
    job = f"{LANDBRIDGE} run --site a=1 -- bash -c 'sleep 1; echo done' < /dev/tty"
    words = ["setsid", "--ctty", "--wait", "bash", "-c", f"set -m; {job} & wait $!"]
    running = workshop.start(words, environment={"LANDBRIDGE_SITES": str(sites.file)}, limit=30, stdin=follower)
    os.close(follower)
    time.sleep(0.5)
    os.write(leader, b"not for the job\n")
    assert running.finish(within=30).check().out == "done\n"
    os.close(leader)
