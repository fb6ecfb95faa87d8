//! The ABI of MPI-5, chapter 20: `libmpi_abi.so` of MPICH 5 and Intel MPI. Values: MPICH 5.0.2's `mpi_abi.h`.

use super::{Abi, Handle};

pub(super) const ABI: Abi = Abi {
    small_handles: false,
    comm_world: Handle(0x101),
    comm_null: Handle(0x100),
    datatype_null: Handle(0x200),
    request_null: Handle(0x180),
    byte: Handle(0x247),
    int: Handle(0x209),
    min: Handle(0x22),
    op_null: Handle(0x20),
    errors_return: Handle(0x143),
    err_truncate: 15,
    in_place: 1,
    status_ignore: 0,
    combiner_named: 101,
    combiner_dup: 102,
    combiner_contiguous: 103,
};
