//! Locates the blocks of all ranks in a call's buffers.

use std::ffi::c_int;

use crate::abi::Handle;
use crate::calls::Elements;
use crate::door::{BufferArguments, Sides};
use crate::mpi::Fault;
use crate::payload::TypedBuffer;
use crate::state::CollectivesState;

pub(crate) struct Blocks {
    /// The first block; its count is that of each block, if all are equal.
    first: TypedBuffer,
    extent: i64,
    /// For each rank, the number of elements and the offset of the first, in elements.
    listed: Option<Vec<(i64, i64)>>,
}

impl Blocks {
    /// Blocks of the same length, one after the other. `None`: the arguments are invalid; the MPI library reports that.
    pub(crate) fn equal(state: &CollectivesState, side: BufferArguments) -> Result<Option<Blocks>, Fault> {
        let Some(first) = place(state, side)? else { return Ok(None) };
        Ok(Some(Blocks { first, extent: state.mpi.extent(first.datatype)?.1, listed: None }))
    }

    /// Blocks of `ranks` ranks as listed in a call. `None`: as above.
    ///
    /// # Safety
    /// The lists have an entry for each rank.
    pub(crate) unsafe fn listed(state: &CollectivesState, sides: Sides, ranks: usize) -> Result<Option<Blocks>, Fault> {
        let side = BufferArguments { buffer: sides.buffer, count: 0, datatype: sides.datatype };
        let Some(first) = place(state, side)? else { return Ok(None) };
        if sides.counts.is_null() || sides.starts.is_null() {
            return Ok(None);
        }
        let number = |list: *const std::ffi::c_void, rank: usize| {
            // SAFETY: the caller's promise.
            unsafe {
                match sides.large {
                    true => list.cast::<i64>().add(rank).read(),
                    false => list.cast::<c_int>().add(rank).read().into(),
                }
            }
        };
        let listed: Vec<(i64, i64)> =
            (0..ranks).map(|rank| (number(sides.counts, rank), number(sides.starts, rank))).collect();
        if listed.iter().any(|(count, _)| *count < 0) {
            return Ok(None);
        }
        Ok(Some(Blocks { first, extent: state.mpi.extent(first.datatype)?.1, listed: Some(listed) }))
    }

    /// The block of a rank.
    pub(crate) fn of(&self, rank: u32) -> TypedBuffer {
        let first = self.first;
        let (count, start) = match &self.listed {
            Some(listed) => listed[rank as usize],
            None => (first.count, first.count * i64::from(rank)),
        };
        TypedBuffer { buffer: first.buffer.wrapping_byte_offset((start * self.extent) as isize), count, ..first }
    }

    pub(crate) fn elements(&self, rank: u32) -> Elements {
        self.of(rank).elements()
    }
}

/// One side of a call. `None`: the arguments are invalid; the MPI library reports that.
pub(crate) fn place(state: &CollectivesState, side: BufferArguments) -> Result<Option<TypedBuffer>, Fault> {
    let datatype: Handle = state.mpi.abi.handle(side.datatype);
    if datatype == state.mpi.abi.datatype_null || side.count < 0 {
        return Ok(None);
    }
    let size = state.mpi.type_size(datatype)?;
    Ok(Some(TypedBuffer { buffer: side.buffer, count: side.count, datatype, size }))
}

/// Returns true if a side is `MPI_IN_PLACE`.
pub(crate) fn in_place(state: &CollectivesState, buffer: *const std::ffi::c_void) -> bool {
    buffer as usize == state.mpi.abi.in_place
}
