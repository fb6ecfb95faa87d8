//! MPICH's ABI, which Intel MPI shares (the MPICH ABI Compatibility Initiative). Values: MPICH 5.0.2's `mpi.h`.

use super::{Abi, Handle};

pub(super) const ABI: Abi = Abi {
    small_handles: true,
    comm_world: Handle(0x4400_0000),
    comm_null: Handle(0x0400_0000),
    datatype_null: Handle(0x0c00_0000),
    request_null: Handle(0x2c00_0000),
    byte: Handle(0x4c00_010d),
    int: Handle(0x4c00_0405),
    min: Handle(0x5800_0002),
    op_null: Handle(0x1800_0000),
    errors_return: Handle(0x5400_0001),
    err_truncate: 14,
    in_place: usize::MAX,
    status_ignore: 1,
    combiner_named: 1,
    combiner_dup: 2,
    combiner_contiguous: 3,
};
