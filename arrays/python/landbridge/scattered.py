"""Arrays of a coupling whose elements are spread over the ranks of a side in any way, so that each rank knows only its
own part (`Spread`).

A side moves such an array into blocks, or out of them, by its own MPI. The other side sees only the blocks, whose
description is short. So elements cross between the sides in few, long messages, regardless of their order, and only
ranks inside a side need a directory of the parts. Meeting on a regular layout is also the rendezvous of Plimpton,
Hendrickson and Stewart, "A Parallel Rendezvous Algorithm for Interpolation between Multiple Grids", 2004."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import directory
from .layout import Block, Layout, Spread, Whole
from .redistribution import Plan

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def blocks(shape: Sequence[int], ranks: int) -> Layout:
    """A layout in blocks over at most `ranks` ranks, which splits as few of the first axes as possible."""
    axes = []
    for extent in shape:
        over = max(1, min(extent, ranks))
        axes.append(Block(over) if over > 1 else Whole())
        ranks //= over
    return Layout(shape, axes)


def is_same(one: Any, other: Any, rank: int) -> bool:
    """Returns true if both layouts are the same, as far as this rank knows."""
    if one is other:
        return True
    if isinstance(one, Layout) or isinstance(other, Layout):
        return one == other
    if (tuple(one.shape), one.size) != (tuple(other.shape), other.size):
        return False
    return rank >= one.size or np.array_equal(directory.runs_of(one, rank), directory.runs_of(other, rank))


@dataclass
class _Known:
    layout: Spread
    dtype: Optional[np.dtype]
    plan: Plan


class Scattered:
    """The scattered arrays of a side: plans that move them into blocks and out of them, by name and direction."""

    def __init__(self, comm: Optional[Intracomm]) -> None:
        self._comm = comm
        self._known: dict[tuple[str, bool], _Known] = {}

    def plan(self, name: str, gathers: bool, layout: Spread, dtype: Optional[np.dtype], ranks: Any) -> Plan:
        """The plan that moves an array into blocks (`gathers`), or out of them; collective. Reuses the last plan if
        nothing has changed on any rank. Raises PlanError on all ranks if there can be no plan."""
        known, same = self._known.get((name, gathers)), False
        try:
            if known is not None:
                same = known.dtype == dtype and is_same(known.layout, layout, ranks.rank)
        except Exception:
            # Making the plan reports this error.
            same = False
        if ranks.most([not same]) == [0] and known is not None:
            return known.plan
        met = blocks(layout.shape, ranks.size)
        plan = Plan(layout, met, dtype, self._comm) if gathers else Plan(met, layout, dtype, self._comm)
        self._known[name, gathers] = _Known(layout, dtype, plan)
        return plan

    def check(self, layout: Any) -> None:
        """Raises ValueError or TypeError if this is not a layout of an array that can be scattered on this side."""
        directory.check("layout", layout)
        if self._comm is None:
            raise ValueError(
                f"layout is {directory.summary(layout)}: such a one needs a communicator: join(name, comm)"
            )
