"""Views arrays of other libraries as NumPy arrays in the same memory: DataArrays of xarray, arrays that export DLPack
(torch, CuPy, JAX), and buffers. Only elements are moved, so arrays that mean more than their elements (a mask, a unit)
are refused."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

# An array that receives elements.
Into = TypeVar("Into")
# DLPack device types whose memory this process can read: the host's, and host memory of CUDA and of ROCm.
HOST = (1, 3, 11)
# NumPy's own subclasses that mean no more than their elements.
PLAIN = (np.memmap, np.matrix, np.recarray, np.char.chararray)


class Labelled(Protocol):
    """A DataArray of xarray."""

    dims: Any
    coords: Any
    data: Any


def is_labelled(array: Any) -> bool:
    """Returns true for a DataArray of xarray."""
    return hasattr(array, "dims") and hasattr(array, "coords") and hasattr(array, "data")


def taken(array: Any, name: str = "a") -> np.ndarray:
    """The elements of an array to be sent. They are copied only from a device's memory, or if `array` is not an array
    yet.

    Raises TypeError, which names the argument, if it is not an array or means more than its elements."""
    if type(array) is np.ndarray:
        return array
    if isinstance(array, np.ndarray):
        return _elements(array, name)
    if is_labelled(array):
        return taken(array.data, name)
    _refuse_units(array, name)
    if hasattr(array, "__dlpack__"):
        return _imported(array, name)
    if isinstance(array, bytes):  # a text to NumPy, unlike other buffers of bytes
        return np.frombuffer(array, np.uint8)
    try:
        return np.asarray(array)
    except Exception as error:
        raise TypeError(f"{name} is {_kind(array)}, which is no array: {error}") from error


def target(array: Any, name: str = "into") -> np.ndarray:
    """The memory of an array that receives elements.

    Raises TypeError if it is not an array, means more than its elements or is in a device's memory; ValueError if it is
    read-only or some of its elements share memory."""
    found = array
    if is_labelled(array):
        return target(array.data, name)
    if isinstance(array, np.ndarray):
        found = _elements(array, name)
    else:
        _refuse_units(array, name)
        if hasattr(array, "__dlpack__"):
            if array.__dlpack_device__()[0] not in HOST:
                raise TypeError(
                    f"{name} is in the memory of a device: receive into an array of the host, then copy it there"
                )
            found = _imported(array, name)
            if not found.flags.writeable and hasattr(array, "data_ptr"):
                # Torch before 2.9 exports a version of DLPack that has no flag for read-only memory.
                found = array.numpy()
        else:
            try:
                found = np.asarray(memoryview(array))
            except TypeError:
                raise TypeError(f"{name} is {_kind(array)}: it must be an array whose memory can be written") from None
    if found.dtype.hasobject:
        raise TypeError(f"{name} has dtype {found.dtype}: Python objects cannot be received")
    if not found.flags.writeable:
        raise ValueError(f"{name} is read-only")
    if _overlaps_itself(found):
        text = f"shape {found.shape}, strides {found.strides}"
        raise ValueError(f"{name} has elements that share memory ({text}): receive into an array of its own, then copy")
    return found


def check_dtype(dtype: np.dtype) -> None:
    """Raises TypeError if elements of this dtype cannot be sent."""
    if dtype.hasobject:
        raise TypeError(f"dtype {dtype}: Python objects cannot be sent")
    if dtype.itemsize == 0:
        raise TypeError(f"dtype {dtype.str}: its elements have no bytes")


def _elements(array: np.ndarray, name: str) -> np.ndarray:
    """An array of a subclass as a plain one, if that loses nothing; else raises TypeError."""
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            text = "its mask would be lost: pass its filled(value), or its data and np.ma.getmaskarray of it one by one"
            raise TypeError(f"{name} is a masked array: {text}")
        return array.data.view(np.ndarray)
    if type(array) is not np.ndarray and type(array) not in PLAIN:
        text = "only its elements would be sent, without a unit or whatever else it has: pass np.asarray of it"
        raise TypeError(f"{name} is {_kind(array)}, a subclass of numpy.ndarray: {text}")
    return array.view(np.ndarray)


def _refuse_units(array: Any, name: str) -> None:
    """Raises TypeError if the array has a unit, as arrays of pint do."""
    unit = getattr(array, "units", getattr(array, "unit", None))
    if unit is not None:
        text = "only its elements would be sent: pass its magnitude, and the unit by itself"
        raise TypeError(f"{name} is {_kind(array)} in {unit}: {text}")


def _overlaps_itself(array: np.ndarray) -> bool:
    """Returns true if two elements share memory."""
    if array.flags.c_contiguous or array.flags.f_contiguous or array.size < 2:
        return False
    axes = sorted((abs(stride), extent) for stride, extent in zip(array.strides, array.shape) if extent > 1)
    reach = array.itemsize
    for stride, extent in axes:
        if stride < reach:
            break
        reach += stride * (extent - 1)
    else:
        return False
    # The axes interlace, so compare the places of all elements.
    places = np.zeros(1, np.int64)
    for stride, extent in axes:
        places = np.add.outer(places, np.arange(extent) * stride).ravel()
    places.sort()
    return bool((np.diff(places) < array.itemsize).any())


def _imported(array: Any, name: str) -> np.ndarray:
    on_host = array.__dlpack_device__()[0] in HOST
    try:
        # DLPack has a flag for read-only memory since version 1.0. NumPy treats arrays of older versions as read-only.
        return np.from_dlpack(array) if on_host else np.from_dlpack(array, device="cpu", copy=True)
    except Exception as error:
        raise TypeError(f"{name} is {_kind(array)}, which NumPy cannot use: {error}") from error


def _kind(array: Any) -> str:
    kind = type(array)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
