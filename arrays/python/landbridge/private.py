"""A communicator for our own messages, and what its ranks tell each other about runs that they cannot take part in."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import _core

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# Of why a rank could not take part in a run.
REASON = 8
# Of where memory is that a rank lends, and of answers.
ADDRESS, ANSWER = 9, 10
# Seconds between two looks for reasons of others.
LOOK = 0.1
# Of the attribute under which a communicator keeps its `Private`.
_key: Optional[int] = None


class Private:
    """The same ranks as those of a communicator of the user's."""

    def __init__(self, comm: Intracomm) -> None:
        self.comm = comm
        self.beside = Beside(comm)
        self._runs = 0
        self._next_look = 0.0
        self._sent: list[Any] = []
        # Run, rank and reason.
        self._heard: list[tuple[int, int, str]] = []
        # Runs that have raised an error here: what is heard of them later is no news.
        self._raised: set[int] = set()

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

    def reasons(self, run: int, absent: Iterable[int]) -> list[tuple[int, str]]:
        """Which ranks have not taken part in this run or an earlier one that has raised nothing here, and why, if any
        has told; those of `absent` have, or will at once."""
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
        found = sorted(
            {
                (rank, reason if of == run else f"{reason} (in an earlier run)")
                for of, rank, reason in self._heard
                if of <= run and of not in self._raised
            }
        )
        self._heard = [heard for heard in self._heard if heard[0] > run]
        return found

    def has_raised(self, run: int) -> None:
        """This run raises an error here."""
        self._raised.add(run)


class Beside:
    """With which ranks of its node this one has agreed that they read pieces where they were packed: whom it lends
    memory, and who lends it some."""

    def __init__(self, comm: Intracomm) -> None:
        self._comm, self.core = comm, _core.Beside()
        self._out: set[int] = set()
        self._come: set[int] = set()

    def agree(self, out: Iterable[int], come: Iterable[int]) -> None:
        """With these as well; both ends of each pair call it."""
        from mpi4py import MPI

        out, come = ([rank for rank in of if rank not in known] for of, known in ((out, self._out), (come, self._come)))
        if not out and not come:
            return
        own = np.frombuffer(self.core.address() if out else b"", np.uint8)
        addresses = np.empty((len(come), _core.ADDRESS), np.uint8)
        requests = [self._comm.Irecv(address, rank, ADDRESS) for address, rank in zip(addresses, come)]
        MPI.Request.Waitall(requests + [self._comm.Isend(own, rank, ADDRESS) for rank in out])
        heard = np.empty((len(out), 1), np.bool_)
        told = np.array([self.core.open(rank, at.tobytes()) for rank, at in zip(come, addresses)], np.bool_)
        requests = [self._comm.Irecv(answer, rank, ANSWER) for answer, rank in zip(heard, out)]
        answers = [self._comm.Isend(told[at : at + 1], rank, ANSWER) for at, rank in enumerate(come)]
        MPI.Request.Waitall(requests + answers)
        for (answer,), rank in zip(heard, out):
            if answer:
                self.core.allow(rank)
        self._out.update(out)
        self._come.update(come)


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
