"""Arrays of other libraries as NumPy's, in the same memory: those of xarray, whatever exports DLPack (torch, CuPy, JAX)
or a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

# DLPack's kinds of devices whose memory this process reads: that of the host, and of the host for CUDA and ROCm.
HOST = (1, 3, 11)


def is_labelled(array: Any) -> bool:
    """Whether it is a DataArray of xarray."""
    return hasattr(array, "dims") and hasattr(array, "coords") and hasattr(array, "data")


def taken(array: Any, name: str = "a") -> np.ndarray:
    """The elements of an array that is sent: a copy only where they are in a device's memory, or no array yet.

    Raises TypeError, which names the argument, for what is none."""
    if isinstance(array, np.ndarray):
        return array
    if is_labelled(array):
        return taken(array.data, name)
    if hasattr(array, "__dlpack__"):
        return _imported(array, name)
    try:
        return np.asarray(array)
    except Exception as error:
        raise TypeError(f"{name} is {_kind(array)}, which is no array: {error}") from error


def target(array: Any, name: str = "into") -> np.ndarray:
    """The memory of an array that receives elements.

    Raises TypeError for what is none or in a device's memory, ValueError if it is read-only."""
    found = array
    if is_labelled(array):
        return target(array.data, name)
    if not isinstance(array, np.ndarray):
        if hasattr(array, "__dlpack__"):
            if array.__dlpack_device__()[0] not in HOST:
                raise TypeError(f"{name} is in the memory of a device: receive into an array of the host, then copy it there")
            found = _imported(array, name)
            if not found.flags.writeable and hasattr(array, "data_ptr"):
                # Torch before 2.9 exports a version of DLPack that does not say whether it may be written.
                found = array.numpy()
        else:
            try:
                found = np.asarray(memoryview(array))
            except TypeError:
                raise TypeError(f"{name} is {_kind(array)}: it must be an array whose memory can be written") from None
    if not found.flags.writeable:
        raise ValueError(f"{name} is read-only")
    return found


def _imported(array: Any, name: str) -> np.ndarray:
    on_host = array.__dlpack_device__()[0] in HOST
    try:
        # Versions of DLPack from 1.0 on say whether memory is read-only; NumPy takes older ones for read-only.
        return np.from_dlpack(array) if on_host else np.from_dlpack(array, device="cpu", copy=True)
    except Exception as error:
        raise TypeError(f"{name} is {_kind(array)}, which NumPy cannot use: {error}") from error


def _kind(array: Any) -> str:
    kind = type(array)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
