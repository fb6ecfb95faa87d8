//! The journal of an incomplete target: the manifest, and the blocks that have arrived.
//!
//! The file is append-only: a header, then a record for each block. A record is written after its block, so a killed
//! process loses at most the block it was writing. A machine crash may lose blocks whose records survive. So the header
//! names the machine's boot, and after another boot each block is read and its hash compared.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::area::{Area, JOURNAL};
use crate::blocks::Hash;
use crate::error::{At, StageError};
use crate::manifest::Manifest;

const MAGIC: &[u8; 8] = b"LBSTAGE3";
const NEW: &str = "journal.new";
/// Set in the number of a block that has not been compared with its hash yet.
const UNCHECKED: u32 = 1 << 31;
/// The record number that marks all blocks as arrived and being put in place.
const PLACING: u32 = u32::MAX;
/// Number, hash, and a checksum of both.
const RECORD: usize = 4 + size_of::<Hash>() + 4;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    boot: String,
    block: u32,
    manifest: Manifest,
}

/// The journal that an earlier process left.
#[derive(Debug)]
pub(crate) struct Left {
    /// True if the machine has not rebooted since.
    pub(crate) same_boot: bool,
    /// Block size in bytes.
    pub(crate) block: u32,
    pub(crate) manifest: Manifest,
    /// Written blocks, in order. A block that was verified later occurs twice.
    pub(crate) blocks: Vec<Block>,
    pub(crate) placing: bool,
}

/// A block that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) number: u32,
    /// The expected hash of its bytes; all zeros: unknown.
    pub(crate) hash: Hash,
    /// True if the bytes were compared with the hash.
    pub(crate) checked: bool,
}

/// The hash of a block whose hash was not computed.
pub(crate) const UNKNOWN: Hash = [0; 32];

impl Block {
    fn record(&self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        let number = self.number | if self.checked { 0 } else { UNCHECKED };
        record[..4].copy_from_slice(&number.to_le_bytes());
        record[4..RECORD - 4].copy_from_slice(&self.hash);
        sealed(record)
    }
}

/// Adds the checksum to a record.
fn sealed(mut record: [u8; RECORD]) -> [u8; RECORD] {
    let (contents, checksum) = record.split_at_mut(RECORD - 4);
    checksum.copy_from_slice(&blake3::hash(contents).as_bytes()[..4]);
    record
}

#[derive(Debug)]
pub(crate) struct Journal {
    file: OwnedFd,
    path: PathBuf,
}

/// Identifies the current boot of this machine.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

