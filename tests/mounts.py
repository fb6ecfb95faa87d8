"""File systems of a test's own, mounted in a mount namespace that ends with the test."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from harness import LANDBRIDGE, wait_until

MIB = 1 << 20


class Mounts:
    """A mount namespace that ends with the test. Mounts inside are seen through `path`."""

    def __init__(self, workshop):
        self.workshop = workshop
        self.keeper = workshop.start(["unshare", "--mount", "--propagation", "private", "sleep", "infinity"], limit=300)
        own = os.readlink("/proc/self/ns/mnt")
        self.pid = self.keeper.child.pid

        def apart():
            with contextlib.suppress(OSError):
                return os.readlink(f"/proc/{self.pid}/ns/mnt") != own and b"sleep" in self._words()
            return False

        wait_until(apart, 10, "a mount namespace")

    def _words(self):
        return Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")[:1]

    def within(self, words):
        return ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--", *words]

    def path(self, path):
        return Path(f"/proc/{self.pid}/root{path}")

    def must(self, *words):
        done = subprocess.run([str(word) for word in self.within(words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"

    def mount(self, kind, name="disk", size=32 * MIB, options=""):
        """Mounts an empty file system below the test's folder, in blocks of 4 KiB. Returns its path, and its path as
        it is seen here."""
        at = self.workshop.folder / name
        at.mkdir()
        if kind == "tmpfs":
            self.must("mount", "-t", "tmpfs", "-o", f"size={size},mode=0777{options}", "tmpfs", at)
        else:
            image = self.workshop.folder / f"{name}.img"
            with image.open("wb") as file:
                file.truncate(size)
            words = ["mkfs.ext4", "-q", "-m", "0", "-b", "4096", *options.split(), image]
            subprocess.run(words, check=True, capture_output=True)
            self.must("mount", "-o", "loop", image, at)
        return at, self.path(at)

    def start(self, words, **options):
        return self.workshop.start(self.within(words), **options)

    def run(self, words, **options):
        return self.start(words, **options).finish()

    def lab(self, *steps):
        return self.start([LANDBRIDGE, "lab", "--sites", 2, "--nodes", 2, "--", "bash", "-ec", "\n".join(steps)])


@pytest.fixture
def mounts(workshop, isolated):
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    return Mounts(workshop)


def fill(folder, name="filler"):
    """Takes all the space that a file system has left, to the last byte."""
    path = folder / name
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"f" * size)
        # Delayed allocation finds out later.
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
    return path
