"""Labels of a DataArray of xarray: the names of its axes, and its coordinates, which are spread over processes as those
axes are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import arrays

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from .redistribution import Plan


@dataclass(frozen=True)
class Labels:
    """Labels of the parts of one array, the same on all ranks."""

    name: Optional[str]
    dims: tuple[str, ...]
    attrs: dict
    # Name, axes, dtype and attributes of each coordinate.
    coordinates: Sequence[tuple[str, tuple[int, ...], np.dtype, dict]]

    @staticmethod
    def of(part: Any, select: Any) -> Labels:
        if select is not None:
            raise ValueError("of a DataArray of xarray nothing can be selected: pass its .data")
        found = []
        for name, coordinate in sorted(part.coords.items(), key=lambda item: str(item[0])):
            if coordinate.dtype.hasobject:
                text = f"coordinate {name} has dtype {coordinate.dtype}: Python objects cannot be sent"
                raise TypeError(f"{text}: leave it out with drop_vars({name!r})")
            arrays.taken(coordinate.data, f"coordinate {name}")
            axes = tuple(part.dims.index(dim) for dim in coordinate.dims)
            found.append((name, axes, coordinate.dtype, dict(coordinate.attrs)))
        return Labels(part.name, tuple(part.dims), dict(part.attrs), found)

    def summary(self) -> str:
        """The labels that all parts must share, as text."""
        return repr((self.dims, [(name, axes, dtype.str) for name, axes, dtype, _ in self.coordinates]))


def labelled(got: Optional[np.ndarray], part: Any, plan: Plan, comm: Intracomm) -> Any:
    """Adds labels to a rank's new part, with coordinates that are redistributed as the array was; collective."""
    from .redistribution import Plan

    labels, coordinates = plan.labels, {}
    for name, axes, dtype, attrs in labels.coordinates:
        source, target = plan.src._of_axes(axes), plan.dst._of_axes(axes)
        own = None if part is None else np.asarray(part.coords[name].data)
        moved = Plan(source, target, dtype, comm, plan.src_ranks, plan.dst_ranks).run(own)
        coordinates[name] = (tuple(labels.dims[axis] for axis in axes), moved, attrs)
    if got is None:
        return None
    import xarray

    return xarray.DataArray(got, coordinates, labels.dims, labels.name, labels.attrs)
