"""The messages of one rank in a redistribution: those that it sends, or those that it receives."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any, Optional

import numpy as np

from . import _core
from .datatypes import Place, made


class MessageList:
    """The messages that a rank sends in each run of a plan, or those that it receives. They are the same in every run.

    `process`: the process that this rank is of the layout at this end; None: of no process. `ranks`: the rank of each
    process at the other end. `shape`: the shape of this rank's part, if it has one. `itemsize`: bytes of an element."""

    def __init__(
        self,
        core: Any,
        sends: bool,
        process: Optional[int],
        ranks: Sequence[int],
        shape: tuple[int, ...],
        itemsize: int,
        library: str,
    ) -> None:
        self._core, self._sends, self.process, self.shape = core, sends, process, shape
        self._itemsize, self._library = itemsize, library
        self.peers: list[tuple[int, int]] = []
        """The rank at the other end of each message, and the number of its elements."""
        self.order: list[int] = []
        """Indices of the messages in the order of their steps."""
        self.straight: list[bool] = []
        """For each message: true if MPI moves it from array to array."""
        self.steps = 0
        """Number of steps of the whole redistribution; 0: this rank has no part."""
        self._bound: dict[tuple, list] = {}
        if process is not None:
            messages = core.sends(process) if sends else core.receives(process)
            self.peers = [(ranks[peer], count) for peer, count in messages]
            steps, self.steps = core.steps(process, sends)
            self.order = sorted(range(len(steps)), key=steps.__getitem__)
            self.straight = core.straight(process, sends, itemsize, library)
        self.all_straight = all(self.straight)

    def __iter__(self):
        return iter(self.peers)

    def beside(self, own: int, where: Sequence[tuple[str, str]]) -> list[int]:
        """Other ranks of this node with which this one exchanges messages in pieces that are long enough for lending
        memory. `where`: the site and the node of each rank."""
        least = _core.WORTH // self._itemsize
        cut = ((rank, count) for (rank, count), at_once in zip(self.peers, self.straight) if not at_once)
        return [rank for rank, count in cut if rank != own and count >= least and where[rank] == where[own]]

    def places(self, array: np.ndarray) -> list[Optional[Place]]:
        """For each message, the places of its elements in arrays of these strides, in the form that MPI takes. None:
        the message is packed, because it has too many runs or is too long to be sent at once."""
        if self.process is None:
            return []
        key = ("places", array.strides)
        if key not in self._bound:
            found = self._core.places(self.process, self._sends, list(array.strides), self._itemsize, self._library)
            self._bound[key] = places = [None if place is None else made(*place) for place in found]
            types = [place.datatype for place in places if place is not None and place.datatype is not None]
            weakref.finalize(self, free, types)
        return self._bound[key]

    def packings(self, array: Optional[np.ndarray]) -> list:
        """The packing of each message, kept for arrays of the same strides. Without an array, those of a dense one."""
        size = self._itemsize if array is None else array.dtype.itemsize
        strides = _dense(self.shape, size) if array is None else array.strides
        key = (strides, size)
        if key not in self._bound:
            self._bound[key] = self._core.packings(self.process, self._sends, list(strides), size)
        return self._bound[key]

    def flows(self, array: Optional[np.ndarray]) -> list:
        """Ranks and packings of the messages that are packed at both ends, in the order of their steps."""
        if self.all_straight:
            return []
        packings = self.packings(array)
        return [(self.peers[at][0], packings[at]) for at in self.order if not self.straight[at]]


def free(objects: list) -> None:
    """Frees datatypes or requests of MPI."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        for each in objects:
            each.Free()


def _dense(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """The strides, in bytes, of a dense array in C order with elements of `size` bytes."""
    return tuple(size * prod(shape[axis + 1 :]) for axis in range(len(shape)))
