//! Detects writes to files while they are read, including writes through a mapping.
//!
//! A write by a system call changes the file's times at once. A write through a mapping changes them only at the first
//! write to a page since the page was last written back. So if a file has a writer, all its pages are written back
//! before the first byte is read: any later write changes the times, and those are compared. A file system in memory
//! never changes times for a mapping; there each part is read again at the end.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Result;

use crate::blocks::FilePiece;
use crate::blocks::Hash;
use crate::sys;

/// File systems in memory, by their `statfs` type: tmpfs, ramfs, hugetlbfs.
const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Returns true if the file is on a file system in memory.
///
/// # Errors
/// System errors.
pub(crate) fn is_in_memory(file: &OwnedFd) -> Result<bool> {
    Ok(IN_MEMORY.contains(&(rustix::fs::fstatfs(file)?.f_type as u32)))
}

/// Returns true if some process has the file open for writing, as far as this user can find out.
pub(crate) fn has_writer(file: &OwnedFd) -> bool {
    sys::has_writer(file.as_fd()) == Some(true)
}

/// Hashes of parts of files whose times do not show writes.
#[derive(Debug, Default)]
pub(crate) struct Unsteady {
    /// True if the open file is one of them.
    open: bool,
    read: HashMap<(u32, u64), (u32, Hash)>,
}

impl Unsteady {
    /// Call after a file was opened and before it is read. `listed`: it was open for writing when it was listed.
    /// Returns false if the file must not be read: its times show nothing, and it may have been written to since it was
    /// listed, or since an earlier attempt.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn opened(&mut self, file: &OwnedFd, listed: bool) -> Result<bool> {
        self.open = listed;
        if !listed {
            match sys::has_writer(file.as_fd()) {
                Some(false) => {}
                Some(true) if is_in_memory(file)? => return Ok(false),
                // Not every file system supports it; one that does not shares no mappings with programs on other
                // machines.
                Some(true) | None => drop(sys::write_back(file.as_fd(), 0, 0, true)),
            }
        }
        Ok(true)
    }

    /// Records bytes read from the open file. Returns false if they differ from an earlier read of the same part.
    pub(crate) fn read(&mut self, piece: FilePiece, bytes: &[u8]) -> bool {
        let found = (piece.length, *blake3::hash(bytes).as_bytes());
        !self.open || *self.read.entry((piece.entry, piece.offset)).or_insert(found) == found
    }

    /// The parts to read again before anything is put in place.
    pub(crate) fn again(&self) -> Vec<FilePiece> {
        let mut pieces: Vec<FilePiece> =
            self.read.iter().map(|(&(entry, offset), &(length, _))| FilePiece { entry, offset, length }).collect();
        pieces.sort_unstable_by_key(|piece| (piece.entry, piece.offset));
        pieces
    }

    /// Returns true if the bytes of a part match the first read.
    pub(crate) fn is_same(&self, piece: FilePiece, bytes: &[u8]) -> bool {
        let read = self.read.get(&(piece.entry, piece.offset));
        read.is_some_and(|(_, hash)| blake3::hash(bytes) == *hash)
    }
}
