"""Layouts: the distribution of arrays over processes.

>>> from landbridge import Block, Cyclic, Layout, Whole
>>> layout = Layout((6, 10), [Block(2), Cyclic(2, block=3)])
>>> layout.size, layout.local_shape(1), layout.owner((0, 3))
(4, (3, 4), 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index as whole_number
from typing import Any, Optional, Protocol, Union

from . import _core

__all__ = ["Along", "Block", "Copies", "Cyclic", "Layout", "Lists", "Runs", "Spread", "Whole"]


@dataclass(frozen=True)
class Whole:
    """One process along the axis, which owns all of it.

    `halo`: number of copies of neighbouring indices that it keeps, before and after its own, or one number for both.
    They are filled, but never sent."""

    halo: Union[int, tuple[int, int]] = 0
    periodic: bool = False
    over = 1


@dataclass(frozen=True)
class Block:
    """Consecutive indices for each of `over` processes. `sizes`: number of indices of each process; by default
    `ceil(n / over)` for all but the last ones, as in High Performance Fortran and MPI's darray.

    `halo`: see `Whole`. `periodic`: true if the first index of the axis follows the last one, for halos."""

    over: int
    sizes: Optional[Sequence[int]] = None
    halo: Union[int, tuple[int, int]] = 0
    periodic: bool = False


@dataclass(frozen=True)
class Cyclic:
    """Blocks of `block` indices, dealt out to `over` processes in turn, the first to process `first`. A process stores
    its blocks one after the other, as in ScaLAPACK."""

    over: int
    block: int = 1
    first: int = 0


@dataclass(frozen=True)
class Lists:
    """The indices that each process owns, in the order in which it stores them."""

    lists: Sequence[Sequence[int]]

    @property
    def over(self) -> int:
        return len(self.lists)

    @staticmethod
    def by_owner(owners: Iterable[int], over: int) -> Lists:
        """Assigns the indices 0, 1, … to these processes, of `over`; each stores its own in ascending order."""
        lists: list[list[int]] = [[] for _ in range(over)]
        for index, owner in enumerate(owners):
            if not 0 <= owner < over:
                raise ValueError(f"index {index} is owned by process {owner}, but there are {over}")
            lists[owner].append(index)
        return Lists(tuple(map(tuple, lists)))


@dataclass(frozen=True)
class Copies:
    """A dimension of the process grid along which all processes hold the same elements."""

    of: int


@dataclass(frozen=True)
class Along:
    """One dimension of the process grid with `of` processes, for an axis that runs along several dimensions. Those with
    the lowest `order` are the slowest; among equals, the first ones in the grid are."""

    axis: int
    of: int
    order: int = 0


Axis = Union[Whole, Block, Cyclic, Lists]


class Spread(Protocol):
    """The interface of a program's own layout, which `redistribute` and `plan` take in place of a `Layout`.

    Each rank calls `runs` only for its own process. If there is a method `owner(index)`, which returns the process that
    owns the element at an index of the array, some of a source's runs are checked against it (unless Python runs with
    -O)."""

    shape: tuple[int, ...]
    size: int
    """Number of processes."""

    def runs(self, rank: int) -> Sequence[tuple[int, int]]:
        """The elements that a process has, or wants: for each run of consecutive elements, the row-major number of its
        first element in the array, and the number of elements. Prefer an array of two columns. The process stores the
        runs one after the other in an array of one axis."""


@dataclass(frozen=True)
class Runs:
    """A layout of which each process knows only its own part: the runs `own`, see `Spread.runs`."""

    shape: tuple[int, ...]
    size: int
    own: Any = field(repr=False)

    def runs(self, rank: int) -> Any:
        return self.own


@dataclass
class _AxisOf:
    """An axis in the form that the compiled part takes."""

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
    """The distribution of an array of `shape` over processes.

    `axes`: for each axis, the distribution of its indices over the processes along it. For an array of one axis,
    `shape` and `axes` need no list: `Layout(8, Block(2))`. Processes are numbered row-major over the grid, which by
    default has one dimension for each axis.
    `order`: memory order of local elements, "C" or "F", for arrays that are made here; an array that is passed may have
    any strides.
    `grid`: the dimensions of the grid, slowest first. Each is the number of the axis that runs along it, or `Copies`;
    if an axis runs along several dimensions, each of them is an `Along`.

    Raises ValueError, which names the axis and the value, if the arguments describe no layout."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    order: str
    grid: tuple[Union[int, Along, Copies], ...]

    def __init__(
        self,
        shape: Union[int, Sequence[int]],
        axes: Union[Axis, Sequence[Axis]],
        *,
        order: str = "C",
        grid: Optional[Sequence[Union[int, Along, Copies]]] = None,
    ) -> None:
        extents = (shape,) if hasattr(shape, "__index__") else _sequence(shape, "shape", "whole numbers")
        self.shape = tuple(_natural(extent, f"shape[{axis}]") for axis, extent in enumerate(extents))
        one = isinstance(axes, (Whole, Block, Cyclic, Lists))
        self.axes = (axes,) if one else _sequence(axes, "axes", "Whole, Block, Cyclic or Lists")
        if len(self.axes) != len(self.shape):
            raise ValueError(f"{len(self.axes)} axes are described, but the array has {len(self.shape)}")
        if order not in ("C", "F"):
            raise ValueError(f'order is {order!r}: it can be "C" or "F"')
        self.order = order
        self.grid = tuple(range(len(self.axes)) if grid is None else grid)
        self._text: Optional[str] = None
        described = [_described(axis, number) for number, axis in enumerate(self.axes)]
        dimensions, along = self._dimensions(described)
        self._core = _core.Layout(list(self.shape), described, order == "F", dimensions, along)

    def _dimensions(self, described: list[_AxisOf]) -> tuple[list[int], list[list[int]]]:
        dimensions: list[int] = []
        along: list[list[tuple[int, int]]] = [[] for _ in described]
        for at, entry in enumerate(self.grid):
            if isinstance(entry, Copies):
                dimensions.append(_natural(entry.of, f"grid[{at}]: copies"))
                continue
            axis, order = (entry.axis, entry.order) if isinstance(entry, Along) else (entry, 0)
            if axis not in range(len(described)):
                last = len(described) - 1
                raise ValueError(f"grid[{at}] is {entry!r}: it can be an axis, 0 to {last}, Along one, or Copies")
            of = entry.of if isinstance(entry, Along) else described[axis].over
            dimensions.append(_natural(of, f"grid[{at}]: of"))
            along[axis].append((order, at))
        for axis, runs_along in enumerate(along):
            if not runs_along and described[axis].over > 1:
                raise ValueError(f"axis {axis} is spread over {described[axis].over} processes, but not in the grid")
        return dimensions, [[at for _, at in sorted(runs_along)] for runs_along in along]

    def _of_axes(self, axes: Sequence[int]) -> Layout:
        """The layout, over the same processes, of an array that has only these axes."""
        grid: list[Union[int, Along, Copies]] = []
        for entry in self.grid:
            if not isinstance(entry, Copies):
                axis = entry.axis if isinstance(entry, Along) else entry
                of = entry.of if isinstance(entry, Along) else self.axes[axis].over
                order = entry.order if isinstance(entry, Along) else 0
                entry = Along(list(axes).index(axis), of, order) if axis in axes else Copies(of)
            grid.append(entry)
        shape, kinds = [self.shape[axis] for axis in axes], [self.axes[axis] for axis in axes]
        return Layout(shape, kinds, order=self.order, grid=grid)

    @classmethod
    def from_scalapack(cls, descriptor: Sequence[int], grid: tuple[int, int], *, numbered: str = "R") -> Layout:
        """The layout of a matrix with this array descriptor of ScaLAPACK. `grid`: numbers of rows and columns of the
        BLACS grid. `numbered`: "R" if its processes are numbered by rows, as by default in BLACS, "C" if by columns.

        The leading dimension does not matter here: pass only the part of the local array that has elements,
        `a[: layout.local_shape(rank)[0]]`."""
        from . import foreign

        return foreign.from_scalapack(descriptor, grid, numbered)

    @classmethod
    def from_jax(cls, shape: Sequence[int], sharding: Any) -> Layout:
        """The layout of a JAX array with this shape and `NamedSharding`. Process k holds the part of the mesh's k-th
        device, row-major: pass `[device.process_index for device in sharding.mesh.devices.flat]` as the ranks."""
        from . import foreign

        return foreign.from_jax(shape, sharding)

    @classmethod
    def from_dtensor(cls, shape: Sequence[int], mesh: Any, placements: Sequence[Any]) -> Layout:
        """The layout of a `DTensor` of torch: `from_dtensor(t.shape, t.device_mesh, t.placements)`. Process k holds the
        part of the mesh's k-th rank, row-major: pass `mesh.mesh.flatten().tolist()` as the ranks."""
        from . import foreign

        return foreign.from_dtensor(shape, mesh, placements)

    @classmethod
    def from_nvmath(cls, shape: Sequence[int], distribution: Any, size: int, *, order: str = "C") -> Layout:
        """The layout of an array with a distribution of nvmath-python over `size` processes: `Slab`, `BlockCyclic` or
        `BlockNonCyclic`."""
        from . import foreign

        return foreign.from_nvmath(shape, distribution, size, order)

    @property
    def size(self) -> int:
        """Number of processes."""
        return self._core.size

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of a process's local part, halos included. Raises IndexError if there is no such process."""
        try:
            return tuple(self._core.local_shape(rank))
        except OverflowError:
            raise IndexError(f"rank {rank}: the layout is for {self.size} processes") from None

    def owner(self, index: Sequence[int]) -> int:
        """The process that owns the element at an index of the array, the first of its copies. Raises IndexError if
        there is no such element."""
        try:
            return self._core.owner(list(index))
        except OverflowError:
            raise IndexError(f"index {list(index)}: the array has shape {list(self.shape)}") from None

    def __reduce__(self) -> tuple:
        return _layout, (self.shape, self.axes, self.order, self.grid)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        if self._text is None:
            text = f"Layout({self.shape}, {list(self.axes)}"
            if self.order != "C":
                text += f", order={self.order!r}"
            if self.grid != tuple(range(len(self.axes))):
                text += f", grid={self.grid}"
            self._text = text + ")"
        return self._text


