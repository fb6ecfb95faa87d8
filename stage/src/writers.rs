//! Files that somebody may write to while they are read, through a mapping too.
//!
//! A write by a system call changes the file's times at once. One through a mapping changes them only when its page is
//! written to for the first time since it was last written back. So where there is a writer, all pages are written back
//! before the first byte is read: whatever is written afterwards changes the times, and those are compared. A file
//! system in memory never changes times for a mapping; there each part is read again at the end.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Result;

use crate::blocks::Piece;
use crate::{Hash, sys};

/// File systems that are memory, by the numbers that `statfs` has for them: tmpfs, ramfs, hugetlbfs.
const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Whether the file is on a file system that is memory.
///
/// # Errors
/// The system's.
pub(crate) fn is_in_memory(file: &OwnedFd) -> Result<bool> {
    Ok(IN_MEMORY.contains(&(rustix::fs::fstatfs(file)?.f_type as u32)))
}

/// Whether somebody has the file open for writing, as far as this user can know.
pub(crate) fn has_writer(file: &OwnedFd) -> bool {
    sys::has_writer(file.as_fd()) == Some(true)
}

/// What was read of files whose times do not say whether they are written to.
#[derive(Debug, Default)]
pub(crate) struct Unsteady {
    /// The open file is one of them.
    open: bool,
    read: HashMap<(u32, u64), (u32, Hash)>,
}

impl Unsteady {
    /// A file has been opened, and will be read. `listed`: it was open for writing when it was listed. Returns whether
    /// it may be read: if its times tell nothing, somebody may have written to it since it was listed, or since an
    /// earlier attempt.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn opened(&mut self, file: &OwnedFd, listed: bool) -> Result<bool> {
        self.open = listed;
        if !listed {
            match sys::has_writer(file.as_fd()) {
                Some(false) => {}
                Some(true) if is_in_memory(file)? => return Ok(false),
                // Not every file system can; then it is none whose mappings other programs share with this one.
                Some(true) | None => drop(sys::write_back(file.as_fd(), 0, 0, true)),
            }
        }
        Ok(true)
    }

    /// These bytes were read of the open file. Returns whether they are those that were read before.
    pub(crate) fn read(&mut self, piece: Piece, bytes: &[u8]) -> bool {
        let found = (piece.length, *blake3::hash(bytes).as_bytes());
        !self.open || *self.read.entry((piece.entry, piece.offset)).or_insert(found) == found
    }

    /// The parts that must be read again before anything is put in place.
    pub(crate) fn again(&self) -> Vec<Piece> {
        let mut pieces: Vec<Piece> =
            self.read.iter().map(|(&(entry, offset), &(length, _))| Piece { entry, offset, length }).collect();
        pieces.sort_unstable_by_key(|piece| (piece.entry, piece.offset));
        pieces
    }

    /// Whether the bytes of a part that is read again are those that were read before.
    pub(crate) fn is_same(&self, piece: Piece, bytes: &[u8]) -> bool {
        let read = self.read.get(&(piece.entry, piece.offset));
        read.is_some_and(|(_, hash)| blake3::hash(bytes) == *hash)
    }
}
