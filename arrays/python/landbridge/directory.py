"""What goes from whom to whom where each process knows its own part of a layout alone. See the crate `plan`, module
`redistribution::directory`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import _core
from .layout import Layout, Spread

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# Elements of a part that are compared with what an owner function says.
MOST_COMPARED = 1000


class Side:
    """One side of a redistribution, as this rank knows it: process `process` of `layout`, or none."""

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
        """Its process and what that has, or wants."""
        return None if self._part is None else (self.process, self._part)


class Directory:
    """A `_core.Transfer` whose messages were found by asking the other ranks, which is collective over `comm`. If any
    rank finds that the parts make no array, `problem` says so there, and nobody may go on.

    `ranks`: of the processes of the source, and of the target."""

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
        """Messages are in the order in which they go."""
        return list(range(len(self._core.messages(sends)))), self._core.steps

    def straight(self, process: int, sends: bool, element: int, library: str) -> list[bool]:
        """All elements are packed here."""
        return [False] * len(self._core.messages(sends))

    def places(self, process: int, sends: bool, strides: Sequence[int], element: int, library: str) -> list[None]:
        """Elements are packed here."""
        return [None] * len(self._core.messages(sends))

    def packings(self, process: int, sends: bool, strides: Sequence[int], element: int) -> list[Any]:
        return self._core.packings(sends, list(self._sides[sends].local_shape), list(strides), element)


def check(name: str, layout: Any) -> None:
    """TypeError: it is neither a `Layout` nor a `Spread`."""
    if isinstance(layout, Layout):
        return
    for of in ("shape", "size", "runs"):
        if not hasattr(layout, of):
            raise TypeError(f"{name} is {layout!r}: it must be a Layout, or have shape, size and runs as lb.Spread says")


def summary(layout: Any) -> str:
    """What all ranks know of a layout."""
    if isinstance(layout, Layout):
        return repr(layout)
    return f"{type(layout).__name__}({tuple(layout.shape)}, {int(layout.size)})"


def runs_of(layout: Spread, process: int) -> np.ndarray:
    """What a process has, or wants: first elements and counts, in two columns."""
    runs = np.asarray(layout.runs(process))
    if runs.size == 0:
        return np.empty((0, 2), np.uint64)
    if runs.ndim != 2 or runs.shape[1] != 2 or runs.dtype.kind not in "iu":
        text = f"have shape {runs.shape} and dtype {runs.dtype}"
        raise ValueError(f"the runs of process {process} {text}: they must be whole numbers in two columns")
    if runs.dtype.kind == "i" and runs.min() < 0:
        at = int(np.argmax((runs < 0).any(axis=1)))
        raise ValueError(f"the runs of process {process}: run {at} is {tuple(runs[at].tolist())}: it cannot be negative")
    return np.ascontiguousarray(runs, np.uint64)


def _compare(layout: Any, process: int, runs: np.ndarray) -> None:
    """Compares the first and the last element of each run with what the owner function says; of many runs some."""
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
    """Bytes from each rank to each."""
    from mpi4py import MPI

    counts = np.array([len(part) for part in parts], np.int64)
    come = np.empty_like(counts)
    comm.Alltoall(counts, come)
    sent, got = np.frombuffer(b"".join(parts), np.uint8), np.empty(int(come.sum()), np.uint8)
    begins = [np.concatenate(([0], np.cumsum(each)[:-1])) for each in (counts, come)]
    comm.Alltoallv([sent, (counts, begins[0]), MPI.BYTE], [got, (come, begins[1]), MPI.BYTE])
    return [got[begin : begin + count].tobytes() for begin, count in zip(begins[1], come)]
