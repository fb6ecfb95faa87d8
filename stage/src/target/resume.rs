//! Finds the usable leftovers of an earlier transfer.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use folder::Folders;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::area::{Area, TREE};
use crate::blocks::Hash;
use crate::blocks::{Blocks, FilePiece};
use crate::error::{At, StageError};
use crate::journal::{Block, Journal};
use crate::manifest::{EntryKind, Manifest, Stamp};
use crate::reader::FileReader;

#[derive(Debug, Default)]
pub(super) struct Left {
    /// Blocks of the new manifest that have arrived.
    pub(super) blocks: Vec<Block>,
    /// All blocks have arrived, and are being put in place.
    pub(super) placing: bool,
}

/// Finds usable blocks, and removes the rest.
pub(super) fn left(area: &Area, manifest: &Manifest, blocks: &Blocks) -> Result<Left, StageError> {
    let Some(old) = Journal::read(area)? else {
        area.clear()?;
        return Ok(Left::default());
    };
    let same = old.manifest == *manifest && old.block == blocks.size();
    if old.placing && same {
        return Ok(Left { blocks: old.blocks, placing: true });
    }
    let is_folder = |manifest: &Manifest| manifest.entries[0].kind == EntryKind::Folder;
    let root = match Contents::open(area, is_folder(&old.manifest))? {
        Some(root) if is_folder(&old.manifest) == is_folder(manifest) => root,
        _ => {
            area.clear()?;
            return Ok(Left::default());
        }
    };
    let mut contents = root;
    let cut = Blocks::cut(&old.manifest, old.block)?;
    let mut buffer = Vec::new();
    let mut kept = Vec::new();
    // The latest record of each block.
    let last: HashMap<u32, Block> = old.blocks.iter().map(|block| (block.number, *block)).collect();
    let mut numbers: Vec<u32> = last.keys().copied().collect();
    numbers.sort_unstable();
    for block in numbers.iter().map(|number| last[number]) {
        let pieces = cut.pieces(block.number);
        let usable = match old.same_boot && block.checked {
            true => contents.has(&old.manifest, pieces)?,
            // Data in flight to the disk at a crash may not have reached it.
            false => contents.hash(&old.manifest, pieces, &mut buffer)?.as_ref() == Some(&block.hash),
        };
        if usable && !pieces.is_empty() {
            kept.push(Block { checked: true, ..block });
        }
    }
    if same {
        return Ok(Left { blocks: kept, placing: false });
    }
    let usable = usable(&old.manifest, &cut, &kept);
    contents.prune(&old.manifest, manifest)?;
    let mut found = Vec::new();
    for block in 0..blocks.count() {
        let pieces = blocks.pieces(block);
        if pieces.iter().all(|piece| usable.covers(manifest, piece))
            && let Some(hash) = contents.hash(manifest, pieces, &mut buffer)?
        {
            found.push(Block { number: block, hash, checked: true });
        }
    }
    Ok(Left { blocks: found, placing: false })
}

/// For each file, as it was listed, its usable ranges.
struct Usable<'a>(HashMap<&'a [u8], Ranges<'a>>);

struct Ranges<'a> {
    stamp: &'a Stamp,
    /// Starts and ends, ascending.
    found: Vec<(u64, u64)>,
}

fn usable<'a>(manifest: &'a Manifest, cut: &Blocks, kept: &[Block]) -> Usable<'a> {
    let mut files: HashMap<&[u8], Ranges<'_>> = HashMap::new();
    for piece in kept.iter().flat_map(|block| cut.pieces(block.number)) {
        let entry = &manifest.entries[piece.entry as usize];
        let EntryKind::File { stamp, .. } = &entry.kind else { continue };
        let ranges = &mut files.entry(&entry.path).or_insert(Ranges { stamp, found: Vec::new() }).found;
        let end = piece.offset + u64::from(piece.length);
        // Blocks are in ascending order, so the ranges are too.
        match ranges.last_mut() {
            Some((_, last)) if *last == piece.offset => *last = end,
            _ => ranges.push((piece.offset, end)),
        }
    }
    Usable(files)
}

impl Usable<'_> {
    fn covers(&self, manifest: &Manifest, piece: &FilePiece) -> bool {
        let entry = &manifest.entries[piece.entry as usize];
        let EntryKind::File { stamp, .. } = &entry.kind else { return false };
        let Some(ranges) = self.0.get(&entry.path[..]) else { return false };
        let end = piece.offset + u64::from(piece.length);
        ranges.stamp == stamp && ranges.found.iter().any(|(from, to)| *from <= piece.offset && end <= *to)
    }
}

