"""Redistributions in flight."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

import numpy as np

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Result = TypeVar("Result")
# Tag of messages with elements.
TAG = 7
# Seconds for which a rank polls its pieces in flight before it sleeps. It yields the core between two polls.
SPIN = 3e-4
# The longest sleep between two polls, in seconds.
NAP = 5e-4
# Maximum number of ranks with the same problem that a message lists.
MOST_NAMED = 8


class PlanError(ValueError):
    """Raised if a rank cannot take part. Its text names the rank and the problem there."""


def joined(problems: Iterable[tuple[int, str]]) -> str:
    """The problems and their ranks as one text, which states each problem once."""
    ranks: dict[str, list[int]] = {}
    for rank, text in problems:
        ranks.setdefault(text, []).append(rank)
    return "; ".join(f"{_named(of)}: {text}" for text, of in ranks.items())


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:MOST_NAMED]))}{more}"


class Moving:
    """The packed messages of a run in flight, in pieces. `convert` takes the address and length of a piece and returns
    its elements in the dtype of the receiving array; None: the dtypes are the same."""

    def __init__(self, comm: Intracomm, pieces: Any, convert: Optional[Callable[[int, int], np.ndarray]]) -> None:
        from mpi4py import MPI

        self._mpi, self._comm, self._pieces, self._convert = MPI, comm, pieces, convert
        self._requests = [MPI.REQUEST_NULL] * pieces.slots
        self._statuses = [MPI.Status() for _ in self._requests]
        # For each slot: true if its piece is sent, and the rank at the other end.
        self._in_flight_at: list[tuple[bool, int]] = [(True, 0)] * pieces.slots
        # Ranks that have sent empty pieces, because they cannot take part.
        self.absent: set[int] = set()

    def is_over(self) -> bool:
        return self._pieces.is_over()

    def advance(self) -> bool:
        """Sends, receives and copies pieces until it would have to wait. Returns true if any piece has moved."""
        moved = False
        while self._begin() or self._end() or self._pieces.copy_own():
            moved = True
        return moved

    def wait(self) -> None:
        """Waits until all pieces have been sent and received."""
        begun, pauses = time.monotonic(), naps()
        while not self.is_over():
            if self.advance():
                begun, pauses = time.monotonic(), naps()
            elif time.monotonic() - begun < SPIN:
                os.sched_yield()
            else:
                time.sleep(next(pauses))

    def _begin(self) -> bool:
        MPI, moved = self._mpi, False
        while (piece := self._pieces.begin()) is not None:
            slot, sends, rank, at, length = piece
            begin = self._comm.Isend if sends else self._comm.Irecv
            self._requests[slot] = begin([MPI.buffer.fromaddress(at, length), MPI.BYTE], rank, TAG)
            self._in_flight_at[slot] = (sends, rank)
            moved = True
        return moved

    def _end(self) -> bool:
        over = self._mpi.Request.Testsome(self._requests, self._statuses)
        for at, slot in enumerate(over or ()):
            sends, rank = self._in_flight_at[slot]
            length = 0 if sends else self._statuses[at].count
            if not sends and length == 0:
                self.absent.add(rank)
            self._pieces.over(slot, length)
        while self._convert is not None and (piece := self._pieces.ripe()) is not None:
            slot, at, length, came = piece
            converted = self._convert(at, length) if came else None
            self._pieces.unpack(slot, 0 if converted is None else converted.__array_interface__["data"][0])
        return bool(over)


class Awaited(Generic[Result]):
    """An awaitable operation in flight, with `test` and `wait`."""

    def test(self) -> bool:
        raise NotImplementedError

    def wait(self, timeout: Optional[float] = None) -> Result:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Result]:
        return self._until_over().__await__()

    async def _until_over(self) -> Result:
        import asyncio

        pauses = naps()
        while not self.test():
            await asyncio.sleep(next(pauses))
        return self.wait()


class Running(Awaited[Result]):
    """A run in flight, from `Plan.start`. `await` it, or call `wait`; both return the result of `Plan.run`."""

    def __init__(
        self, requests: list, statuses: list, moving: Optional[Moving], finish: Callable[[], Result], held: Any
    ) -> None:
        self._requests, self._statuses, self._moving = requests, statuses, moving
        self._finish, self._held = finish, held
        self._result: Any = None
        self._error: Optional[Exception] = None
        # MPI uses the arrays until the run is over, even if the program drops this object.
        _in_flight.add(self)

    def test(self) -> bool:
        """Returns true once the run is over, so that `wait` returns or raises at once. Moves data, as all MPI calls
        do."""
        from mpi4py import MPI

        if self._moving is not None:
            self._moving.advance()
            if not self._moving.is_over():
                return False
        if self._requests is not None and MPI.Request.Testall(self._requests, self._statuses):
            self._requests = None
        return self._requests is None

    def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits until the run is over, for at most `timeout` seconds; None: without a limit. Raises TimeoutError if the
        run takes longer. The run then goes on, and `wait` may be called again."""
        from mpi4py import MPI

        if timeout is not None:
            deadline, pauses = time.monotonic() + timeout, naps()
            while not self.test():
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"the redistribution has taken longer than {timeout:g} s")
                time.sleep(next(pauses))
        elif self._requests is not None:
            if self._moving is not None:
                self._moving.wait()
            MPI.Request.Waitall(self._requests, self._statuses)
            self._requests = None
        return self._over()

    def _over(self) -> Result:
        finish, self._finish = self._finish, None
        if finish is not None:
            try:
                self._result = finish()
            except Exception as error:  # raised below, each time
                self._error = error
            finally:
                _in_flight.discard(self)
                self._held = None
        if self._error is not None:
            raise self._error
        return self._result


_in_flight: set[Running] = set()


def naps() -> Iterator[float]:
    """Yields sleep times in seconds, each twice the last, up to `NAP`. During a sleep other processes may use this
    core."""
    nap = NAP / 32
    while True:
        yield nap
        nap = min(2 * nap, NAP)
