"""The ranks of one side of a coupling, which act together, and the errors that all of them raise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from .private import LOOK, private
from .running import PlanError, described, naps

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# Seconds after which a collective operation gives up, once a rank has left: the rank may have done its part before.
GRACE = 2.0


class CouplingError(ConnectionError):
    """Raised if there is no coupling, or it has ended: the same error on all ranks of a side."""

    # Tracebacks show the name by which programs import it.
    __module__ = "landbridge"


class Ranks:
    """The ranks of a side: those of a communicator, or this process alone."""

    def __init__(self, comm: Optional[Intracomm]) -> None:
        self._comm = None if comm is None else private(comm).comm
        self.left: Callable[[], Optional[str]] = lambda: None
        """Returns the reason if a rank has left without the others, so that collective operations can no longer
        complete."""
        self.rank = 0 if self._comm is None else self._comm.Get_rank()
        self.size = 1 if self._comm is None else self._comm.Get_size()

    def broadcast(self, data: bytes) -> bytes:
        """Sends the first rank's bytes to all ranks. The first rank may take long to join in."""
        if self._comm is None:
            return data
        length = np.array([len(data)], np.int64)
        self._wait(self._comm.Ibcast(length))
        buffer = np.frombuffer(data, np.uint8) if self.rank == 0 else np.empty(int(length[0]), np.uint8)
        self._wait(self._comm.Ibcast(buffer))
        return buffer.tobytes()

    def gather(self, own: bytes) -> list[bytes]:
        """Returns the bytes of each rank."""
        if self._comm is None:
            return [own]
        lengths = np.empty(self.size, np.int64)
        self._wait(self._comm.Iallgather(np.array([len(own)], np.int64), lengths))
        longest = int(lengths.max())
        padded, each = np.frombuffer(own.ljust(longest), np.uint8), np.empty((self.size, longest), np.uint8)
        self._wait(self._comm.Iallgather(padded, each))
        return [row[:length].tobytes() for row, length in zip(each, lengths)]

    def allgather(self, value: Any) -> list:
        return [value] if self._comm is None else self._comm.allgather(value)

    def most(self, numbers: list) -> list[int]:
        """The maximum of each number over all ranks. When this returns, all ranks have called it."""
        own = np.array(numbers, np.int64)
        if self._comm is None:
            return own.tolist()
        from mpi4py import MPI

        greatest = np.empty_like(own)
        self._wait(self._comm.Iallreduce(own, greatest, MPI.MAX))
        return greatest.tolist()

    def _wait(self, request: Any) -> None:
        # Sleep between polls: other ranks may still be copying on this core, and a waiting MPI library would occupy it.
        pauses, look, end = naps(), time.monotonic() + LOOK, None
        while not request.Test():
            time.sleep(next(pauses))
            if (now := time.monotonic()) < look:
                continue
            look, reason = now + LOOK, self.left()
            if reason is not None:
                end = end or now + GRACE
                if now > end:
                    raise CouplingError(reason)


def text_of(problem: BaseException) -> tuple[str, str]:
    """The kind and the text of an error, for other ranks."""
    kind = "timeout" if isinstance(problem, TimeoutError) else "value"
    if isinstance(problem, ConnectionError):
        kind = "over"
    # The text of any other error does not name its kind.
    is_known = isinstance(problem, (ValueError, TypeError, TimeoutError, ConnectionError))
    return kind, str(problem) if is_known else described(problem)


def error_of(problem: tuple[str, str], name: str) -> Exception:
    """The error that all ranks of the coupling of this name raise, from its kind and text."""
    kind, text = problem
    text = text if name in text else f"{name}: {text}"
    if kind == "timeout":
        return TimeoutError(text)
    return PlanError(text) if kind == "value" else CouplingError(text)
