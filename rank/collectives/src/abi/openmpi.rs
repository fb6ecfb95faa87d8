//! Open MPI's ABI: handles are the addresses of objects in the library. Names and values: `mpi.h` of 4.1 and 5.0.

use std::ffi::CStr;

use super::{Abi, Handle};

/// An object that exists only in Open MPI.
pub(super) const WORLD: &CStr = c"ompi_mpi_comm_world";

pub(super) fn abi(object: impl Fn(&CStr) -> Option<Handle>) -> Option<Abi> {
    Some(Abi {
        small_handles: false,
        comm_world: object(WORLD)?,
        comm_null: object(c"ompi_mpi_comm_null")?,
        datatype_null: object(c"ompi_mpi_datatype_null")?,
        request_null: object(c"ompi_request_null")?,
        byte: object(c"ompi_mpi_byte")?,
        int: object(c"ompi_mpi_int")?,
        min: object(c"ompi_mpi_op_min")?,
        op_null: object(c"ompi_mpi_op_null")?,
        errors_return: object(c"ompi_mpi_errors_return")?,
        err_truncate: 15,
        in_place: 1,
        status_ignore: 0,
        combiner_named: 0,
        combiner_dup: 1,
        combiner_contiguous: 2,
    })
}
