"""Redistributions in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Optional

# The longest sleep between two looks at what is in flight, in seconds.
NAP = 5e-4


class PlanError(ValueError):
    """Some rank cannot take part; its text names the rank, and what is wrong there."""


class Awaited:
    """Something in flight with `test` and `wait`, which may be awaited."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._until_over().__await__()

    async def _until_over(self) -> Any:
        import asyncio

        pauses = naps()
        while not self.test():
            await asyncio.sleep(next(pauses))
        return self.wait()


class Running(Awaited):
    """A run of a plan that was started: see `Plan.start`. `await` it, or call `wait`; the result is what `Plan.run`
    returns."""

    def __init__(self, requests: list, statuses: list, finish: Callable[[], Any], held: Any) -> None:
        self._requests, self._statuses, self._finish, self._held = requests, statuses, finish, held
        self._result: Any = None
        self._error: Optional[Exception] = None
        # MPI uses the memory until it is over, whether anybody waits or not.
        _in_flight.add(self)

    def test(self) -> bool:
        """Whether it is over, so that `wait` returns or raises at once. Moves data, like all calls of MPI."""
        from mpi4py import MPI

        if self._requests is not None and MPI.Request.Testall(self._requests, self._statuses):
            self._requests = None
        return self._requests is None

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Waits until it is over, for at most `timeout` seconds; None: as long as it takes. Raises TimeoutError if it
        takes longer: it goes on, and may be waited for again."""
        from mpi4py import MPI

        if timeout is not None:
            deadline, pauses = time.monotonic() + timeout, naps()
            while not self.test():
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"the redistribution has taken longer than {timeout:g} s")
                time.sleep(next(pauses))
        elif self._requests is not None:
            MPI.Request.Waitall(self._requests, self._statuses)
            self._requests = None
        return self._over()

    def _over(self) -> Any:
        finish, self._finish = self._finish, None
        if finish is not None:
            try:
                self._result = finish()
            except Exception as error:  # noqa: BLE001: raised below, each time
                self._error = error
            finally:
                _in_flight.discard(self)
                self._held = None
        if self._error is not None:
            raise self._error
        return self._result


_in_flight: set[Running] = set()


def naps() -> Iterator[float]:
    """Longer and longer ones, in seconds: others may compute on this core."""
    nap = NAP / 32
    while True:
        yield nap
        nap = min(2 * nap, NAP)
