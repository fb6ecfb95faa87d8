//! Registered memory regions, found by key. Peers may read, write and update them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use thiserror::Error;

/// A peer's rights to a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it.
    pub remote_read: bool,
    /// Peers may write and update it.
    pub remote_write: bool,
}

/// Reasons why a region was not registered or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The requested key is taken.
    #[error("key {0:#x} is already registered")]
    KeyTaken(u64),
    /// No region has this key.
    #[error("no region has key {0:#x}")]
    UnknownKey(u64),
    /// Bytes outside the region.
    #[error("{length} bytes at {address:#x} are outside the region of key {key:#x}")]
    OutOfBounds {
        key: u64,
        /// The requested address.
        address: u64,
        /// The requested length in bytes.
        length: u64,
    },
    /// The region does not allow this.
    #[error("the region of key {0:#x} does not allow this access")]
    NotPermitted(u64),
}

/// All regions of a domain. Shared between its endpoints.
#[derive(Default)]
pub struct Regions {
    table: Mutex<RegionTable>,
}

#[derive(Default)]
struct RegionTable {
    regions: HashMap<u64, Region>,
    next_key: u64,
}

struct Region {
    start: *mut u8,
    length: usize,
    /// The address by which peers name the region's first byte: 0, or its virtual address.
    origin: u64,
    access: Access,
}

// SAFETY: a region is plain memory; access goes through the table's lock, and the caller that registered it promised
// that it stays valid until it is removed (`Regions::register`).
unsafe impl Send for Region {}

impl Regions {
    /// Registers memory under `key`, or under a key of our choice. Returns the key. Peers address the first byte as
    /// `origin` (0 for offsets, the virtual address otherwise).
    ///
    /// # Errors
    /// [`RegionError::KeyTaken`].
    ///
    /// # Safety
    /// The memory must stay valid until [`Regions::remove`] returns; peers may change it as `access` permits.
    pub unsafe fn register(
        &self,
        start: *mut u8,
        length: usize,
        origin: u64,
        access: Access,
        key: Option<u64>,
    ) -> Result<u64, RegionError> {
        let mut table = self.lock();
        let key = match key {
            Some(key) => key,
            None => {
                // Keys of our choice start above those that applications choose by hand.
                let mut key = table.next_key.max(1 << 32);
                while table.regions.contains_key(&key) {
                    key += 1;
                }
                table.next_key = key + 1;
                key
            }
        };
        if table.regions.contains_key(&key) {
            return Err(RegionError::KeyTaken(key));
        }
        table.regions.insert(key, Region { start, length, origin, access });
        Ok(key)
    }

    /// Removes a region. Afterwards its memory is not accessed any more.
    pub fn remove(&self, key: u64) {
        self.lock().regions.remove(&key);
    }

    /// Checks that a peer may write (or read) `length` bytes at `address`.
    ///
    /// # Errors
    /// [`RegionError`]: the key is unknown, the access is not permitted, or the bytes are outside the region.
    pub fn check(&self, key: u64, address: u64, length: u64, write: bool) -> Result<(), RegionError> {
        self.lock().find(key, address, length, write).map(drop)
    }

    /// Runs `work` on the bytes at `address`, as a peer that writes.
    ///
    /// # Errors
    /// [`RegionError`]; `work` has then not run.
    pub fn with_mut<R>(
        &self,
        key: u64,
        address: u64,
        length: usize,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, RegionError> {
        let table = self.lock();
        let start = table.find(key, address, length as u64, true)?;
        // SAFETY: `find` checked the bounds; the registration promises validity; the table stays locked meanwhile.
        let slice = unsafe { std::slice::from_raw_parts_mut(start, length) };
        Ok(work(slice))
    }

    /// Appends the bytes at `address` to `out`, as a peer that reads.
    ///
    /// # Errors
    /// [`RegionError`]; `out` is then unchanged.
    pub fn read(&self, key: u64, address: u64, length: usize, out: &mut Vec<u8>) -> Result<(), RegionError> {
        let table = self.lock();
        let start = table.find(key, address, length as u64, false)?;
        // SAFETY: as in `with_mut`.
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(start, length) });
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, RegionTable> {
        // A panic cannot leave the table half changed: its updates are single inserts and removes.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegionTable {
    fn find(&self, key: u64, address: u64, length: u64, write: bool) -> Result<*mut u8, RegionError> {
        let region = self.regions.get(&key).ok_or(RegionError::UnknownKey(key))?;
        let allowed = if write { region.access.remote_write } else { region.access.remote_read };
        if !allowed {
            return Err(RegionError::NotPermitted(key));
        }
        let outside = RegionError::OutOfBounds { key, address, length };
        let offset = address.checked_sub(region.origin).ok_or(outside)?;
        if offset.checked_add(length).is_none_or(|end| end > region.length as u64) {
            return Err(outside);
        }
        if length == 0 {
            return Ok(std::ptr::NonNull::dangling().as_ptr());
        }
        Ok(region.start.wrapping_add(offset as usize))
    }
}

/// For tests of crates that forbid `unsafe`; not in a release.
#[cfg(feature = "testing")]
pub mod testing {
    use super::{Access, Regions};

    /// Registers `length` zeroed bytes under a key of our choice, with offsets from 0. They can only be reached through
    /// the table, and are never freed.
    pub fn register(regions: &Regions, length: usize, access: Access) -> u64 {
        let target: &'static mut [u8] = Box::leak(vec![0; length].into_boxed_slice());
        // SAFETY: the bytes live forever, and the only reference to them ends here.
        let key = unsafe { regions.register(target.as_mut_ptr(), length, 0, access, None) };
        key.unwrap_or_else(|_| unreachable!("keys of our choice are free"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_stay_inside_a_region_and_its_rights() {
        let regions = Regions::default();
        let mut memory = [0u8; 8];
        let write = Access { remote_read: false, remote_write: true };
        // SAFETY: `memory` outlives `regions`' use of it and is read only after the last write.
        let key = unsafe { regions.register(memory.as_mut_ptr(), 8, 100, write, Some(7)) }.unwrap();
        assert_eq!(key, 7);
        regions.with_mut(7, 102, 2, |bytes| bytes.copy_from_slice(&[1, 2])).unwrap();
        assert!(matches!(regions.check(7, 99, 1, true), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(regions.check(7, 107, 2, true), Err(RegionError::OutOfBounds { .. })));
        assert!(matches!(regions.check(7, u64::MAX, 2, true), Err(RegionError::OutOfBounds { .. })));
        assert_eq!(regions.check(7, 108, 0, true), Ok(()));
        assert_eq!(regions.check(7, 100, 1, false), Err(RegionError::NotPermitted(7)));
        assert_eq!(regions.check(8, 100, 1, true), Err(RegionError::UnknownKey(8)));
        // SAFETY: refused, so nothing is registered.
        let again = unsafe { regions.register(memory.as_mut_ptr(), 8, 0, write, Some(7)) };
        assert_eq!(again, Err(RegionError::KeyTaken(7)));
        regions.remove(7);
        assert_eq!(regions.check(7, 100, 1, true), Err(RegionError::UnknownKey(7)));
        assert_eq!(memory, [0, 0, 1, 2, 0, 0, 0, 0]);
    }
}
