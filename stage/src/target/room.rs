//! Reserves space before the first byte arrives, so that a transfer never fills the disk under a running job.

use std::os::fd::AsFd;
use std::path::Path;

use folder::Folder;
use rustix::fs::{FallocateFlags, StatVfs};
use rustix::io::Errno;

use super::Target;
use crate::area::Area;
use crate::error::{At, StageError};
use crate::manifest::{EntryKind, Manifest};

/// Minimum size of files for which space is reserved, in bytes of data. Shorter files are numerous and written in one
/// go.
const LONG: u64 = 1 << 20;
/// Overhead of a file, folder or link besides its data, in bytes.
const EACH: u64 = 4096;
/// Maximum default of the space that stays free for others.
const MOST_KEPT: u64 = 4 << 30;

/// Checks that the file system has room for all files and folders.
pub(super) fn for_entries(area: &Area, path: &Path, manifest: &Manifest) -> Result<(), StageError> {
    let room = rustix::fs::fstatvfs(area.folder()).at("examine the file system of", path)?;
    let needed = manifest.entries.len() as u64;
    // A file system without a fixed number of files reports 0 here.
    if room.f_files > 0 && needed > room.f_favail {
        return Err(StageError::NoFiles { path: path.to_owned(), needed, free: room.f_favail });
    }
    Ok(())
}

/// Free and total space in bytes. `None`: the file system does not report it, as some in user space.
fn space(room: &StatVfs) -> Option<(u64, u64)> {
    let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
    (room.f_blocks > 0).then(|| (bytes(room.f_bavail), bytes(room.f_blocks)))
}

fn kept_of(kept: Option<u64>, whole: u64) -> u64 {
    kept.unwrap_or_else(|| (whole / 100).min(MOST_KEPT))
}

/// Refuses a manifest larger than the whole file system, before memory is allocated for its parts: an untrusted
/// manifest may state any sizes.
pub(super) fn for_data(parent: &Folder, path: &Path, manifest: &Manifest, kept: Option<u64>) -> Result<(), StageError> {
    let room = rustix::fs::fstatvfs(parent).at("examine the file system of", path)?;
    let Some((free, whole)) = space(&room) else { return Ok(()) };
    let needed = manifest.bytes().saturating_add((manifest.entries.len() as u64).saturating_mul(EACH));
    match needed > whole {
        true => Err(StageError::NoRoom { path: path.to_owned(), needed, free, kept: kept_of(kept, whole) }),
        false => Ok(()),
    }
}

impl Target {
    pub(super) fn reserve(&mut self, kept: Option<u64>) -> Result<(), StageError> {
        let room = rustix::fs::fstatvfs(self.area.folder()).at("examine the file system of", &self.path)?;
        let missing: u64 = self.done.missing().map(|block| self.blocks.bytes(block)).sum();
        let absent = self.manifest.entries.len() as u64;
        let reserved = self.reserved()?;
        let needed = missing.saturating_add(absent.saturating_mul(EACH)).saturating_sub(reserved);
        if let Some((free, whole)) = space(&room) {
            let kept = kept_of(kept, whole);
            if needed.saturating_add(kept) > free {
                return Err(StageError::NoRoom { path: self.path.clone(), needed, free, kept });
            }
        }
        for number in 0..self.manifest.entries.len() as u32 {
            let entry = &self.manifest.entries[number as usize];
            let data: Vec<(u64, u64)> = entry.data().collect();
            let long = data.iter().map(|(_, length)| length).sum::<u64>() >= LONG;
            if !long || self.missing[number as usize] == 0 {
                continue;
            }
            let (path, size) = (self.path_of(number), entry.size());
            self.open_entry(number)?;
            let Some((_, file)) = &self.open else { continue };
            for (offset, length) in data {
                match rustix::fs::fallocate(file.as_fd(), FallocateFlags::KEEP_SIZE, offset, length) {
                    Ok(()) => {}
                    // The file system cannot reserve space: its free space at this moment must suffice.
                    Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                    Err(error) => return Err(error).at("reserve the space of", path),
                }
            }
            rustix::fs::ftruncate(file, size).at("reserve the space of", path)?;
        }
        Ok(())
    }

    /// Bytes that an earlier transfer had reserved but not written.
    fn reserved(&self) -> Result<u64, StageError> {
        if self.resumed == 0 {
            return Ok(0);
        }
        let mut reserved = 0u64;
        for (entry, missing) in self.manifest.entries.iter().zip(&self.missing) {
            let data = entry.data().map(|(_, length)| length).sum::<u64>();
            if *missing > 0 && data >= LONG && matches!(entry.kind, EntryKind::File { .. }) {
                let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
                if let Ok(file) = self.tree.open_file(&self.area, &entry.path, flags, rustix::fs::Mode::empty())
                    && let Ok(found) = rustix::fs::fstat(&file)
                {
                    reserved += (found.st_blocks as u64).saturating_mul(512).min(data);
                }
            }
        }
        // Written blocks of these files are not missing any more, but their space is not free either.
        let written: u64 = (0..self.blocks.count())
            .filter(|block| self.done.contains(*block))
            .flat_map(|block| self.blocks.pieces(block))
            .filter(|piece| self.missing[piece.entry as usize] > 0)
            .map(|piece| u64::from(piece.length))
            .sum();
        Ok(reserved.saturating_sub(written))
    }
}
