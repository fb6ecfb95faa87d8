"""The elements that are moved, and their places in the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Union

from .layout import whole

__all__ = ["Select"]

Index = Union[int, slice]


@dataclass(frozen=True)
class Select:
    """The elements of the source that are moved, and their places in the target: parts of both arrays, of the same
    shape.

    `source`, `target`: for each axis an index or a slice, as in NumPy; `None`: all of the array.
    `axes`: for each axis of the target's part, the matching axis of the source's part: `(1, 0)` transposes.
    `shift`: for each axis of the source's part, the position that comes first; those before it come last."""

    source: Optional[Sequence[Index]] = None
    target: Optional[Sequence[Index]] = None
    axes: Optional[Sequence[int]] = None
    shift: Optional[Sequence[int]] = None


def picks(select, src: Sequence[int], dst: Sequence[int]) -> tuple[list, list, list[int], list[int]]:
    """The selection in the form that the compiled part takes."""
    if not isinstance(select, Select):
        select = Select(source=select)
    source = _side("source", select.source, src)
    target = _side("target", select.target, dst)
    axes = sum(isinstance(pick, tuple) for pick in source)
    order = (
        list(range(axes))
        if select.axes is None
        else [whole(axis, f"axes[{at}]") for at, axis in enumerate(select.axes)]
    )
    if any(axis < 0 for axis in order):
        raise ValueError(f"axes are {order}: they cannot be negative")
    counts = [pick[2] for pick in source if isinstance(pick, tuple)]
    given = [0] * axes if select.shift is None else select.shift
    shift = [whole(by, f"shift[{at}]") for at, by in enumerate(given)]
    if len(shift) != axes:
        raise ValueError(f"shift names {len(shift)} axes, but {axes} are selected")
    return source, target, order, [by % max(count, 1) for by, count in zip(shift, counts)]


def _side(name: str, picks: Optional[Sequence[Index]], shape: tuple[int, ...]) -> list:
    if picks is None:
        picks = [slice(None)] * len(shape)
    elif isinstance(picks, slice) or hasattr(picks, "__index__"):
        picks = [picks]
    if len(picks) != len(shape):
        raise ValueError(f"{name}: {len(picks)} axes are selected from, but the array has {len(shape)}")
    found: list = []
    for axis, (pick, extent) in enumerate(zip(picks, shape)):
        if isinstance(pick, slice):
            if pick.step == 0:
                raise ValueError(f"{name}, axis {axis}: {pick} has step 0")
            start, stop, step = pick.indices(extent)
            count = len(range(start, stop, step))
            found.append((start if count else 0, step, count))
            continue
        at = whole(pick, f"{name}, axis {axis}: the selection")
        if not -extent <= at < extent:
            raise IndexError(f"{name}, axis {axis}: index {at} is selected, but the axis has {extent} indices")
        found.append(at % extent)
    return found