/// The files of a tree, for reading.
enum Contents<'a> {
    File(&'a Area),
    Folder(&'a Area, Folders),
}

impl<'a> Contents<'a> {
    fn open(area: &'a Area, folder: bool) -> Result<Option<Contents<'a>>, StageError> {
        if !folder {
            return Ok(Some(Contents::File(area)));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match area.folder().beneath(TREE.as_bytes(), flags, Mode::empty()) {
            Ok(root) => Ok(Some(Contents::Folder(area, Folders::new(root)))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error).at("open", area.path().join(TREE)),
        }
    }

    fn area(&self) -> &'a Area {
        match self {
            Contents::File(area) | Contents::Folder(area, _) => area,
        }
    }

    /// Returns true if the files of these pieces exist.
    fn has(&mut self, manifest: &Manifest, pieces: &[FilePiece]) -> Result<bool, StageError> {
        for piece in pieces {
            let path = &manifest.entries[piece.entry as usize].path;
            let found = match self {
                Contents::File(area) => rustix::fs::statat(area.folder(), TREE, AtFlags::SYMLINK_NOFOLLOW),
                Contents::Folder(_, folders) => folders
                    .parent(path)
                    .and_then(|(folder, name)| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)),
            };
            match found {
                Ok(_) => {}
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
                Err(error) => return Err(error).at("examine", self.area().path().join(TREE)),
            }
        }
        Ok(true)
    }

    /// The hash of a block on the disk. `None`: some of its bytes are missing.
    fn hash(
        &mut self,
        manifest: &Manifest,
        pieces: &[FilePiece],
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Hash>, StageError> {
        let shown = self.area().path().join(TREE);
        let mut hasher = blake3::Hasher::new();
        let (mut open, mut reader): (Option<(u32, OwnedFd)>, _) = (None, FileReader::default());
        for piece in pieces {
            if open.as_ref().is_none_or(|(entry, _)| *entry != piece.entry) {
                match self.read(&manifest.entries[piece.entry as usize].path) {
                    Ok(file) => open = Some((piece.entry, file)),
                    Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                    Err(error) => return Err(error).at("open", shown),
                }
            }
            let Some((_, file)) = &open else { return Ok(None) };
            buffer.resize(piece.length as usize, 0);
            if reader.read(file, buffer, piece.offset).at("read", &shown)? < buffer.len() {
                return Ok(None);
            }
            hasher.update(buffer);
        }
        Ok(Some(*hasher.finalize().as_bytes()))
    }

    fn read(&mut self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match self {
            Contents::File(area) => rustix::fs::openat(area.folder(), TREE, flags, Mode::empty()),
            Contents::Folder(_, folders) => folders.open(path, flags, Mode::empty()),
        }
    }

    /// Removes files and folders that the new manifest lacks, or that differ in it.
    fn prune(&mut self, old: &Manifest, new: &Manifest) -> Result<(), StageError> {
        let shown = self.area().path().join(TREE);
        let entries: HashMap<&[u8], &EntryKind> =
            new.entries.iter().map(|entry| (&entry.path[..], &entry.kind)).collect();
        let Contents::Folder(area, folders) = self else {
            return match entries.get(&[][..]) {
                Some(kind) if **kind == old.entries[0].kind => Ok(()),
                _ => self.area().clear(),
            };
        };
        // Contents are removed before their folder.
        for entry in old.entries.iter().skip(1).rev() {
            let stays = match (&entry.kind, entries.get(&entry.path[..])) {
                (EntryKind::Folder, Some(EntryKind::Folder)) => true,
                // Links are made last, so none is kept.
                (EntryKind::File { .. }, Some(kind)) => entry.kind == **kind,
                _ => false,
            };
            if stays {
                continue;
            }
            let flags = if entry.kind == EntryKind::Folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let mut remove =
                || folders.parent(&entry.path).and_then(|(folder, name)| rustix::fs::unlinkat(folder, name, flags));
            let removed = match remove() {
                Err(Errno::ACCESS) => {
                    area.unseal();
                    remove()
                }
                removed => removed,
            };
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => {
                    return Err(error).at("remove what is out of date of", shown.join(OsStr::from_bytes(&entry.path)));
                }
            }
        }
        Ok(())
    }
}
