"""A communicator for our own messages, and what its ranks tell each other about runs that they cannot take part in."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# Of why a rank could not take part in a run.
REASON = 8
# Seconds between two looks for reasons of others.
LOOK = 0.1
# Of the attribute under which a communicator keeps its `Private`.
_key: Optional[int] = None


class Private:
    """The same ranks as those of a communicator of the user's."""

    def __init__(self, comm: Intracomm) -> None:
        self.comm = comm
        self._runs = 0
        self._next_look = 0.0
        self._sent: list[Any] = []
        # Run, rank and reason.
        self._heard: list[tuple[int, int, str]] = []

    def next_run(self) -> int:
        """A number for a run, the same on all ranks, since they start the same ones in the same order."""
        self._runs += 1
        return self._runs

    def refuse(self, run: int, peers: Iterable[int], reason: str) -> None:
        """Tells the other ranks that this one has not taken part."""
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent += [self.comm.isend((run, reason), peer, REASON) for peer in peers]

    def is_due(self) -> bool:
        """Whether it is time to look for what ranks tell that send nothing to this one: not at each run, since MPI
        libraries take the opportunity to do other things."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK
        return True

    def reasons(self, run: int, absent: Iterable[int]) -> list[str]:
        """Why ranks have not taken part in this run or an earlier one, if any has told; those of `absent` have, or will
        at once."""
        from mpi4py import MPI

        missing = set(absent)
        missing -= {rank for of, rank, _ in self._heard if of == run}
        status = MPI.Status()
        while missing or self.comm.Iprobe(MPI.ANY_SOURCE, REASON, status):
            of, reason = self.comm.recv(None, MPI.ANY_SOURCE, REASON, status)
            self._heard.append((of, status.source, reason))
            missing -= {status.source} if of == run else set()
        if not self._heard:
            return []
        found = sorted({(rank, reason) for of, rank, reason in self._heard if of <= run})
        self._heard = [heard for heard in self._heard if heard[0] > run]
        return [reason for _, reason in found]


def private(comm: Intracomm) -> Private:
    """Of this communicator; made once for each, collectively then."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm is {comm!r}: it must be an intracommunicator of mpi4py")
    global _key
    if _key is None:
        # Freed with the communicator that it belongs to.
        _key = MPI.Comm.Create_keyval(delete_fn=lambda _comm, _key, of: of.comm.Free())
    found = comm.Get_attr(_key)
    if found is None:
        found = Private(comm.Dup())
        comm.Set_attr(_key, found)
    return found
