//! The receiving side: writes blocks into a hidden area beside the target, and renames it to the target when it is
//! complete.

mod before;
mod dress;
mod placing;
mod resume;
mod room;
mod tree;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use folder::Folder;
use memory::Pages;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use before::{means_into, resolve};

use crate::area::{self, Area};
use crate::blocks::Hash;
use crate::blocks::{Bitmap, Blocks, MOST_BESIDE, SIZES};
use crate::error::{At, StageError};
use crate::journal::{Block, Journal, UNKNOWN};
use crate::manifest::Manifest;
use crate::reader::FileReader;
use crate::writer::{self, Writer};
use before::{Before, Owners};
use dress::Dresser;
use tree::{Tree, found_in_place, is_copy};

/// Verification of a written block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Compare its bytes with this hash now.
    Now(Hash),
    /// Compare its bytes with this hash when there is time ([`Target::check_one`]).
    Later(Hash),
    /// Do not compare: the bytes have never left this process's memory, or the user wants no checksums.
    Needless,
}

/// Time for an earlier transfer to the same target to end. One whose `landbridge run` was killed ends within 4 s: its
/// gateways wait for the launcher to return, and then for the agents to end.
const ENDING: Duration = Duration::from_secs(6);

/// Options for writing a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Block size in bytes. Default: 4 MiB.
    pub block: u32,
    /// Bytes of the file system that stay free for others. Default: a hundredth of its size, at most 4 GiB.
    pub kept: Option<u64>,
    /// Permit a target in a folder of another user. Default: no.
    pub other_owner: bool,
    /// Drop extended attributes and access control lists. Default: no.
    pub no_xattrs: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { block: 4 << 20, kept: None, other_owner: false, no_xattrs: false }
    }
}

/// Result of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub files: u64,
    /// Bytes of data, without holes.
    pub bytes: u64,
    /// The part of `bytes` that an earlier transfer had brought.
    pub resumed: u64,
    /// Notes for the user about metadata that could not be kept.
    pub notes: Vec<String>,
    /// The method of writing.
    pub path: writer::Path,
}

/// A target that is being written. Dropping it keeps the blocks that have arrived, for a later transfer to continue.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    parent: Folder,
    name: Vec<u8>,
    before: Before,
    owners: Owners,
    area: Area,
    tree: Tree,
    manifest: Manifest,
    blocks: Blocks,
    done: Bitmap,
    resumed: u64,
    /// All blocks have arrived, and an earlier process had begun to put them in place.
    placing: bool,
    journal: Journal,
    /// Missing pieces of each entry.
    missing: Vec<u32>,
    /// The file written last, left open.
    open: Option<(u32, OwnedFd)>,
    reader: FileReader,
    writer: Writer,
    /// Buffer for reading a block.
    spare: Pages,
    /// Blocks whose bytes have not been compared with their hashes.
    unchecked: Vec<(u32, Hash)>,
    dresser: Dresser,
}

