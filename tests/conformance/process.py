"""Processes of a suite: started with a marker and a time limit, their output in files, all ended by pid."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass

from harness import MARKER, processes

# Between asking a process to end and ending it.
GRACE_S = 8.0
LOOK_S = 0.02
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def clean_environment(extra=()):
    """This process's environment without variables that change which provider is used, and with `extra`."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("FI_", "PMI", "I_MPI_", "MPIR_", "OMPI_"))
    }
    return {**kept, **dict(extra)}


def _end_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Ended:
    """How a process ended: its exit code (negative: a signal), or None if it was ended because it was late."""

    code: int | None
    seconds: float

    @property
    def late(self):
        return self.code is None

    def __str__(self):
        if self.late:
            return f"ended after {self.seconds:.0f} s without an end of its own"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return f"exit code {self.code}"


class Child:
    """A started command. Its output is in `name`.out and `name`.err of the folder."""

    def __init__(self, words, folder, name="run", environment=None):
        self.marker = uuid.uuid4().hex
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self.started = time.monotonic()
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.child = subprocess.Popen(
                [str(word) for word in words],
                cwd=folder,
                env={**(environment or clean_environment()), MARKER: self.marker},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        (folder / f"{name}.command").write_text(" ".join(map(str, words)) + "\n")

    @property
    def pid(self):
        return self.child.pid

    def running(self):
        return self.child.poll() is None

    def text(self, most=4000):
        """The end of its output, in readable form."""
        return "\n".join(path.read_text(errors="replace")[-most:].strip() for path in (self.out, self.err)).strip()

    def wait(self, limit, signs=None, quiet=None):
        """Waits until it ends, or until `limit` seconds have passed, or `quiet` seconds without a change of
        `signs()`. Afterwards nothing of it is left."""
        seen, changed = None, time.monotonic()
        try:
            while self.running():
                now = time.monotonic()
                if signs is not None and (found := signs()) != seen:
                    seen, changed = found, now
                if now - self.started > limit or (quiet is not None and now - changed > quiet):
                    return Ended(None, now - self.started)
                time.sleep(LOOK_S)
            return Ended(self.child.returncode, time.monotonic() - self.started)
        finally:
            self.end()

    def end(self):
        """Ends its remaining processes, gently first."""
        if self.running():
            self.child.terminate()
            try:
                self.child.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        for process in processes(self.marker):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
