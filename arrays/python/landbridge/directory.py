"""Finds the messages of a redistribution in which each process knows only its own part of a layout. See the crate
`plan`, module `redistribution::directory`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import _core
from .layout import Layout, Spread, natural

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# Approximate maximum number of a part's elements that are checked against its owner function.
MOST_COMPARED = 1000


class Side:
    """One side of a redistribution, as this rank knows it: process `process` of `layout`; None: it is no process of
    it."""

    def __init__(self, layout: Any, process: Optional[int], owned: bool) -> None:
        self.layout, self.process = layout, process
        self._part = None
        if process is None:
            return
        if isinstance(layout, Layout):
            self._part = _core.Part.of(layout._core, process, owned)
            return
        runs = runs_of(layout, process)
        if owned and __debug__ and hasattr(layout, "owner"):
            _compare(layout, process, runs)
        self._part = _core.Part(list(layout.shape), runs.tobytes())

    @property
    def local_shape(self) -> tuple[int, ...]:
        if isinstance(self.layout, Layout):
            return self.layout.local_shape(self.process)
        return (self._part.count,)

    @property
    def own(self) -> Optional[tuple[int, Any]]:
        """This rank's process and its part of the array, if it has one."""
        return None if self._part is None else (self.process, self._part)


class Directory:
    """A `_core.Transfer` whose messages come from a distributed directory. Making it is collective over `comm`. A rank
    that finds that the parts do not form the array states so in `problem`; then no rank may use the directory.

    `ranks`: the ranks of the source's processes, and of the target's."""

    def __init__(self, source: Side, target: Side, ranks: tuple[list[int], list[int]], comm: Intracomm) -> None:
        self._sides, self.problem = {True: source, False: target}, None
        self._core = _core.Directory(source.own, target.own, list(ranks), comm.Get_size())
        for _ in range(2):
            letters = _all_to_all(comm, [self._core.letter(rank) for rank in range(comm.Get_size())])
            try:
                self._core.read(letters)
            except ValueError as error:
                self.problem = self.problem or str(error)

    def sends(self, process: int) -> list[tuple[int, int]]:
        return self._core.messages(True)

    def receives(self, process: int) -> list[tuple[int, int]]:
        return self._core.messages(False)

    def steps(self, process: int, sends: bool) -> tuple[list[int], int]:
        """The step of each message, and the number of steps. Messages are already in the order of their steps."""
        return list(range(len(self._core.messages(sends)))), self._core.steps

    def straight(self, process: int, sends: bool, element: int, library: str) -> list[bool]:
        """False for each message: all messages are packed."""
        return [False] * len(self._core.messages(sends))

    def places(self, process: int, sends: bool, strides: Sequence[int], element: int, library: str) -> list[None]:
        """None for each message: all messages are packed."""
        return [None] * len(self._core.messages(sends))

    def packings(self, process: int, sends: bool, strides: Sequence[int], element: int) -> list[Any]:
        return self._core.packings(sends, list(self._sides[sends].local_shape), list(strides), element)


def check(name: str, layout: Any) -> None:
    """Raises TypeError or ValueError if `layout` is neither a `Layout` nor a `Spread`."""
    if isinstance(layout, Layout):
        return
    for of in ("shape", "size", "runs"):
        if not hasattr(layout, of):
            raise TypeError(
                f"{name} is {layout!r}: it must be a Layout, or have shape, size and runs as lb.Spread says"
            )
    for axis, extent in enumerate(layout.shape):
        natural(extent, f"{name}: shape[{axis}]")
    if natural(layout.size, f"{name}: size") == 0:
        raise ValueError(f"{name}: size is 0: there must be 1 process or more")


def summary(layout: Any) -> str:
    """The properties of a layout that all ranks know, as text."""
    if isinstance(layout, Layout):
        return repr(layout)
    return f"{type(layout).__name__}({tuple(layout.shape)}, {int(layout.size)})"


def runs_of(layout: Spread, process: int) -> np.ndarray:
    """The runs of elements that a process has, or wants: first elements and counts, in two columns."""
    runs = np.asarray(layout.runs(process))
    if runs.size == 0:
        return np.empty((0, 2), np.uint64)
    if runs.ndim != 2 or runs.shape[1] != 2 or runs.dtype.kind not in "iu":
        text = f"have shape {runs.shape} and dtype {runs.dtype}"
        raise ValueError(f"the runs of process {process} {text}: they must be whole numbers in two columns")
    if runs.dtype.kind == "i" and runs.min() < 0:
        at = int(np.argmax((runs < 0).any(axis=1)))
        raise ValueError(
            f"the runs of process {process}: run {at} is {tuple(runs[at].tolist())}: it cannot be negative"
        )
    return np.ascontiguousarray(runs, np.uint64)


def _compare(layout: Any, process: int, runs: np.ndarray) -> None:
    """Checks the first and the last element of each run against the owner function; if there are many runs, of a
    sample."""
    elements = prod(layout.shape)
    for start, length in runs[:: max(1, 2 * len(runs) // MOST_COMPARED)].tolist():
        for number in {start, start + length - 1} if length else ():
            if number >= elements:
                continue
            index = tuple(int(at) for at in np.unravel_index(number, layout.shape))
            owner = layout.owner(index)
            if owner != process:
                raise ValueError(f"element {number}, at {index}: process {process} has it, but owner says {owner}")


def _all_to_all(comm: Intracomm, parts: Sequence[bytes]) -> list[bytes]:
    """Sends each part to its rank, and returns the bytes that come from each rank; collective."""
    from mpi4py import MPI

    counts = np.array([len(part) for part in parts], np.int64)
    come = np.empty_like(counts)
    comm.Alltoall(counts, come)
    sent, got = np.frombuffer(b"".join(parts), np.uint8), np.empty(int(come.sum()), np.uint8)
    begins = [np.concatenate(([0], np.cumsum(each)[:-1])) for each in (counts, come)]
    comm.Alltoallv([sent, (counts, begins[0]), MPI.BYTE], [got, (come, begins[1]), MPI.BYTE])
    return [got[begin : begin + count].tobytes() for begin, count in zip(begins[1], come)]
