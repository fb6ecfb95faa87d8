//! Checks whether a datatype's data lie in memory one after the other, in the order in which MPI sends them.

use std::ffi::c_int;

use crate::abi::{Abi, Handle};
use crate::mpi::{Fault, Mpi};

/// Maximum nesting depth of derived datatypes that we examine.
const DEPTH: u32 = 8;

/// Returns true if any number of elements, with `size` bytes of data each, can be sent as bytes. A derived datatype
/// qualifies only if nothing in it can change the order; all others are packed.
pub(crate) fn is_plain(mpi: &Mpi, datatype: Handle, size: i64) -> Result<bool, Fault> {
    if mpi.extent(datatype)? != (0, size) {
        return Ok(false);
    }
    keeps_order(mpi, datatype, DEPTH)
}

fn keeps_order(mpi: &Mpi, datatype: Handle, depth: u32) -> Result<bool, Fault> {
    let envelope = mpi.envelope(datatype)?;
    let Abi { combiner_named, combiner_dup, combiner_contiguous, .. } = mpi.abi;
    if envelope.combiner == combiner_named {
        return Ok(true);
    }
    let wraps = envelope.combiner == combiner_dup || envelope.combiner == combiner_contiguous;
    if !wraps || envelope.large || depth == 0 || (envelope.addresses, envelope.datatypes) != (0, 1) {
        return Ok(false);
    }
    let inner = mpi.inner_type(datatype, envelope.integers as c_int)?;
    let named = mpi.envelope(inner)?.combiner == combiner_named;
    let result = keeps_order(mpi, inner, depth - 1);
    if !named {
        mpi.free_type(inner);
    }
    result
}
