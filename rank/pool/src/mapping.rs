//! A part of the region's file in this process's memory, and the only ways to touch it.
//!
//! Other processes may change this memory at any time, so no reference to its bytes ever exists: words are atomics,
//! bytes are copied in and out.

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapped part of a file.
pub(crate) struct Mapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: the memory is not tied to a thread, and all access goes through atomics or copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of the file from `offset`, which is a multiple of the page size.
    pub(crate) fn new(file: &File, offset: u64, length: u64) -> io::Result<Mapping> {
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so the mapping overlaps nobody's memory.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, offset) }?;
        Ok(Mapping { start: start.cast(), length })
    }

    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        let offset = offset as usize;
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length, "a word outside its mapping");
        // SAFETY: the word is inside the mapping, which lives as long as `self`. Mappings begin at a page, so it is
        // aligned. Other processes access it as an atomic word too.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    /// Copies bytes in at `offset`.
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checked the bounds; `bytes` is private memory, so they do not overlap. The protocol of the rings
        // keeps other processes away until the bytes are published; a process that breaks it reads mixed bytes and
        // harms only itself.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out from `offset`.
    pub(crate) fn copy_out(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: as in `copy_in`; a writer that breaks the protocol makes us read mixed bytes, which it could have
        // written anyway.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Address of these bytes: a pointer and no reference, because others may change them at any time.
    pub(crate) fn at(&self, offset: u64, length: usize) -> *mut u8 {
        let offset = offset as usize;
        assert!(offset <= self.length && length <= self.length - offset, "bytes outside their mapping");
        self.start.wrapping_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and nothing refers to it any more. A failure would mean that it was not mapped.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}
