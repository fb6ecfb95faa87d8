//! The tree of a target: the hidden area, or the folder itself for changes in place.

use std::os::fd::OwnedFd;

use folder::{Folder, Folders};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::before::Before;
use super::{dress, resume};
use crate::area::{Area, TREE};
use crate::blocks::Blocks;
use crate::error::{At, StageError};
use crate::journal::{Block, Journal, UNKNOWN};
use crate::manifest::{Entry, EntryKind, Manifest};

/// The new contents in the hidden area.
#[derive(Debug)]
pub(super) enum Tree {
    File,
    Folder(Folders),
    /// An earlier process has put the tree in place as a whole.
    Placed,
}

impl Tree {
    /// `placing`: the tree may be in place already.
    pub(super) fn open(area: &Area, manifest: &Manifest, placing: bool) -> Result<Tree, StageError> {
        let there = rustix::fs::statat(area.folder(), TREE, AtFlags::SYMLINK_NOFOLLOW);
        if placing && matches!(there, Err(Errno::NOENT)) {
            return Ok(Tree::Placed);
        }
        if manifest.entries[0].kind != EntryKind::Folder {
            return Ok(Tree::File);
        }
        let path = area.path().join(TREE);
        let private = Mode::from_raw_mode(0o700);
        let make = |folder: std::os::fd::BorrowedFd<'_>, name: &[u8]| match rustix::fs::mkdirat(folder, name, private) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        };
        area.folder().make(TREE.as_bytes(), private).at("make", &path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let root = area.folder().beneath(TREE.as_bytes(), flags, Mode::empty()).at("open", &path)?;
        let mut folders = Folders::new(root);
        if !placing {
            for entry in manifest.entries.iter().skip(1).filter(|entry| entry.kind == EntryKind::Folder) {
                let (folder, name) = folders.parent(&entry.path).at("open", entry.below(&path))?;
                make(folder, name).at("make", entry.below(&path))?;
            }
        }
        Ok(Tree::Folder(folders))
    }

    /// Returns true if each file is in the tree or already in place.
    pub(super) fn is_whole(&mut self, parent: &Folder, name: &[u8], before: &Before, manifest: &Manifest) -> bool {
        let root = &manifest.entries[0];
        if root.kind != EntryKind::Folder {
            return !matches!(self, Tree::Placed) || parent.stat(name).is_ok_and(|found| is_same(root, &found));
        }
        let here = match self {
            Tree::Folder(folders) => Some(folders),
            Tree::File | Tree::Placed => None,
        };
        match (before.folder(), here) {
            (Some(placed), here) => Tree::is_in(placed, here, manifest),
            (None, Some(here)) => manifest.entries.iter().skip(1).all(|entry| has(here, entry)),
            (None, None) => false,
        }
    }

    /// Returns true if each entry is in the folder `placed` or in the tree `here`.
    fn is_in(placed: &Folder, mut here: Option<&mut Folders>, manifest: &Manifest) -> bool {
        let Ok(placed) = placed.try_clone() else { return false };
        let mut placed = Folders::new(placed.into());
        let mut found = |entry| here.as_mut().is_some_and(|here| has(here, entry)) || has(&mut placed, entry);
        manifest.entries.iter().skip(1).all(&mut found)
    }

    pub(super) fn open_file(&self, area: &Area, path: &[u8], flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        match self {
            Tree::File => rustix::fs::openat(area.folder(), TREE, flags, mode),
            Tree::Placed => Err(Errno::NOENT),
            Tree::Folder(folders) => folders.open(path, flags, mode),
        }
    }

    pub(super) fn make_writable(&mut self, area: &Area, path: &[u8], mode: Mode) -> rustix::io::Result<()> {
        match self {
            Tree::File => rustix::fs::chmodat(area.folder(), TREE, mode, AtFlags::empty()),
            Tree::Placed => Err(Errno::NOENT),
            Tree::Folder(folders) => {
                let (folder, name) = folders.parent(path)?;
                rustix::fs::chmodat(folder, name, mode, AtFlags::empty())
            }
        }
    }
}

/// Returns true if these folders contain an entry.
pub(super) fn has(folders: &mut Folders, entry: &Entry) -> bool {
    let found = folders.parent(&entry.path);
    let found = found.and_then(|(folder, name)| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW));
    found.is_ok_and(|found| is_same(entry, &found))
}

/// Returns true if a file may be the entry's: it has the same size and time.
fn is_same(entry: &Entry, found: &rustix::fs::Stat) -> bool {
    let is_of = |kind| FileType::from_raw_mode(found.st_mode) == kind;
    match entry.kind {
        EntryKind::File { .. } | EntryKind::Same(_) => {
            let size = matches!(entry.kind, EntryKind::Same(_)) || found.st_size as u64 == entry.size();
            size && is_of(FileType::RegularFile) && (found.st_mtime, found.st_mtime_nsec as u32) == entry.modified
        }
        EntryKind::Folder => is_of(FileType::Directory),
        EntryKind::Link(_) => is_of(FileType::Symlink),
    }
}

/// Returns true if the existing folder is a copy of the manifest's: the same files, sizes, times and root.
pub(super) fn is_copy(before: &Before, manifest: &Manifest) -> bool {
    let (Some(folder), root) = (before.folder(), &manifest.entries[0]) else { return false };
    let same = |found: rustix::fs::Stat| {
        (found.st_mode ^ root.mode) & dress::FOLDER_BITS & !dress::SET_GROUP == 0
            && (found.st_mtime, found.st_mtime_nsec as u32) == root.modified
    };
    folder.examine().is_ok_and(same) && Tree::is_in(folder, None, manifest)
}

/// The same for a target that an earlier transfer has put in place completely, and whose journal is gone.
pub(super) fn found_in_place(
    area: &Area,
    manifest: &Manifest,
    blocks: &Blocks,
) -> Result<(resume::Left, Tree, Journal), StageError> {
    area.clear()?;
    let all = (0..blocks.count()).map(|number| Block { number, hash: UNKNOWN, checked: true }).collect();
    let left = resume::Left { blocks: all, placing: true };
    let journal = Journal::create(area, (blocks.size(), blocks.count()), manifest, &left.blocks)?;
    Ok((left, Tree::Placed, journal))
}