impl Target {
    /// Prepares a target at `path`, whose folder must exist: finds the leftovers of an earlier transfer from `origin`,
    /// refuses impossible targets, and reserves the space. An existing copy of the manifest's folder counts as
    /// complete. `source`: device and inode of the source, if it is on this machine. If another transfer is writing
    /// there, waits some seconds for its end.
    ///
    /// # Errors
    /// [`StageError`]; nothing has been moved then.
    pub fn open(
        path: &Path,
        origin: &[u8],
        manifest: Manifest,
        source: Option<(u64, u64)>,
        options: Options,
    ) -> Result<Target, StageError> {
        check_request(&manifest, options)?;
        area::name_of_target(path)?;
        let shown = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let named = Folder::of(path).at("open the folder", shown)?;
        let (parent, name) = (named.folder, named.name);
        before::refuse_own_source(&parent, &name, path, source)?;
        let owners = Owners::new(options.other_owner);
        let before = before::look(&parent, &name, path, &manifest, owners)?;
        room::for_data(&parent, path, &manifest, options.kept)?;
        let blocks = Blocks::cut(&manifest, options.block)?;
        let area = area::patiently(ENDING, || Area::open(&parent, shown, origin, &name))?;
        let prepared = look_again(&area, (&parent, &name, before), path, (&manifest, &blocks), owners);
        let (before, (left, tree, journal)) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                // The area is new and empty.
                if area.is_fresh() {
                    area.remove()?;
                }
                return Err(error);
            }
        };
        let mut target = Target {
            path: path.to_owned(),
            parent,
            name,
            before,
            owners,
            done: Bitmap::new(blocks.count()),
            resumed: 0,
            placing: left.placing,
            journal,
            missing: vec![0; manifest.entries.len()],
            area,
            tree,
            manifest,
            blocks,
            open: None,
            reader: FileReader::default(),
            writer: Writer::default(),
            spare: Pages::default(),
            unchecked: Vec::new(),
            dresser: Dresser::new(options.no_xattrs),
        };
        target.count_missing();
        target.resume(left.blocks);
        match target.placing {
            true => target.journal.place().map(|()| target),
            false => target.with_room(options.kept),
        }
    }

    /// Reserves the space of the missing blocks.
    fn with_room(mut self, kept: Option<u64>) -> Result<Target, StageError> {
        match self.reserve(kept) {
            Ok(()) => Ok(self),
            Err(error) => {
                // Free the reserved space, unless an earlier transfer left blocks to continue.
                if self.resumed == 0 {
                    self.area.remove()?;
                }
                Err(error)
            }
        }
    }

    /// Counts the pieces of each entry; all of them are missing.
    fn count_missing(&mut self) {
        for block in 0..self.blocks.count() {
            for piece in self.blocks.pieces(block) {
                self.missing[piece.entry as usize] += 1;
            }
        }
    }

    /// Counts the blocks that an earlier transfer had brought as done.
    fn resume(&mut self, left: Vec<Block>) {
        for block in left {
            if self.done.insert(block.number) {
                self.resumed += self.blocks.bytes(block.number);
                for piece in self.blocks.pieces(block.number) {
                    self.missing[piece.entry as usize] -= 1;
                }
            }
        }
    }

    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The blocks that have arrived.
    pub fn done(&self) -> &Bitmap {
        &self.done
    }

    /// Bytes that an earlier transfer had brought.
    pub fn resumed(&self) -> u64 {
        self.resumed
    }

    /// Writes a block.
    ///
    /// # Errors
    /// [`StageError::Damaged`] if the bytes do not match; the block may be requested again. After any other error the
    /// target is unusable.
    pub fn write(&mut self, block: u32, bytes: &[u8], check: Check) -> Result<(), StageError> {
        let damaged = match check {
            Check::Now(hash) => *blake3::hash(bytes).as_bytes() != hash,
            Check::Later(_) | Check::Needless => false,
        };
        if damaged || bytes.len() as u64 != self.blocks.bytes(block) {
            return Err(StageError::Damaged { block, path: self.path.clone() });
        }
        if self.done.contains(block) {
            return Ok(());
        }
        self.area.check()?;
        self.write_pieces(block, bytes).map_err(|error| self.area.reason(error))?;
        self.done.insert(block);
        let (hash, checked) = match check {
            Check::Now(hash) => (hash, true),
            Check::Later(hash) => (hash, false),
            Check::Needless => (UNKNOWN, true),
        };
        if !checked {
            self.unchecked.push((block, hash));
        }
        self.journal.add(Block { number: block, hash, checked })
    }

    fn write_pieces(&mut self, block: u32, bytes: &[u8]) -> Result<(), StageError> {
        let pieces = self.blocks.pieces(block).to_vec();
        let mut rest = bytes;
        for piece in pieces {
            let (part, after) = rest.split_at(piece.length as usize);
            rest = after;
            let path = self.path_of(piece.entry);
            self.open_entry(piece.entry)?;
            let Some((_, file)) = &self.open else { continue };
            self.writer.write(file.as_fd(), piece.entry, part, piece.offset).at("write", &path)?;
            self.missing[piece.entry as usize] -= 1;
            if self.missing[piece.entry as usize] == 0 {
                let size = self.manifest.entries[piece.entry as usize].size();
                // The file may end with a hole, and blocks arrive in any order.
                if u64::from(piece.length) < size {
                    rustix::fs::ftruncate(file, size).at("write", &path)?;
                }
                self.writer.finish(file.as_fd(), piece.entry).at("write", &path)?;
                self.finish(piece.entry)?;
            }
        }
        Ok(())
    }

    /// Number of blocks not yet compared with their hashes.
    pub fn unchecked(&self) -> usize {
        self.unchecked.len()
    }

    /// Reads an unverified block and compares it. Returns its number if it is damaged; it then counts as missing.
    ///
    /// # Errors
    /// System errors.
    pub fn check_one(&mut self) -> Result<Option<u32>, StageError> {
        let Some((block, hash)) = self.unchecked.pop() else { return Ok(None) };
        let mut bytes = std::mem::take(&mut self.spare);
        let found = self.read(block, &mut bytes);
        self.spare = bytes;
        let found = found?;
        if found == hash {
            self.journal.add(Block { number: block, hash, checked: true })?;
            return Ok(None);
        }
        self.done.remove(block);
        for piece in self.blocks.pieces(block) {
            self.missing[piece.entry as usize] += 1;
        }
        Ok(Some(block))
    }

    /// Reads an arrived block to pass it on to another node. Returns its hash.
    ///
    /// # Errors
    /// [`StageError::Damaged`] if the block was unverified and does not match its sender's hash.
    pub fn read(&mut self, block: u32, bytes: &mut Pages) -> Result<Hash, StageError> {
        self.fill(block, bytes)?;
        let hash = *blake3::hash(bytes).as_bytes();
        match self.unchecked.iter().any(|(other, expected)| *other == block && *expected != hash) {
            true => Err(StageError::Damaged { block, path: self.path.clone() }),
            false => Ok(hash),
        }
    }

    /// Like [`Target::read`], but computes the hash only if it is wanted.
    ///
    /// # Errors
    /// As [`Target::read`].
    pub(crate) fn block(&mut self, block: u32, bytes: &mut Pages, hashed: bool) -> Result<Hash, StageError> {
        if hashed { self.read(block, bytes) } else { self.fill(block, bytes).map(|()| UNKNOWN) }
    }

    fn fill(&mut self, block: u32, bytes: &mut Pages) -> Result<(), StageError> {
        self.read_pieces(block, bytes).map_err(|error| self.area.reason(error))
    }

    fn read_pieces(&mut self, block: u32, bytes: &mut Pages) -> Result<(), StageError> {
        self.open = None;
        bytes.resize(self.blocks.bytes(block) as usize);
        let mut rest = &mut bytes[..];
        for piece in self.blocks.pieces(block) {
            let (part, after) = rest.split_at_mut(piece.length as usize);
            rest = after;
            let path = &self.manifest.entries[piece.entry as usize].path;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match self.tree {
                Tree::Placed => self.open_in_place(path, flags),
                Tree::File | Tree::Folder(_) => self.tree.open_file(&self.area, path, flags, Mode::empty()),
            };
            let file = file.at("open", self.path_of(piece.entry))?;
            let read = self.reader.read(&file, part, piece.offset).at("read", self.path_of(piece.entry))?;
            if read < part.len() {
                let what = format!("it ends at {} bytes", piece.offset + read as u64);
                return Err(StageError::Changed { path: self.path_of(piece.entry), what });
            }
        }
        Ok(())
    }

    /// Gives the target up: removes the blocks that have arrived.
    ///
    /// # Errors
    /// System errors.
    pub fn evict(self) -> Result<(), StageError> {
        self.area.remove().map(drop)
    }

    fn path_of(&self, entry: u32) -> PathBuf {
        match self.manifest.entries.get(entry as usize) {
            Some(entry) => entry.below(&self.path),
            None => self.path.clone(),
        }
    }

    /// Opens a file that an earlier process has put in place.
    fn open_in_place(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        match self.before.folder().filter(|_| !path.is_empty()) {
            Some(folder) => folder.beneath(path, flags, Mode::empty()),
            None => self.parent.beneath(&self.name, flags, Mode::empty()),
        }
    }

    /// Opens a file of the tree for writing; creates it if it is missing.
    fn open_entry(&mut self, entry: u32) -> Result<(), StageError> {
        if self.open.as_ref().is_some_and(|(open, _)| *open == entry) {
            return Ok(());
        }
        self.open = None;
        let path = &self.manifest.entries[entry as usize].path;
        let mode = Mode::from_raw_mode(0o600);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match self.tree.open_file(&self.area, path, flags, mode) {
            // An earlier process had set the file's final permissions, and was killed before it recorded the last
            // block.
            Err(Errno::ACCESS) => self
                .tree
                .make_writable(&self.area, path, mode)
                .and_then(|()| self.tree.open_file(&self.area, path, flags, mode)),
            opened => opened,
        };
        let opened = opened.at("make", self.path_of(entry))?;
        self.open = Some((entry, opened));
        Ok(())
    }

    /// Sets the permissions, attributes and times of the open file.
    fn finish(&mut self, number: u32) -> Result<(), StageError> {
        let path = self.path_of(number);
        let Some((_, file)) = &self.open else { return Ok(()) };
        self.dresser.dress(file, &self.manifest.entries[number as usize], &path)
    }
}