def _layout(shape: Sequence[int], axes: Sequence[Axis], order: str, grid: Sequence[Any]) -> Layout:
    """Restores a layout from its pickle."""
    return Layout(shape, axes, order=order, grid=grid)


def _sequence(values: Any, name: str, of: str) -> tuple:
    try:
        return tuple(values)
    except TypeError:
        raise TypeError(f"{name} is {values!r}: it must be a list of {of}") from None


def _natural(value: int, what: str) -> int:
    try:
        number = whole_number(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}: it must be a whole number") from None
    if number < 0:
        raise ValueError(f"{what} is {number}: it cannot be negative")
    if number >= 1 << 63:
        raise ValueError(f"{what} is {number}: it must be less than 2**63")
    return number


def _processes(axis: Union[Block, Cyclic], name: str) -> int:
    over = _natural(axis.over, f"{name}: over")
    if over == 0:
        raise ValueError(f"{name} is {axis!r}: it must be spread over 1 process or more")
    return over


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
        over = _processes(axis, name)
        return _AxisOf("block", over, sizes=sizes, before=before, after=after, periodic=axis.periodic)
    if isinstance(axis, Cyclic):
        over, (block, first) = (
            _processes(axis, name),
            (_natural(getattr(axis, of), f"{name}: {of}") for of in ("block", "first")),
        )
        return _AxisOf("cyclic", over, block, first)
    if isinstance(axis, Lists):
        lists = [
            [_natural(at, f"{name}: an index of process {rank}") for at in each] for rank, each in enumerate(axis.lists)
        ]
        return _AxisOf("lists", len(lists), lists=lists)
    raise TypeError(f"{name} is {axis!r}: it can be Whole, Block, Cyclic or Lists")
