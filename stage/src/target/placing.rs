//! The end: all that has arrived takes its place at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{Before, ROOT_BITS, Report, Target, Tree, dress, times};
use crate::area::TREE;
use crate::beneath::{self, Folders};
use crate::error::{At, StageError};
use crate::manifest::{Entry, Kind};

/// With more files than this the whole file system is written back, instead of one file after the other.
const MANY: usize = 64;

impl Target {
    /// Puts all in place, once every block has arrived: a new file or folder appears as a whole; in a folder that was
    /// there, each file does.
    ///
    /// # Errors
    /// [`StageError`]; what has arrived is kept.
    pub fn place(mut self) -> Result<Report, StageError> {
        if let Some(block) = self.done.missing().next() {
            return Err(StageError::Manifest(format!("block {block} has not arrived")));
        }
        if let Some((block, _)) = self.unchecked.first() {
            return Err(StageError::Manifest(format!("block {block} has not been compared")));
        }
        self.open = None;
        let mut notes = Vec::new();
        if !self.placing {
            if let Some((count, first)) = self.make_links_and_dress()? {
                let first = first.display();
                notes.push(format!("the attributes of {count} files or folders are not kept here, first of {first}"));
            }
            self.write_back()?;
            self.journal.place()?;
        }
        match (&self.tree, self.before) {
            (Tree::Placed, _) => {}
            (_, Before::Folder) => self.place_into()?,
            (_, before) => self.place_whole(before)?,
        }
        if self.before != Before::Folder || matches!(self.tree, Tree::Placed) {
            self.dress_root()?;
        }
        match rustix::fs::fsync(&self.parent) {
            // Some file systems cannot, and lose nothing by it.
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => {}
            Err(error) => return Err(error).at("write back the folder of", &self.path),
        }
        let (files, bytes) = (self.manifest.files() as u64, self.manifest.bytes());
        let report = Report { files, bytes, resumed: self.resumed, notes, path: self.writer.path() };
        self.area.remove()?;
        Ok(report)
    }

    /// Links, and what folders are given after the last thing was made in them. Returns for how many attributes were
    /// lost.
    pub(super) fn make_links_and_dress(&mut self) -> Result<Option<(u64, PathBuf)>, StageError> {
        let mut lost = self.without_attributes.take();
        let Tree::Folder(folders) = &mut self.tree else { return Ok(lost) };
        let whole = folders.root().try_clone_to_owned().at("open", &self.path)?;
        for entry in self.manifest.entries.iter().skip(1) {
            let shown = entry.below(&self.path);
            let (folder, name) = match &entry.kind {
                Kind::Link(_) | Kind::Same(_) => folders.parent(&entry.path).at("open the folder of", &shown)?,
                _ => continue,
            };
            // An earlier process may have made it.
            match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error).at("make anew", shown),
            }
            match &entry.kind {
                Kind::Link(target) => {
                    rustix::fs::symlinkat(&target[..], folder, name).at("make the link", &shown)?;
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    rustix::fs::utimensat(folder, name, &times(entry), flags).at("set the time of", shown)?;
                }
                Kind::Same(first) => {
                    let first = &self.manifest.entries[*first as usize];
                    let opened = beneath::open(whole.as_fd(), &first.path, OFlags::PATH, Mode::empty());
                    let opened = opened.at("open", first.below(&self.path))?;
                    link(&opened, whole.as_fd(), &first.path, folder, name).at("make the link", shown)?;
                }
                _ => {}
            }
        }
        if self.before == Before::Folder {
            // Files leave these folders one by one.
            return Ok(lost);
        }
        // The innermost first. The root waits: a folder that cannot be written cannot be renamed.
        for entry in self.manifest.entries.iter().skip(1).rev().filter(|entry| entry.kind == Kind::Folder) {
            let shown = entry.below(&self.path);
            if dress_folder(folders.root(), entry, &shown)? {
                lost.get_or_insert((0, shown)).0 += 1;
            }
        }
        Ok(lost)
    }

    /// All of it is on the disk afterwards.
    fn write_back(&mut self) -> Result<(), StageError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.manifest.files() <= MANY {
            let mut unreadable = false;
            for entry in self.manifest.entries.iter().filter(|entry| matches!(entry.kind, Kind::File { .. })) {
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
        rustix::fs::syncfs(self.area.folder()).at("write back the file system of", &self.path)
    }

    /// One rename.
    fn place_whole(&mut self, before: Before) -> Result<(), StageError> {
        let (from, to) = (self.area.folder(), self.parent.as_fd());
        let renamed = match before {
            Before::File => rustix::fs::renameat(from, TREE, to, &self.name[..]),
            _ => match rustix::fs::renameat_with(from, TREE, to, &self.name[..], RenameFlags::NOREPLACE) {
                // A file system that knows no flags, such as NFS.
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

    /// What the root is given once it can be renamed no more.
    fn dress_root(&self) -> Result<(), StageError> {
        let root = &self.manifest.entries[0];
        if root.kind == Kind::Folder {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let opened = beneath::open(self.parent.as_fd(), &self.name, flags, Mode::empty()).at("open", &self.path)?;
            dress(&opened, root, ROOT_BITS, &self.path)?;
        }
        Ok(())
    }

    /// Each file into a folder that was there.
    fn place_into(&mut self) -> Result<(), StageError> {
        let Tree::Folder(from) = &mut self.tree else {
            return Err(StageError::Manifest("its root is no folder".to_owned()));
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let root = beneath::open(self.parent.as_fd(), &self.name, flags, Mode::empty()).at("open", &self.path)?;
        let mut to = Folders::new(root);
        let mut made = Vec::new();
        for entry in self.manifest.entries.iter().skip(1) {
            let shown = entry.below(&self.path);
            let (folder, name) = to.parent(&entry.path).at("open the folder of", &shown)?;
            if entry.kind == Kind::Folder {
                match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700)) {
                    Ok(()) => made.push(entry),
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(error).at("make", shown),
                }
                continue;
            }
            let (before, _) = from.parent(&entry.path).at("open the folder of", &shown)?;
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
            dress_folder(to.root(), entry, &entry.below(&self.path))?;
        }
        Ok(())
    }
}

fn dress_folder(root: BorrowedFd<'_>, entry: &Entry, shown: &Path) -> Result<bool, StageError> {
    let opened = beneath::open(root, &entry.path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    dress(&opened.at("open", shown)?, entry, 0o3777, shown)
}

/// Gives a file another name. By its descriptor where that is allowed, else by its path, on which no link was found.
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
