//! The last step: puts all new contents in place at once.

use std::os::fd::{BorrowedFd, OwnedFd};

use folder::{Folder, Folders};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use types::untrusted::printable;

use super::dress::times;
use super::{Before, Report, Target, Tree};
use crate::area::TREE;
use crate::error::{At, StageError};
use crate::manifest::EntryKind;

/// Above this number of files, the whole file system is synced instead of each file.
const MANY: usize = 64;

impl Target {
    /// Puts the contents in place, once every block has arrived. A new file or folder appears as a whole; in an
    /// existing folder, each file does.
    ///
    /// # Errors
    /// [`StageError`]; blocks that have arrived are kept.
    pub fn place(mut self) -> Result<Report, StageError> {
        if let Some(block) = self.done.missing().next() {
            return Err(StageError::Manifest(format!("block {block} has not arrived")));
        }
        if let Some((block, _)) = self.unchecked.first() {
            return Err(StageError::Manifest(format!("block {block} has not been compared")));
        }
        self.open = None;
        self.area.check()?;
        self.put_in_place().map_err(|error| self.area.reason(error))?;
        let (files, bytes) = (self.manifest.files() as u64, self.manifest.bytes());
        let (notes, path) = (self.dresser.notes(), self.writer.path());
        let mut report = Report { files, bytes, resumed: self.resumed, notes, path };
        report.notes.extend(self.folder_that_moved());
        let hidden = self.area.path().to_owned();
        if !self.area.remove()? {
            let hidden = printable(&hidden.to_string_lossy());
            report
                .notes
                .push(format!("somebody has renamed {hidden}, which is empty now: remove it where you find it"));
        }
        Ok(report)
    }

