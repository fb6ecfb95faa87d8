"""Transfers by `landbridge stage move` on this machine, for tests: slow ones, killed ones, those of another user."""

import fcntl
import os
import random

from harness import LANDBRIDGE, wait_until
from test_stage import arrived, description

# Slow enough to do something in mid-flight.
SLOWLY = ["--rate", "8MB/s", "--harm", "100", "--block", "256KiB"]
MIB = 1 << 20
ORDINARY = 65534


def noise(length, seed=1):
    return random.Random(seed).randbytes(length)


def move(*words):
    return [LANDBRIDGE, "stage", "move", "--json", *words]


def ordinary(words, home):
    """The same as a user who is not root."""
    home.mkdir(exist_ok=True)
    os.chown(home, ORDINARY, ORDINARY)
    user = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
    return [*user, "env", "-u", "XDG_RUNTIME_DIR", "-u", "XDG_STATE_HOME", f"HOME={home}", *words]


def owned(path):
    """Gives all below a path to the user who is not root."""
    for at, folders, files in os.walk(path):
        for name in [".", *folders, *files]:
            os.chown(os.path.join(at, name), ORDINARY, ORDINARY, follow_symlinks=False)


def areas(folder):
    """The hidden folders of transfers in a folder."""
    return sorted(folder.glob(".landbridge-stage-*"))


def killed(running, folder):
    """Kills a transfer with all its processes. Returns its hidden folder, which no process holds any more."""
    area = areas(folder)[0]
    for process in running.processes():
        process.kill()
    running.finish()

    def free():
        # A process that was killed has no environment, and may still have its files open.
        try:
            with (area / "lock").open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            return True
        return True

    wait_until(free, 10, "the end of what was killed")
    return area


def interrupted(workshop, source, target):
    """A transfer that is killed in mid-flight. Returns its hidden folder."""
    running = workshop.start(move(*SLOWLY, source, target))
    running.wait_for(lambda: arrived(target.parent) > 4, 30, "some blocks")
    area = killed(running, target.parent)
    assert not target.exists()
    return area


def contents(folder):
    """The same as `description` without the times of folders, which change when something is added to them."""
    return {key: what[0] if len(what) == 2 else what for key, what in description(folder).items()}
