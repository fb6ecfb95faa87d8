"""Redistributions in flight."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

from . import _core

if TYPE_CHECKING:
    from .private import Private

Result = TypeVar("Result")
# Seconds for which a rank polls its pieces in flight before it sleeps. It yields the core between two polls.
SPIN = 3e-4
# A run that has not moved for this many seconds goes on without the pieces that other ranks have not given back.
STALL = 0.05
# The longest sleep between two polls, in seconds.
NAP = 5e-4
# Maximum number of ranks with the same problem that a message lists.
MOST_NAMED = 8


class PlanError(ValueError):
    """Raised if a rank cannot take part. Its text names the rank and the problem there."""

    # Tracebacks show the name by which programs import it.
    __module__ = "landbridge"


def described(error: BaseException) -> str:
    """The kind and the text of an error, for other ranks."""
    try:
        text = str(error)
    except BaseException:  # the error itself is raised in any case
        text = "its text cannot be made"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_own(error: Optional[BaseException]) -> bool:
    """Returns true for an error that a rank raises itself after it has told the others: an interruption, an exit."""
    return error is not None and not isinstance(error, Exception)


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
        self,
        private: Private,
        begins: list[Callable[[], Any]],
        requests: list,
        statuses: list,
        moving: Optional[Any],
        finish: Callable[[], tuple[Result, Optional[BaseException]]],
        held: Any,
    ) -> None:
        """Counts the run as the communicator's last. `begins`: calls that begin messages, and return their requests or
        None. `moving`: the messages that go in pieces, a `_core.Moving`. `finish`: returns the result, and the error
        that each wait raises; it is called again if an exception from outside has interrupted it. `held`: the memory
        that MPI uses."""
        self._private, self._begins, self._requests, self._statuses = private, begins, requests, statuses
        self.moving, self._held = moving, held
        self._finish: Optional[Callable[[], tuple[Result, Optional[BaseException]]]] = finish
        # Held by the thread that asks MPI for this run's requests, or finishes the run.
        self._turn = threading.RLock()
        self._result: Any = None
        self._error: Optional[BaseException] = None
        # Nobody waits for this run if an exception comes between; `Plan.start` gives it to the program.
        self._is_given = False
        # MPI uses the arrays until the run is over, even if the program drops this object.
        _in_flight.add(self)
        self._number = private.runs[0] + 1
        private.in_flight.add(self._number)
        if moving is not None:
            in_pieces.append(self)
        _core.register(private.opened, private.runs, self)

    def begin(self) -> None:
        """Begins the messages."""
        _core.begin(self._begins, self._requests)
        if self.moving is not None:
            self.moving.advance()

    def given(self) -> Running[Result]:
        """Returns this run. The program waits for it from now on."""
        self._is_given = True
        if self._is_begun():
            self._close()
        return self

    def settle(self) -> None:
        """Begins the messages that an exception has left, so that those of the next run follow them. Waits until they
        have begun, or until they are over if the program does not."""
        _core.begin(self._begins, self._requests)
        if self._is_given:
            self._move(self._is_begun)
            self._close()
        else:
            self._wait()
            self._forget()

    def is_of(self, private: Private) -> bool:
        return self._private is private

    def number(self) -> int:
        """The number of this run of its communicator."""
        return self._number

    def complete(self) -> None:
        """Waits until the run is over. Leaves its error to the program's wait."""
        self._wait()
        with contextlib.suppress(Exception):
            self._over()

    def give_up(self) -> None:
        """Ends the run with an error, because it cannot be over."""
        self._error = RuntimeError("the communicator was freed before all ranks had started this run")
        self._finish = None
        _given_up.add(self)
        _remove(self, in_pieces)
        self._close()
        _in_flight.discard(self)

    def _close(self) -> None:
        _remove(self, self._private.opened)

    def _forget(self) -> None:
        """The run is over: nothing needs it any longer."""
        _remove(self, in_pieces)
        self._private.forget(self._number)
        self._close()
        self._held = None
        _in_flight.discard(self)

    def _is_begun(self) -> bool:
        return self.moving is None or self.moving.is_begun()

    def _move(self, is_done: Callable[[], bool]) -> None:
        """Moves pieces of all runs in flight until this returns true: other ranks may need those of an earlier run
        before they begin this one. Ranks that wait in MPI give nothing back."""
        begun, pauses = time.monotonic(), naps()
        while not is_done():
            if advance(self):
                begun, pauses = time.monotonic(), naps()
                continue
            waited = time.monotonic() - begun
            if waited < SPIN:
                os.sched_yield()
                continue
            if waited > STALL and self.moving is not None:
                self.moving.expect_nothing_back()
            time.sleep(next(pauses))

    def _wait(self) -> None:
        if in_pieces:
            self._move(self._is_over)
            return
        with self._turn:
            if self not in _given_up:
                _core.complete(self._private.mpi.Request.Waitall, self._requests, self._statuses)

    def _is_over(self) -> bool:
        if self in _given_up:
            return True
        if self.moving is not None and not self.moving.is_over():
            return False
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return _core.complete(self._private.mpi.Request.Testall, self._requests, self._statuses)
        finally:
            self._turn.release()

    def test(self) -> bool:
        """Returns true once the run is over, so that `wait` returns or raises at once. Moves data, as all MPI calls
        do. Raises RuntimeError if MPI was finalized before."""
        self._expect_mpi()
        advance(self)
        return self._is_over()

    def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits until the run is over, for at most `timeout` seconds; None: without a limit. Raises TimeoutError if the
        run takes longer. The run then goes on, and `wait` may be called again. Raises RuntimeError if MPI was finalized
        before the run was over."""
        self._expect_mpi()
        if timeout is not None:
            deadline, pauses = time.monotonic() + timeout, naps()
            while not self.test():
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"the redistribution has taken longer than {timeout:g} s")
                time.sleep(next(pauses))
        else:
            self._wait()
        return self._over()

    def _expect_mpi(self) -> None:
        if self in _in_flight and self._private.mpi.Is_finalized():
            raise RuntimeError("MPI was finalized before this run was over")

    def _over(self) -> Result:
        # An exception may come between any two steps: the next wait goes on there.
        with self._turn:
            if self._finish is not None:
                self._result, self._error = self._finish()
                self._finish = None
            if self in _in_flight:
                self._forget()
        if self._error is not None:
            raise self._error
        return self._result


def complete(of: Private, last: int) -> None:
    """Waits for the runs of a communicator that is about to be freed. Their results and errors stay for their waits.
    Gives up the runs after `last`, which not all ranks have started."""
    for run in sorted((run for run in tuple(_in_flight) if run.is_of(of)), key=Running.number):
        if run.number() > last:
            run.give_up()
            continue
        if run in of.opened:
            run.settle()
        # One that the program does not wait for is over now.
        if run in _in_flight:
            run.complete()


_in_flight: set[Running] = set()
# Runs without an end: MPI may use their memory as long as this process lives.
_given_up: set[Running] = set()
# Runs of all communicators whose pieces are not over.
in_pieces: list[Running] = []


def advance(own: Running) -> bool:
    """Moves pieces of all runs until it would have to wait. Returns true if any has moved. Another run whose elements
    are converted is left alone: its own wait raises the errors and the interruptions of the conversion."""
    moved = False
    for run in tuple(in_pieces):
        if run is not own and run.moving.converts:
            continue
        moved |= run.moving.advance()
        if run.moving.is_over():
            _remove(run, in_pieces)
    return moved


def _remove(run: Running, runs: list[Running]) -> None:
    # Another thread may remove it first.
    try:  # noqa: SIM105, `contextlib.suppress` takes three times as long
        runs.remove(run)
    except ValueError:
        pass


def naps() -> Iterator[float]:
    """Yields sleep times in seconds, each twice the last, up to `NAP`. During a sleep other processes may use this
    core."""
    nap = NAP / 32
    while True:
        yield nap
        nap = min(2 * nap, NAP)
