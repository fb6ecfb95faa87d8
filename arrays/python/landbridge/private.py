"""A private communicator for Landbridge's own messages. Its ranks also notify each other of runs in which they cannot
take part."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import _core

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from .running import Running

# Tag of messages with elements.
TAG = 7
# Tag of a rank's reason for not taking part in a run.
REASON = 8
# Tags of the addresses of lent memory, and of the answers to them.
ADDRESS, ANSWER = 9, 10
# Seconds between two polls for ranks that have not taken part or have left.
LOOK = 0.1
# Key of the attribute in which a communicator keeps its `Private`.
_key: Optional[int] = None


class Private:
    """A duplicate of a user's communicator, with the same ranks."""

    def __init__(self, comm: Intracomm) -> None:
        from mpi4py import MPI

        # An import inside the methods that each run calls would take longer than the rest of them.
        self.comm, self.mpi = comm, MPI
        self.beside = Beside(comm)
        # The number of the last run. It is the same on all ranks, because they start the same runs in the same order.
        self.runs = [0]
        # Runs of which an exception may have left messages: these have not begun, or nobody waits for them.
        self.opened: list[Running] = []
        self._next_look = 0.0
        self._sent: list[Any] = []
        # Numbers of reasons sent to each rank, and received.
        self._sent_to, self._received = np.zeros(comm.Get_size(), np.int64), [0]
        # Run, rank and reason of each refusal received.
        self._heard: list[tuple[int, int, str]] = []
        # For each run that is not over here: the reasons that were found for it.
        self._found: dict[int, list[tuple[int, str]]] = {}
        # Numbers of runs that are not over here.
        self.in_flight: set[int] = set()
        # Runs that have raised an error here. Later refusals of these runs are ignored.
        self._raised: set[int] = set()

    def settle(self) -> None:
        """Settles the runs that an exception has interrupted. Their messages come before those of the next run."""
        while self.opened:
            self.opened[0].settle()

    def refuse(self, run: int, peers: Iterable[int], reason: str) -> None:
        """Notifies `peers` that this rank has not taken part in the run."""
        self._sent = [request for request in self._sent if not request.Test()]
        own = self.comm.Get_rank()
        for peer in peers:
            self._sent.append(self.comm.isend((run, own, reason), peer, REASON))
            self._sent_to[peer] += 1

    def is_due(self) -> bool:
        """Returns true if it is time to poll for refusals of ranks that send no elements to this one. Not every run
        polls, because MPI libraries do other work during a poll."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK
        return True

    def _is_past(self, other: int, run: int) -> bool:
        """Returns true if no wait for the other run will ask for its reasons."""
        return other < run and other not in self.in_flight

    def reasons(self, run: int, absent: Iterable[int]) -> list[tuple[int, str]]:
        """Ranks that have not taken part in this run, or in an earlier one that raised no error here, with their
        reasons. Waits for the reasons of the ranks in `absent`, which have sent them or are about to. From other ranks,
        takes only the reasons that have arrived. Returns the same again until the run is forgotten."""
        if run in self._found:
            return self._found[run]
        missing, any_source = set(absent), self.mpi.ANY_SOURCE
        while missing - {rank for of, rank, _ in self._heard if of == run} or self.comm.Iprobe(any_source, REASON):
            _core.take(self.comm.recv, (None, any_source, REASON), self._heard, self._received)
        if not self._heard:
            return []
        found = sorted(
            {
                (rank, reason if of == run else f"{reason} (in an earlier run)")
                for of, rank, reason in self._heard
                if of == run or (self._is_past(of, run) and of not in self._raised)
            }
        )
        self._found[run] = found
        self._heard = [heard for heard in self._heard if heard[0] != run and not self._is_past(heard[0], run)]
        return found

    def forget(self, run: int) -> None:
        """The run is over: its reasons are not asked for again."""
        self._found.pop(run, None)
        self.in_flight.discard(run)

    def has_raised(self, run: int) -> None:
        """Records that this run raises an error here."""
        self._raised.add(run)

    def free(self) -> None:
        """Waits for the runs that all ranks have started, receives the reasons that no run has asked for, and frees the
        communicator; collective. MPI may give the next communicator the same number, and with it any message that is
        left."""
        from .running import complete

        last, expected = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.comm.Allreduce(np.array(self.runs, np.int64), last, self.mpi.MIN)
        complete(self, int(last[0]))
        self.comm.Reduce_scatter_block(self._sent_to, expected)
        for _ in range(expected[0] - self._received[0]):
            self.comm.recv(None, self.mpi.ANY_SOURCE, REASON)
        self.mpi.Request.Waitall(self._sent)
        self.comm.Free()


class Beside:
    """Memory that ranks of one node lend each other, so that a receiver reads pieces where the sender has packed them.
    Keeps the ranks to which this one lends memory, and those from which it borrows."""

    def __init__(self, comm: Intracomm) -> None:
        self._comm, self.core = comm, _core.Beside()
        self._out: set[int] = set()
        self._come: set[int] = set()

    def agree(self, out: Iterable[int], come: Iterable[int]) -> None:
        """Agrees with more ranks: those in `out` borrow memory from this one, those in `come` lend it memory. Both
        ranks of each pair call this."""
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


def _freed(comm: Intracomm, _key: int, of: Private) -> None:
    """Called when the user frees the communicator, and for MPI's own ones while MPI ends."""
    from mpi4py import MPI

    of.comm.Free() if comm in (MPI.COMM_WORLD, MPI.COMM_SELF) else of.free()


def private(comm: Intracomm) -> Private:
    """The `Private` of this communicator. The first call for a communicator is collective."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm is {comm!r}: it must be an intracommunicator of mpi4py")
    if not comm:
        raise ValueError("comm is MPI.COMM_NULL, or has been freed")
    global _key
    if _key is None:
        _key = MPI.Comm.Create_keyval(delete_fn=_freed)
    found = comm.Get_attr(_key)
    if found is None:
        found = Private(comm.Dup())
        comm.Set_attr(_key, found)
    return found
