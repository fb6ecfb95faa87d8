//! Memory for elements of any datatype.

use crate::abi::Handle;
use crate::calls::Elements;
use crate::mpi::{Fault, Mpi};

/// Alignment that suffices for any datatype.
const ALIGNMENT: i64 = 16;

/// Room for some elements.
pub(crate) struct Span {
    memory: Vec<u128>,
    /// Offset of the first element's own start from the start of the memory, which may lie outside.
    offset: i64,
    count: i64,
    datatype: Handle,
}

impl Span {
    /// # Errors
    /// Out of memory, or MPI's error.
    pub(crate) fn new(mpi: &Mpi, count: i64, datatype: Handle) -> Result<Span, Fault> {
        let ((_, extent), (lower, data)) = (mpi.extent(datatype)?, mpi.true_extent(datatype)?);
        let reach = extent.saturating_mul((count - 1).max(0));
        let (low, high) = (reach.min(0).saturating_add(lower), reach.max(0).saturating_add(lower).saturating_add(data));
        // The first element keeps its alignment.
        let low = low.div_euclid(ALIGNMENT) * ALIGNMENT;
        let words = (high.saturating_sub(low).max(0) + ALIGNMENT - 1) / ALIGNMENT;
        let words = usize::try_from(words).map_err(|_| Fault::NO_MEMORY)?;
        let mut memory = Vec::new();
        memory.try_reserve_exact(words).map_err(|_| Fault::NO_MEMORY)?;
        memory.resize(words, 0);
        Ok(Span { memory, offset: -low, count, datatype })
    }

    pub(crate) fn elements(&mut self) -> Elements {
        let start = self.memory.as_mut_ptr().cast::<u8>().wrapping_offset(self.offset as isize).cast();
        Elements { start, count: self.count, datatype: self.datatype }
    }
}
