"""Layouts: the distribution of arrays over processes.

>>> from landbridge import Block, Cyclic, Layout, Whole
>>> layout = Layout((6, 10), [Block(2), Cyclic(2, block=3)])
>>> layout.size, layout.local_shape(1), layout.owner((0, 3))
(4, (3, 4), 1)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index as whole_number
from typing import Any, Optional, Protocol, Union

import numpy as np

from . import _core

__all__ = ["Along", "Block", "Copies", "Cyclic", "Layout", "Lists", "Runs", "Spread", "Whole"]

# Maximum number of an axis's sizes or indices that a text lists. Longer ones appear as their number and a hash.
MOST_LISTED = 64


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


class _Kind:
    """A kind of axis: a class below with these methods, and an entry of `KINDS`."""

    over: int
    """Number of processes along the axis."""

    def _fixed(self, name: str) -> Axis:
        """The axis with parameters of its own, which nobody else can change. Raises ValueError or TypeError, which
        names the parameter and the value, if they describe no axis."""
        raise NotImplementedError

    def _described(self) -> _AxisOf:
        """The axis in the form that the compiled part takes. Its parameters are checked."""
        raise NotImplementedError

    def _text(self) -> str:
        """The axis as text, the same for the same axes on all ranks, and different for different ones."""
        return repr(self)

    def _fixed_over(self, name: str) -> int:
        over = _processes(self.over, f"{name}: over")
        if over == 0:
            raise ValueError(f"{name} is {self!r}: it must be spread over 1 process or more")
        return over


@dataclass(frozen=True)
class Whole(_Kind):
    """One process along the axis, which owns all of it.

    `halo`: number of copies of neighbouring indices that it keeps, before and after its own, or one number for both.
    They are filled, but never sent."""

    halo: Union[int, tuple[int, int]] = 0
    periodic: bool = False
    over = 1

    def _fixed(self, name: str) -> Whole:
        return Whole(*_fixed_edges(self, name))

    def _described(self) -> _AxisOf:
        before, after = _widths(self.halo)
        return _AxisOf("whole", 1, before=before, after=after, periodic=self.periodic)


@dataclass(frozen=True)
class Block(_Kind):
    """Consecutive indices for each of `over` processes. `sizes`: number of indices of each process; by default
    `ceil(n / over)` for all but the last ones, as in High Performance Fortran and MPI's darray.

    `halo`: see `Whole`. `periodic`: true if the first index of the axis follows the last one, for halos."""

    over: int
    sizes: Optional[Sequence[int]] = None
    halo: Union[int, tuple[int, int]] = 0
    periodic: bool = False

    def _fixed(self, name: str) -> Block:
        over, edges, sizes = self._fixed_over(name), _fixed_edges(self, name), self.sizes
        if sizes is not None:
            sizes = _sequence(sizes, f"{name}: sizes", "whole numbers")
            sizes = tuple(natural(size, f"{name}: sizes[{at}]") for at, size in enumerate(sizes))
        return Block(over, sizes, *edges)

    def _described(self) -> _AxisOf:
        before, after = _widths(self.halo)
        sizes = None if self.sizes is None else list(self.sizes)
        return _AxisOf("block", self.over, sizes=sizes, before=before, after=after, periodic=self.periodic)

    def _text(self) -> str:
        if self.sizes is None or len(self.sizes) <= MOST_LISTED:
            return repr(self)
        short = f"{len(self.sizes)} sizes, hash {_hash([self.sizes])}"
        return f"Block(over={self.over}, {short}, halo={self.halo}, periodic={self.periodic})"


@dataclass(frozen=True)
class Cyclic(_Kind):
    """Blocks of `block` indices, dealt out to `over` processes in turn, the first to process `first`. A process stores
    its blocks one after the other, as in ScaLAPACK."""

    over: int
    block: int = 1
    first: int = 0

    def _fixed(self, name: str) -> Cyclic:
        over, block = self._fixed_over(name), natural(self.block, f"{name}: block")
        return Cyclic(over, block, _processes(self.first, f"{name}: first"))

    def _described(self) -> _AxisOf:
        return _AxisOf("cyclic", self.over, self.block, self.first)


@dataclass(frozen=True, eq=False)
class Lists(_Kind):
    """The indices that each process owns, in the order in which it stores them."""

    lists: Sequence[Sequence[int]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lists) or len(self.lists) != len(other.lists):
            return False
        return all(np.array_equal(one, two) for one, two in zip(self.lists, other.lists))

    def __hash__(self) -> int:
        return hash(tuple(map(len, self.lists)))

    @property
    def over(self) -> int:  # type: ignore[override]
        return len(self.lists)

    def _fixed(self, name: str) -> Lists:
        lists = _sequence(self.lists, f"{name}: lists", "lists of indices")
        return Lists(tuple(_fixed_list(each, rank, name) for rank, each in enumerate(lists)))

    def _described(self) -> _AxisOf:
        lists = [each.tolist() if isinstance(each, np.ndarray) else list(each) for each in self.lists]
        return _AxisOf("lists", len(lists), lists=lists)

    def _text(self) -> str:
        count = sum(map(len, self.lists))
        if count > MOST_LISTED or len(self.lists) > MOST_LISTED:
            return f"Lists({len(self.lists)} lists of {count} indices, hash {_hash(self.lists)})"
        return repr(Lists(tuple(tuple(map(int, each)) for each in self.lists)))

    @staticmethod
    def by_owner(owners: Iterable[int], over: int) -> Lists:
        """Assigns the indices 0, 1, … to these processes, of `over`; each stores its own in ascending order."""
        lists: list[list[int]] = [[] for _ in range(over)]
        for index, owner in enumerate(owners):
            process = whole(owner, f"the owner of index {index}")
            if not 0 <= process < over:
                raise ValueError(f"index {index} is owned by process {process}, but there are {over}")
            lists[process].append(index)
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
KINDS = (Whole, Block, Cyclic, Lists)
KIND_NAMES = " or ".join((", ".join(kind.__name__ for kind in KINDS[:-1]), KINDS[-1].__name__))


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
        self.shape = tuple(natural(extent, f"shape[{axis}]") for axis, extent in enumerate(extents))
        self.axes = (axes,) if isinstance(axes, KINDS) else _sequence(axes, "axes", KIND_NAMES)
        if len(self.axes) != len(self.shape):
            raise ValueError(f"{len(self.axes)} axes are described, but the array has {len(self.shape)}")
        if order not in ("C", "F"):
            raise ValueError(f'order is {order!r}: it can be "C" or "F"')
        self.order = order
        entries = range(len(self.axes)) if grid is None else _sequence(grid, "grid", "axes, Along or Copies")
        self.grid = tuple(_grid_entry(entry, f"grid[{at}]") for at, entry in enumerate(entries))
        self._text: Optional[str] = None
        # The caller may change its own lists later without changing the layout.
        self.axes = tuple(_fixed(axis, f"axis {number}") for number, axis in enumerate(self.axes))
        described = [axis._described() for axis in self.axes]
        dimensions, along = self._dimensions(described)
        self._core = _core.Layout(list(self.shape), described, order == "F", dimensions, along)

    def _dimensions(self, described: list[_AxisOf]) -> tuple[list[int], list[list[int]]]:
        dimensions: list[int] = []
        along: list[list[tuple[int, int]]] = [[] for _ in described]
        for at, entry in enumerate(self.grid):
            if isinstance(entry, Copies):
                dimensions.append(entry.of)
                continue
            axis, order = (entry.axis, entry.order) if isinstance(entry, Along) else (entry, 0)
            if axis not in range(len(described)):
                last = len(described) - 1
                raise ValueError(f"grid[{at}] is {entry!r}: it can be an axis, 0 to {last}, Along one, or Copies")
            dimensions.append(entry.of if isinstance(entry, Along) else described[axis].over)
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

    def owner(self, index: Union[int, Sequence[int]]) -> int:
        """The process that owns the element at an index of the array, the first of its copies. For an array of one
        axis, `index` needs no list. Raises IndexError if there is no such element."""
        place = [index] if hasattr(index, "__index__") else list(index)
        try:
            return self._core.owner(place)
        except OverflowError:
            raise IndexError(f"index {place}: the array has shape {list(self.shape)}") from None

    def __reduce__(self) -> tuple:
        return _layout, (self.shape, self.axes, self.order, self.grid)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._core == other._core

    def __hash__(self) -> int:
        return hash(self._core)

    def __repr__(self) -> str:
        if self._text is None:
            text = f"Layout({self.shape}, [{', '.join(axis._text() for axis in self.axes)}]"
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


def whole(value: int, what: str) -> int:
    try:
        return whole_number(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}: it must be a whole number") from None


def natural(value: int, what: str) -> int:
    number = whole(value, what)
    if number < 0:
        raise ValueError(f"{what} is {number}: it cannot be negative")
    if number >= 1 << 63:
        raise ValueError(f"{what} is {number}: it must be less than 2**63")
    return number


def _processes(value: int, what: str) -> int:
    number = natural(value, what)
    if number >= 1 << 32:
        raise ValueError(f"{what} is {number}: it must be less than 2**32")
    return number


def _grid_entry(entry: Any, name: str) -> Union[int, Along, Copies]:
    if isinstance(entry, Copies):
        return Copies(_processes(entry.of, f"{name}: copies"))
    if isinstance(entry, Along):
        axis, of = natural(entry.axis, f"{name}: axis"), _processes(entry.of, f"{name}: of")
        return Along(axis, of, whole(entry.order, f"{name}: order"))
    return natural(entry, name)


def _fixed(axis: Any, name: str) -> Axis:
    if not isinstance(axis, KINDS):
        raise TypeError(f"{name} is {axis!r}: it can be {KIND_NAMES}")
    return axis._fixed(name)


def _fixed_edges(axis: Union[Whole, Block], name: str) -> tuple[Union[int, tuple[int, int]], bool]:
    """The halo of an axis, and true if the axis is periodic."""
    if not isinstance(axis.periodic, (bool, np.bool_)):
        raise TypeError(f"{name}: periodic is {axis.periodic!r}: it must be True or False")
    return _fixed_halo(axis.halo, f"{name}: halo"), bool(axis.periodic)


def _widths(halo: Union[int, tuple[int, int]]) -> tuple[int, int]:
    """The numbers of indices before and after, of a checked halo."""
    return halo if isinstance(halo, tuple) else (halo, halo)


def _fixed_halo(halo: Any, what: str) -> Union[int, tuple[int, int]]:
    if hasattr(halo, "__index__"):
        return natural(halo, what)
    widths = _sequence(halo, what, "two whole numbers")
    if len(widths) != 2:
        raise ValueError(f"{what} is {halo!r}: it must be one whole number, or two")
    before, after = (natural(width, what) for width in widths)
    return before if before == after else (before, after)


def _fixed_list(indices: Any, rank: int, name: str) -> Union[tuple[int, ...], np.ndarray]:
    if isinstance(indices, np.ndarray):
        is_plain = indices.ndim == 1 and indices.dtype.kind in "iu" and not isinstance(indices, np.ma.MaskedArray)
        # The compiled part checks the extent.
        if is_plain and (indices.size == 0 or (indices.min() >= 0 and indices.max() < 1 << 63)):
            # Nobody can make an array of bytes writable.
            return np.frombuffer(indices.astype(np.int64).tobytes(), np.int64)
        indices = indices.tolist()
    indices = _sequence(indices, f"{name}: the list of process {rank}", "indices")
    return tuple(natural(at, f"{name}: an index of process {rank}") for at in indices)


def _hash(lists: Iterable[Sequence[int]]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for each in lists:
        digest.update(len(each).to_bytes(8, "little"))
        digest.update(np.asarray(each, "<i8").tobytes())
    return digest.hexdigest()
