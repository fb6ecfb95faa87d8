"""Converts layouts of other libraries. It imports none of them: the caller passes their objects."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Union

from .layout import Along, Axis, Block, Copies, Cyclic, Layout, Whole, natural

# ScaLAPACK's "Array Descriptor for In-core Dense Matrices".
DENSE = 1
FIELDS = ("DTYPE_", "CTXT_", "M_", "N_", "MB_", "NB_", "RSRC_", "CSRC_", "LLD_")


def from_scalapack(descriptor: Sequence[int], grid: tuple[int, int], numbered: str) -> Layout:
    values = [int(value) for value in descriptor]
    if len(values) != len(FIELDS) or values[0] != DENSE:
        raise ValueError(
            f"descriptor is {values}: one of a dense matrix has {len(FIELDS)} numbers, the first of which is {DENSE}"
        )
    if numbered not in ("R", "C"):
        raise ValueError(f'numbered is {numbered!r}: it can be "R" or "C"')
    if len(grid) != 2:
        raise ValueError(f"grid is {grid!r}: it must be the numbers of rows and of columns of processes")
    of = dict(zip(FIELDS, values))
    rows, columns = Cyclic(grid[0], of["MB_"], of["RSRC_"]), Cyclic(grid[1], of["NB_"], of["CSRC_"])
    layout = Layout((of["M_"], of["N_"]), [rows, columns], order="F", grid=[0, 1] if numbered == "R" else [1, 0])
    if of["LLD_"] < 1:
        raise ValueError(f"descriptor: LLD_ is {of['LLD_']}: it must be positive")
    return layout


def from_jax(shape: Sequence[int], sharding: Any) -> Layout:
    mesh, spec = getattr(sharding, "mesh", None), getattr(sharding, "spec", None)
    if mesh is None or spec is None:
        raise TypeError(f"sharding is {sharding!r}: it must be a NamedSharding")
    if getattr(spec, "unreduced", None):
        raise ValueError(f"sharding is {sharding!r}: partial sums cannot be moved, reduce them first")
    sizes = dict(mesh.shape)
    if len(spec) > len(shape):
        raise ValueError(f"{spec} is for {len(spec)} axes, but the array has {len(shape)}")
    axes: list[Axis] = []
    dimensions: dict[Any, Union[Along, Copies]] = {name: Copies(sizes[name]) for name in mesh.axis_names}
    for axis in range(len(shape)):
        names = spec[axis] if axis < len(spec) else None
        names = () if names is None else (names,) if isinstance(names, str) else names
        if not isinstance(names, tuple):
            raise ValueError(f"{spec}: axis {axis} is {names!r}: it must be None or names of axes of the mesh")
        for order, name in enumerate(names):
            dimensions[name] = Along(axis, sizes[name], order)
        over = prod(sizes[name] for name in names)
        if shape[axis] % over:
            raise ValueError(f"{spec}: axis {axis} has {shape[axis]} indices, which {over} devices cannot share evenly")
        axes.append(Block(over) if names else Whole())
    return Layout(shape, axes, grid=[dimensions[name] for name in mesh.axis_names])


def from_dtensor(shape: Sequence[int], mesh: Any, placements: Sequence[Any]) -> Layout:
    sizes = tuple(mesh.shape)
    if len(placements) != len(sizes):
        raise ValueError(f"{len(placements)} placements, but the mesh has {len(sizes)} dimensions")
    # Each dimension of the mesh splits the pieces of the dimensions before it, as torch.chunk does.
    pieces = [[int(extent)] for extent in shape]
    cut, grid = [False] * len(pieces), []
    for at, (placement, of) in enumerate(zip(placements, sizes)):
        if placement.is_replicate():
            grid.append(Copies(of))
            continue
        # In some versions of torch, `is_shard` is false for a strided shard.
        if hasattr(placement, "split_factor"):
            raise ValueError(f"placements[{at}] is {placement!r}: strided shards are not supported")
        if placement.is_partial():
            raise ValueError(f"placements[{at}] is {placement!r}: partial sums cannot be moved, reduce them first")
        if not placement.is_shard():
            raise ValueError(f"placements[{at}] is {placement!r}: only Shard and Replicate say what each process has")
        dim = placement.dim + len(pieces) if placement.dim < 0 else placement.dim
        if not 0 <= dim < len(pieces):
            raise ValueError(f"placements[{at}] is {placement!r}, but the tensor has {len(pieces)} dimensions")
        pieces[dim] = [part for piece in pieces[dim] for part in _chunks(piece, of)]
        cut[dim] = True
        grid.append(Along(dim, of))
    axes = [Block(len(sizes), sizes=tuple(sizes)) if is_cut else Whole() for is_cut, sizes in zip(cut, pieces)]
    return Layout(shape, axes, grid=grid)


def _chunks(extent: int, over: int) -> list[int]:
    each = -(-extent // over)
    return [max(0, min(each, extent - at * each)) for at in range(over)]


def from_nvmath(shape: Sequence[int], distribution: Any, size: int, order: str) -> Layout:
    if hasattr(distribution, "partition_dim"):
        at = distribution.partition_dim
        if at >= len(shape):
            raise ValueError(f"{distribution}: the array has {len(shape)} axes")
        # The first processes have one index more.
        sizes = tuple(shape[at] // size + (rank < shape[at] % size) for rank in range(size))
        axes: list[Axis] = [Block(size, sizes=sizes) if axis == at else Whole() for axis in range(len(shape))]
        return Layout(shape, axes, order=order)
    grid = getattr(distribution, "process_grid", None)
    if grid is None:
        text = "only Slab, BlockCyclic and BlockNonCyclic say what every process has"
        raise TypeError(f"distribution is {distribution}: {text}")
    if len(grid.shape) != len(shape):
        raise ValueError(f"{distribution} is for {len(grid.shape)} axes, but the array has {len(shape)}")
    if prod(grid.shape) != natural(size, "size"):
        raise ValueError(f"{distribution} is for {prod(grid.shape)} processes, not {size}")
    if grid.layout is None:
        raise ValueError(f"{distribution}: a process grid with an order of its own is not supported")
    axes = []
    for axis, (over, block, first) in enumerate(zip(grid.shape, distribution.block_sizes, distribution.first_process)):
        if block < 0:
            if shape[axis] % over:
                raise ValueError(
                    f"{distribution}: axis {axis} has {shape[axis]} indices, which {over} cannot share evenly"
                )
            block = max(shape[axis] // over, 1)
        axes.append(Cyclic(over, block, first))
    numbers = list(range(len(shape)))
    return Layout(shape, axes, order=order, grid=numbers[::-1] if grid.layout.name.startswith("COL") else numbers)