/// Refuses a block size or a manifest that no transfer can use.
fn check_request(manifest: &Manifest, options: Options) -> Result<(), StageError> {
    if !SIZES.contains(&options.block) {
        return Err(StageError::BlockSize(options.block.into()));
    }
    if options.block > MOST_BESIDE && std::env::var_os(types::MOST_HARM).is_some() {
        return Err(StageError::BlockBeside(options.block.into()));
    }
    manifest.fault().map_or(Ok(()), |fault| Err(StageError::Manifest(fault)))
}

/// With the area locked: looks again for an existing target, and opens the tree and the journal.
fn look_again(
    area: &Area,
    (parent, name, before): (&Folder, &[u8], Before),
    path: &Path,
    (manifest, blocks): (&Manifest, &Blocks),
    owners: Owners,
) -> Result<(Before, (resume::Left, Tree, Journal)), StageError> {
    // Another transfer of the same files may have put them in place before this one locked the area.
    let before = match before {
        Before::Folder(_) => before,
        Before::Nothing | Before::File => before::look(parent, name, path, manifest, owners)?,
    };
    let prepared = match is_copy(&before, manifest) {
        true => found_in_place(area, manifest, blocks),
        false => prepare(area, (parent, name, &before), path, manifest, blocks),
    };
    prepared.map(|prepared| (before, prepared))
}

/// Opens the leftovers of an earlier transfer, the tree of new contents and the journal.
fn prepare(
    area: &Area,
    (parent, name, before): (&Folder, &[u8], &Before),
    path: &Path,
    manifest: &Manifest,
    blocks: &Blocks,
) -> Result<(resume::Left, Tree, Journal), StageError> {
    if area.is_fresh() {
        room::for_entries(area, path, manifest)?;
    }
    let mut left = resume::left(area, manifest, blocks)?;
    let mut tree = Tree::open(area, manifest, left.placing)?;
    if left.placing && !tree.is_whole(parent, name, before, manifest) {
        // It was put in place, and has been removed since.
        area.clear()?;
        left = resume::Left::default();
        tree = Tree::open(area, manifest, false)?;
    }
    let journal = Journal::create(area, (blocks.size(), blocks.count()), manifest, &left.blocks)?;
    Ok((left, tree, journal))
}

#[cfg(test)]
mod tests;