    fn put_in_place(&mut self) -> Result<(), StageError> {
        if !self.placing {
            self.make_links_and_dress()?;
            self.write_back()?;
            self.journal.place()?;
        }
        // Setting metadata and writing to the disk may take long.
        self.area.check()?;
        match (&self.tree, &self.before) {
            (Tree::Placed, _) => {}
            (_, Before::Folder(_)) => self.place_into()?,
            _ => self.place_whole()?,
        }
        self.dress_root()?;
        match self.parent.readable().and_then(rustix::fs::fsync) {
            // Some file systems do not support it, and need it not; an unreadable folder cannot be synced either.
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP | Errno::ACCESS) => Ok(()),
            Err(error) => Err(error).at("write back the folder of", &self.path),
        }
    }

    /// Other users may rename the folder during the transfer.
    fn folder_that_moved(&self) -> Option<String> {
        let path = self.path.parent().filter(|path| !path.as_os_str().is_empty())?;
        let held = self.parent.identity().ok()?;
        let there = Folder::open(path).ok().and_then(|folder| folder.identity().ok());
        (there != Some(held)).then(|| {
            let shown = printable(&path.to_string_lossy());
            format!("somebody has renamed or removed the folder {shown} meanwhile: the files that were moved are in it")
        })
    }

    /// Makes links, then sets the metadata of folders, which making something in them would change.
    pub(super) fn make_links_and_dress(&mut self) -> Result<(), StageError> {
        let Tree::Folder(folders) = &mut self.tree else { return Ok(()) };
        let whole = Folders::new(folders.root().try_clone_to_owned().at("open", &self.path)?);
        for entry in self.manifest.entries.iter().skip(1) {
            let shown = entry.below(&self.path);
            let (folder, name) = match &entry.kind {
                EntryKind::Link(_) | EntryKind::Same(_) => {
                    folders.parent(&entry.path).at("open the folder of", &shown)?
                }
                _ => continue,
            };
            // An earlier process may have made the link.
            match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error).at("make anew", shown),
            }
            match &entry.kind {
                EntryKind::Link(target) => {
                    rustix::fs::symlinkat(&target[..], folder, name).at("make the link", &shown)?;
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    rustix::fs::utimensat(folder, name, &times(entry), flags).at("set the time of", shown)?;
                }
                EntryKind::Same(first) => {
                    let first = &self.manifest.entries[*first as usize];
                    let opened = whole.open(&first.path, OFlags::PATH, Mode::empty());
                    let opened = opened.at("open", first.below(&self.path))?;
                    link(&opened, whole.root(), &first.path, folder, name).at("make the link", shown)?;
                }
                _ => {}
            }
        }
        if self.before.folder().is_some() {
            // The files are moved out of these folders one by one.
            return Ok(());
        }
        // The innermost folders first. The root must wait: a folder that is not writable cannot be renamed.
        for entry in self.manifest.entries.iter().skip(1).rev().filter(|entry| entry.kind == EntryKind::Folder) {
            let shown = entry.below(&self.path);
            let opened = folders.open(&entry.path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
            self.dresser.dress(&opened.at("open", &shown)?, entry, &shown)?;
        }
        Ok(())
    }

    /// Syncs all new contents to the disk.
    fn write_back(&mut self) -> Result<(), StageError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.manifest.files() <= MANY {
            let mut unreadable = false;
            for entry in self.manifest.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File { .. })) {
                let shown = entry.below(&self.path);
                match self.tree.open_file(&self.area, &entry.path, flags, Mode::empty()) {
                    Ok(file) => rustix::fs::fsync(&file).at("write back", shown)?,
                    Err(Errno::ACCESS) => unreadable = true,
                    Err(error) => return Err(error).at("open", shown),
                }
            }
            if !unreadable {
                return Ok(());
            }
        }
        self.area.folder().readable().and_then(rustix::fs::syncfs).at("write back the file system of", &self.path)
    }

    /// Puts the tree in place by one rename.
    fn place_whole(&mut self) -> Result<(), StageError> {
        let (from, to) = (self.area.folder(), &self.parent);
        let renamed = match self.before {
            Before::File => rustix::fs::renameat(from, TREE, to, &self.name[..]),
            _ => match rustix::fs::renameat_with(from, TREE, to, &self.name[..], RenameFlags::NOREPLACE) {
                // The file system does not support rename flags, NFS for instance.
                Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(from, TREE, to, &self.name[..]),
                renamed => renamed,
            },
        };
        match renamed {
            Ok(()) => Ok(()),
            Err(Errno::EXIST | Errno::NOTEMPTY) => {
                let problem =
                    "it appeared while its new contents were on their way: remove it and try again".to_owned();
                Err(StageError::Conflict { path: self.path.clone(), problem })
            }
            Err(error) => Err(error).at("put in place", &self.path),
        }
    }

    /// Sets the root's metadata after its rename. Uses its descriptor, because its name may belong to another folder by
    /// now.
    fn dress_root(&mut self) -> Result<(), StageError> {
        let root = &self.manifest.entries[0];
        let opened = match (&self.tree, &self.before) {
            _ if root.kind != EntryKind::Folder => return Ok(()),
            (Tree::Placed, Before::Folder(folder)) => folder.readable(),
            (Tree::Folder(folders), Before::Nothing | Before::File) => {
                folders.open(b"", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            }
            // An existing folder keeps its metadata.
            _ => return Ok(()),
        };
        self.dresser.dress(&opened.at("open", &self.path)?, root, &self.path)
    }

    /// Moves each file into an existing folder.
    fn place_into(&mut self) -> Result<(), StageError> {
        let (Tree::Folder(from), Before::Folder(target)) = (&mut self.tree, &self.before) else {
            return Err(StageError::Manifest("its root is no folder".to_owned()));
        };
        let mut to = Folders::new(target.try_clone().at("open", &self.path)?.into());
        let mut made = Vec::new();
        for entry in self.manifest.entries.iter().skip(1) {
            let shown = entry.below(&self.path);
            let (folder, name) = to.parent(&entry.path).at("open the folder of", &shown)?;
            if entry.kind == EntryKind::Folder {
                match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700)) {
                    Ok(()) => made.push(entry),
                    // The folder was checked before, or somebody has made it since.
                    Err(Errno::EXIST) => {
                        let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
                        let found = found.at("examine", &shown)?;
                        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                            self.owners.allow(&found, &shown)?;
                        }
                    }
                    Err(error) => return Err(error).at("make", shown),
                }
                continue;
            }
            let (before, _) = from.parent(&entry.path).at("open the folder of", &shown)?;
            self.area.check()?;
            match rustix::fs::renameat(before, name, folder, name) {
                Ok(()) => {}
                Err(Errno::NOENT) if self.placing => {
                    // An earlier process has moved it.
                    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).at("find", shown)?;
                }
                Err(error) => return Err(error).at("put in place", shown),
            }
        }
        for entry in made.into_iter().rev() {
            let shown = entry.below(&self.path);
            let opened = to.open(&entry.path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).at("open", &shown)?;
            self.dresser.dress(&opened, entry, &shown)?;
        }
        if !target.is_at(&self.parent, &self.name) {
            let problem =
                "somebody has given the folder another name meanwhile: the files that arrived are in it".to_owned();
            return Err(StageError::Conflict { path: self.path.clone(), problem });
        }
        Ok(())
    }
}

/// Adds a hard link to a file: by its descriptor where that is permitted, else by its path, which contains no links.
fn link(
    file: &OwnedFd,
    root: BorrowedFd<'_>,
    path: &[u8],
    folder: BorrowedFd<'_>,
    name: &[u8],
) -> rustix::io::Result<()> {
    match rustix::fs::linkat(file, "", folder, name, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT | Errno::PERM | Errno::INVAL) => {
            rustix::fs::linkat(root, path, folder, name, AtFlags::empty())
        }
        linked => linked,
    }
}
