"""Datatypes of MPI for the elements of a message, so that MPI moves them from one array to another by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

# The function of MPI that makes a datatype of another one, and its arguments.
Step = tuple[str, tuple]


@dataclass
class Place:
    """Elements of an array that is anywhere."""

    offset: int
    """From the array's first element."""
    block: int
    """Bytes that follow each other, if there is no datatype."""
    datatype: Optional[Any]

    def at(self, address: int) -> list:
        """A message from or to an array, as mpi4py takes it."""
        from mpi4py import MPI

        # A datatype reaches as far as it does, whatever the length of its buffer.
        buffer = MPI.buffer.fromaddress(address + self.offset, 1 if self.datatype is not None else self.block)
        return [buffer, self.block, MPI.BYTE] if self.datatype is None else [buffer, 1, self.datatype]


def made(offset: int, block: int, steps: Sequence[Step]) -> Place:
    """Makes the datatype in these steps: the first of bytes, each other one of what the step before it has made."""
    from mpi4py import MPI

    datatypes = []
    for create, arguments in steps:
        datatypes.append(getattr(datatypes[-1] if datatypes else MPI.BYTE, create)(*arguments))
    for datatype in datatypes[:-1]:
        datatype.Free()
    return Place(offset, block, datatypes[-1].Commit() if datatypes else None)