impl Journal {
    /// Starts a journal with these blocks and room for `count` in total, and replaces an earlier journal.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn create(
        area: &Area,
        (block, count): (u32, u32),
        manifest: &Manifest,
        known: &[Block],
    ) -> Result<Journal, StageError> {
        let path = area.path().join(JOURNAL);
        let header = Header { boot: boot(), block, manifest: manifest.clone() };
        let header = postcard::to_stdvec(&header).map_err(|error| StageError::Manifest(error.to_string()))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(area.folder(), NEW, flags, Mode::from_raw_mode(0o600)).at("make", &path)?;
        let mut file = std::fs::File::from(file);
        let mut write = || -> std::io::Result<()> {
            file.write_all(MAGIC)?;
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(blake3::hash(&header).as_bytes())?;
            file.write_all(&header)?;
            file.write_all(&known.iter().flat_map(Block::record).collect::<Vec<u8>>())?;
            // A block that is verified later has two records. The last record marks the move into place.
            let records = (2 * u64::from(count) + 1) * RECORD as u64;
            let whole = header.len() as u64 + 64 + records;
            match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, whole) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
            file.sync_data()
        };
        write().at("write", &path)?;
        rustix::fs::renameat(area.folder(), NEW, area.folder(), JOURNAL).at("put in place", &path)?;
        Ok(Journal { file: file.into(), path })
    }

    /// Reads the journal. `None`: there is none or it is unusable; then everything is moved again.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn read(area: &Area) -> Result<Option<Left>, StageError> {
        let path = area.path().join(JOURNAL);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(area.folder(), JOURNAL, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file.at("open", &path)?,
        };
        let mut bytes = Vec::new();
        std::fs::File::from(file).read_to_end(&mut bytes).at("read", &path)?;
        Ok(Self::parse(&bytes))
    }

    fn parse(bytes: &[u8]) -> Option<Left> {
        let (magic, rest) = bytes.split_at_checked(8)?;
        let (length, rest) = rest.split_at_checked(8)?;
        let (hash, rest) = rest.split_at_checked(size_of::<Hash>())?;
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let (header, records) = rest.split_at_checked(length)?;
        if magic != MAGIC || blake3::hash(header).as_bytes() != hash {
            return None;
        }
        let Header { boot: then, block, manifest } = postcard::from_bytes(header).ok()?;
        if manifest.fault().is_some() || block == 0 {
            return None;
        }
        let same_boot = then == boot() && !then.is_empty();
        let mut left = Left { same_boot, block, manifest, blocks: Vec::new(), placing: false };
        // The last record may be incomplete.
        for record in records.chunks_exact(RECORD) {
            let (contents, checksum) = record.split_at(RECORD - 4);
            if blake3::hash(contents).as_bytes()[..4] != *checksum {
                // Damaged: its block counts as missing.
                continue;
            }
            let (number, hash) = contents.split_at(4);
            match u32::from_le_bytes(number.try_into().ok()?) {
                PLACING => left.placing = true,
                number => left.blocks.push(Block {
                    number: number & !UNCHECKED,
                    hash: hash.try_into().ok()?,
                    checked: number & UNCHECKED == 0,
                }),
            }
        }
        Some(left)
    }

    /// Records a block that has been written.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn add(&mut self, block: Block) -> Result<(), StageError> {
        self.append(&block.record())
    }

    /// Records that all contents are on the disk and are about to be put in place.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn place(&mut self) -> Result<(), StageError> {
        let mut record = [0; RECORD];
        record[..4].copy_from_slice(&PLACING.to_le_bytes());
        self.append(&sealed(record))?;
        rustix::fs::fdatasync(self.file.as_fd()).at("write", &self.path)
    }

    /// One write call for each record, so that the next record starts at a multiple of the record length.
    fn append(&mut self, record: &[u8]) -> Result<(), StageError> {
        match rustix::io::write(&self.file, record) {
            Ok(count) if count == record.len() => Ok(()),
            Ok(_) => Err(std::io::Error::from(std::io::ErrorKind::StorageFull)).at("write", &self.path),
            Err(error) => Err(error).at("write", &self.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest::{Entry, EntryKind};

    fn area(folder: &Path) -> Area {
        let parent = folder::Folder::open(folder).unwrap();
        Area::open(&parent, folder, b"from", b"to").unwrap()
    }

    fn manifest() -> Manifest {
        let root =
            Entry { path: Vec::new(), kind: EntryKind::Folder, mode: 0o755, modified: (1, 2), attributes: Vec::new() };
        Manifest { entries: vec![root] }
    }

    #[test]
    fn blocks_are_remembered_up_to_the_last_whole_record() {
        let folder = tempfile::tempdir().unwrap();
        let area = area(folder.path());
        assert!(Journal::read(&area).unwrap().is_none());
        let (one, other) =
            (Block { number: 7, hash: [1; 32], checked: true }, Block { number: 3, hash: [2; 32], checked: false });
        let mut journal = Journal::create(&area, (4096, 8), &manifest(), &[one]).unwrap();
        journal.add(other).unwrap();
        let whole = std::fs::read(area.path().join(JOURNAL)).unwrap();
        for cut in whole.len() - RECORD + 1..whole.len() {
            let left = Journal::parse(&whole[..cut]).unwrap();
            assert_eq!(left.blocks, [one]);
        }
        journal.place().unwrap();
        let left = Journal::read(&area).unwrap().unwrap();
        assert_eq!((left.block, &left.manifest, left.same_boot, left.placing), (4096, &manifest(), true, true));
        assert_eq!(left.blocks, [one, other]);
    }

    #[test]
    fn a_damaged_header_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let area = area(folder.path());
        Journal::create(&area, (4096, 8), &manifest(), &[]).unwrap();
        let whole = std::fs::read(area.path().join(JOURNAL)).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(Journal::parse(&damaged).is_none(), "byte {at}");
            assert!(Journal::parse(&whole[..at]).is_none());
        }
    }

    #[test]
    fn two_processes_do_not_write_the_same_target() {
        let folder = tempfile::tempdir().unwrap();
        let first = area(folder.path());
        let parent = folder::Folder::open(folder.path()).unwrap();
        let error = Area::open(&parent, folder.path(), b"from", b"to").unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        Area::open(&parent, folder.path(), b"other", b"to").unwrap();
        first.remove().unwrap();
        assert!(Area::open(&parent, folder.path(), b"from", b"to").is_ok());
    }
}
