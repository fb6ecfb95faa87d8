"""How arrays are spread over processes.

>>> from landbridge import Block, Cyclic, Layout, Whole
>>> layout = Layout((6, 10), [Block(2), Cyclic(2, block=3)])
>>> layout.size, layout.local_shape(1), layout.owner((0, 3))
(4, (3, 4), 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import index as whole_number
from typing import Optional, Union

from . import _core

__all__ = ["Block", "Copies", "Cyclic", "Layout", "Lists", "Whole"]


@dataclass(frozen=True)
class Whole:
    """One process along the axis, which owns all of it.

    `halo`: how many copies of neighbouring indices it keeps, before and after its own, or a number for both. They are
    filled, but never sent."""

    halo: Union[int, tuple[int, int]] = 0
    periodic: bool = False
    over = 1


@dataclass(frozen=True)
class Block:
    """Consecutive indices for each of `over` processes: `sizes` says how many, else `ceil(n / over)` for all but the
    last ones, as in High Performance Fortran and MPI's darray.

    `halo`: see `Whole`. `periodic`: whether the first index of the axis follows the last one, for halos."""

    over: int
    sizes: Optional[Sequence[int]] = None
    halo: Union[int, tuple[int, int]] = 0
    periodic: bool = False


@dataclass(frozen=True)
class Cyclic:
    """Blocks of `block` indices dealt out to `over` processes in turn, the first to process `first`. A process keeps
    its blocks one after the other, as ScaLAPACK does."""

    over: int
    block: int = 1
    first: int = 0


@dataclass(frozen=True)
class Lists:
    """The indices that each process owns, in the order in which it keeps them."""

    lists: Sequence[Sequence[int]]

    @property
    def over(self) -> int:
        return len(self.lists)

    @staticmethod
    def by_owner(owners: Iterable[int], over: int) -> Lists:
        """The indices 0, 1, … belong to these processes, of `over`; each keeps its own in ascending order."""
        lists: list[list[int]] = [[] for _ in range(over)]
        for index, owner in enumerate(owners):
            if not 0 <= owner < over:
                raise ValueError(f"index {index} is owned by process {owner}, but there are {over}")
            lists[owner].append(index)
        return Lists(tuple(map(tuple, lists)))


@dataclass(frozen=True)
class Copies:
    """A dimension of the process grid along which all processes hold the same."""

    of: int


Axis = Union[Whole, Block, Cyclic, Lists]


@dataclass
class _AxisOf:
    """An axis as the compiled part takes it."""

    kind: str
    over: int
    block: int = 1
    first: int = 0
    sizes: Optional[list[int]] = None
    lists: Optional[list[list[int]]] = None
    before: int = 0
    after: int = 0
    periodic: bool = False


class Layout:
    """How an array of `shape` is spread over processes.

    `axes`: for each axis, how its indices are spread over the processes along it. Processes are numbered row-major over
    the grid, which by default has a dimension for each axis. `order`: of local elements in memory, "C" or "F", for
    arrays that are made here; an array that is passed may have any strides.
    `grid`: the dimensions of the grid, slowest first: the number of the axis that runs along each, or `Copies`.

    Raises ValueError, which names the axis and the value, for what is not a layout."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    order: str
    grid: tuple[Union[int, Copies], ...]

    def __init__(
        self,
        shape: Sequence[int],
        axes: Sequence[Axis],
        *,
        order: str = "C",
        grid: Optional[Sequence[Union[int, Copies]]] = None,
    ) -> None:
        self.shape = tuple(_natural(extent, f"shape[{axis}]") for axis, extent in enumerate(shape))
        self.axes = tuple(axes)
        if order not in ("C", "F"):
            raise ValueError(f'order is {order!r}: it can be "C" or "F"')
        self.order = order
        self.grid = tuple(range(len(self.axes)) if grid is None else grid)
        described = [_described(axis, number) for number, axis in enumerate(self.axes)]
        dimensions, along = self._dimensions(described)
        self._core = _core.Layout(list(self.shape), described, order == "F", dimensions, along)

    def _dimensions(self, described: list[_AxisOf]) -> tuple[list[int], list[list[int]]]:
        dimensions, along = [], [[] for _ in described]
        for at, entry in enumerate(self.grid):
            if isinstance(entry, Copies):
                dimensions.append(_natural(entry.of, f"grid[{at}]: copies"))
            elif entry in range(len(described)):
                dimensions.append(described[entry].over)
                along[entry].append(at)
            else:
                raise ValueError(f"grid[{at}] is {entry!r}: it can be an axis, 0 to {len(described) - 1}, or Copies")
        for axis, runs_along in enumerate(along):
            if not runs_along and described[axis].over > 1:
                raise ValueError(f"axis {axis} is spread over {described[axis].over} processes, but not in the grid")
        return dimensions, along

    @property
    def size(self) -> int:
        """How many processes it is for."""
        return self._core.size

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of a process's local part, halos included. IndexError: there is no such process."""
        return tuple(self._core.local_shape(rank))

    def owner(self, index: Sequence[int]) -> int:
        """The process that owns the element at an index of the array, the first of its copies. IndexError: there is no
        such element."""
        return self._core.owner(list(index))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        text = f"Layout({self.shape}, {list(self.axes)}"
        if self.order != "C":
            text += f", order={self.order!r}"
        if self.grid != tuple(range(len(self.axes))):
            text += f", grid={self.grid}"
        return text + ")"


def _natural(value: int, what: str) -> int:
    try:
        number = whole_number(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}: it must be a whole number") from None
    if number < 0:
        raise ValueError(f"{what} is {number}: it cannot be negative")
    return number


def _described(axis: Axis, number: int) -> _AxisOf:
    name = f"axis {number}"
    if isinstance(axis, (Whole, Block)):
        halo = axis.halo if isinstance(axis.halo, tuple) else (axis.halo, axis.halo)
        before, after = (_natural(width, f"{name}: halo") for width in halo)
        if isinstance(axis, Whole):
            return _AxisOf("whole", 1, before=before, after=after, periodic=axis.periodic)
        sizes = axis.sizes
        if sizes is not None:
            sizes = [_natural(size, f"{name}: sizes[{at}]") for at, size in enumerate(sizes)]
        over = _natural(axis.over, f"{name}: over")
        return _AxisOf("block", over, sizes=sizes, before=before, after=after, periodic=axis.periodic)
    if isinstance(axis, Cyclic):
        over, block, first = (_natural(getattr(axis, of), f"{name}: {of}") for of in ("over", "block", "first"))
        return _AxisOf("cyclic", over, block, first)
    if isinstance(axis, Lists):
        lists = [[_natural(at, f"{name}: an index of process {rank}") for at in each] for rank, each in enumerate(axis.lists)]
        return _AxisOf("lists", len(lists), lists=lists)
    raise TypeError(f"{name} is {axis!r}: it can be Whole, Block, Cyclic or Lists")
