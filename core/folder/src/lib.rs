//! Folders held open. Another user who can write to a folder can rename its entries, or put a link there, between two
//! system calls that use the same path. So a path below such a folder is resolved once, to a [`Folder`], and all
//! further work is relative to its descriptor: the checked file is the one used.
//!
//! - [`Folder::open`], [`Folder::of`] and [`Named::resolve`] turn a path that a user typed into a descriptor.
//! - [`Folder::beneath`] opens a file below a folder and never leaves the folder.
//! - [`Folder::remove`] removes a file, or a folder with its contents, and compares identities.
//! - [`Folder::make_private`] opens or makes a folder into which nobody else can write.
//! - [`Fresh`] is a new file beside the one that it replaces.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod beneath;
mod fresh;
mod private;
mod removal;
mod text;
mod walk;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};
use rustix::io::{Errno, Result};

pub use beneath::{Folders, through};
pub use fresh::Fresh;
pub use text::{bytes_of, open_named, text_of};
pub use walk::Named;

/// The identity of a file or folder of this machine, independent of its name: device and inode.
pub type Identity = (u64, u64);

/// The identity of an examined file or folder.
pub fn identity_of(found: &Stat) -> Identity {
    (found.st_dev, found.st_ino)
}

/// An open folder.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens the folder at a path. A link, on the way or at the end, is followed if it belongs to this user, to root,
    /// or to the owner of the folder that contains it. If this user is root, only root's links are followed.
    ///
    /// # Errors
    /// The system's, or another user's link is on the way.
    pub fn open(path: &Path) -> io::Result<Folder> {
        walk::folder(path, None)
    }

    /// As [`Folder::open`], and makes missing folders.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn make_all(path: &Path, mode: Mode) -> io::Result<Folder> {
        walk::folder(path, Some(mode))
    }

    /// The folder that contains a path, and the path's name there. A link at the end is not followed.
    ///
    /// # Errors
    /// As [`Folder::open`]; a path without a name is refused.
    pub fn of(path: &Path) -> io::Result<Named> {
        walk::named(path, None)
    }

    /// As [`Folder::of`], but refuses a path through a folder in which others than this user and root can rename
    /// entries. So nobody else can have changed the meaning of the path.
    ///
    /// # Errors
    /// As [`Folder::of`]; `PermissionDenied`, which names the folder in which others can rename entries.
    pub fn of_unshared(path: &Path) -> io::Result<Named> {
        walk::unshared(path)
    }

    /// As [`Folder::of`], and makes missing folders.
    ///
    /// # Errors
    /// As [`Folder::of`].
    pub fn make_of(path: &Path, mode: Mode) -> io::Result<Named> {
        walk::named(path, Some(mode))
    }

    /// Opens a file or folder below this one; an empty path means this folder itself. No link is followed.
    ///
    /// # Errors
    /// The system's; `ELOOP` for a link.
    pub fn beneath(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        beneath::open(self.0.as_fd(), path, flags, mode)
    }

    /// Opens a folder below this one. No link is followed.
    ///
    /// # Errors
    /// The system's; `ELOOP` or `ENOTDIR` for a link.
    pub fn enter(&self, path: &[u8]) -> Result<Folder> {
        self.beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map(Folder)
    }

    /// Examines the entry of this name. No link is followed.
    ///
    /// # Errors
    /// The system's.
    pub fn stat(&self, name: &[u8]) -> Result<Stat> {
        rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns true if the entry of this name has this identity. No link is followed.
    pub fn has(&self, name: &[u8], identity: Identity) -> bool {
        self.stat(name).is_ok_and(|found| identity_of(&found) == identity)
    }

    /// Returns true if the entry of this name is this open file. A process that locks a file and then works under the
    /// lock compares before each change that another holder must not lose: a lock file that somebody has removed or
    /// replaced keeps no other process out. While the file is open, the system gives its identity to no other file.
    pub fn has_file(&self, name: &[u8], file: impl AsFd) -> bool {
        rustix::fs::fstat(file).is_ok_and(|own| self.has(name, identity_of(&own)))
    }

    /// Makes a folder. Returns false if an entry of this name exists already.
    ///
    /// # Errors
    /// The system's.
    pub fn make(&self, name: &[u8], mode: Mode) -> Result<bool> {
        match rustix::fs::mkdirat(&self.0, name, mode) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names in this folder.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for found in Dir::read_from(self.readable()?)? {
            let name = found?.file_name().to_bytes().to_vec();
            if !matches!(&name[..], b"." | b"..") {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Examines this folder.
    ///
    /// # Errors
    /// The system's.
    pub fn examine(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.0)
    }

    /// # Errors
    /// The system's.
    pub fn identity(&self) -> Result<Identity> {
        self.examine().map(|found| identity_of(&found))
    }

    /// Returns true if the entry of this name in `parent` is this folder.
    pub fn is_at(&self, parent: &Folder, name: &[u8]) -> bool {
        self.identity().is_ok_and(|own| parent.has(name, own))
    }

    /// A descriptor for calls that list, change or sync the folder itself.
    ///
    /// # Errors
    /// The system's: this user may not read it.
    pub fn readable(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.0, ".", flags, Mode::empty())
    }

    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<Folder> {
        self.0.try_clone().map(Folder)
    }

    /// The folder that contains this one.
    ///
    /// # Errors
    /// The system's.
    pub fn above(&self) -> Result<Folder> {
        rustix::fs::openat(&self.0, "..", walk::WAY, Mode::empty()).map(Folder)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Folder {
    /// `fd` must be the descriptor of a folder.
    fn from(fd: OwnedFd) -> Folder {
        Folder(fd)
    }
}

impl From<Folder> for OwnedFd {
    fn from(folder: Folder) -> OwnedFd {
        folder.0
    }
}
