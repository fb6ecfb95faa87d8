//! Memory that other movers can read.

use std::sync::Arc;

use memory::{Access, Pages, RegionError, Regions};

/// Bytes that peers may read while this value lives.
pub(super) struct Lent {
    bytes: Pages,
    key: u64,
    regions: Arc<Regions>,
}

impl Lent {
    pub(super) fn new(regions: &Arc<Regions>, mut bytes: Pages) -> Result<Lent, RegionError> {
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        let access = Access { remote_read: true, remote_write: false };
        // SAFETY: the memory stays where it is, and unchanged, until `drop` or `take` has removed the region: nothing
        // else has access to `bytes`.
        let key = unsafe { regions.register(start, length, 0, access, None) }?;
        Ok(Lent { bytes, key, regions: regions.clone() })
    }

    /// The region's key; its first byte has address 0.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Ends the loan and returns the memory.
    pub(super) fn take(mut self) -> Pages {
        self.regions.remove(self.key);
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.regions.remove(self.key);
    }
}
