"""MPI datatypes for the elements of a message, with which MPI itself moves them from array to array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

# The MPI function that derives a datatype from another one, and its arguments.
Step = tuple[str, tuple]


@dataclass
class Place:
    """Elements of an array, independent of its address."""

    offset: int
    """Bytes from the array's first element."""
    block: int
    """Number of contiguous bytes, if there is no datatype."""
    datatype: Optional[Any]

    def at(self, address: int) -> list:
        """The message buffer in the array at this address, in the form that mpi4py takes."""
        from mpi4py import MPI

        # The datatype determines the extent of the message; MPI ignores the length of its buffer.
        buffer = MPI.buffer.fromaddress(address + self.offset, 1 if self.datatype is not None else self.block)
        return [buffer, self.block, MPI.BYTE] if self.datatype is None else [buffer, 1, self.datatype]


def made(offset: int, block: int, steps: Sequence[Step]) -> Place:
    """Derives a datatype in these steps: the first from MPI_BYTE, each later one from the datatype of the step
    before."""
    from mpi4py import MPI

    datatypes = []
    for create, arguments in steps:
        datatypes.append(getattr(datatypes[-1] if datatypes else MPI.BYTE, create)(*arguments))
    for datatype in datatypes[:-1]:
        datatype.Free()
    return Place(offset, block, datatypes[-1].Commit() if datatypes else None)
