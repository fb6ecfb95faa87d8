//! Folders held open. Another user who can write to a folder can rename what is in it, or put a link there, between two
//! system calls that use the same path. So a path below such a folder is resolved once, to a [`Folder`], and everything
//! else is done relative to its descriptor: what was checked is what is used.
//!
//! - [`Folder::open`], [`Folder::of`] and [`Named::resolve`] lead from a path that a user typed to a descriptor.
//! - [`Folder::beneath`] opens what is below a folder and never leaves it.
//! - [`Folder::remove`] removes a file, or a folder with all that is in it, and compares identities.
//! - [`Folder::make_private`] leads to a folder into which nobody else can write.
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
pub use text::text_of;
pub use walk::Named;

/// A file or folder of this machine, whatever its name is: device and inode.
pub type Identity = (u64, u64);

/// The identity of what was examined.
pub fn identity_of(found: &Stat) -> Identity {
    (found.st_dev, found.st_ino)
}

/// An open folder.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// The folder at a path. Links on the way and at its end are followed if this user, root, or the owner of the
    /// folder around them has made them; for root, only root's are.
    ///
    /// # Errors
    /// The system's, or a link of somebody else's is on the way.
    pub fn open(path: &Path) -> io::Result<Folder> {
        walk::folder(path, None)
    }

    /// The same, and makes the folders that are missing.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn make_all(path: &Path, mode: Mode) -> io::Result<Folder> {
        walk::folder(path, Some(mode))
    }

    /// The folder that a path is in, and the path's name there. A link at its end is not followed.
    ///
    /// # Errors
    /// As [`Folder::open`]; a path without a name is refused.
    pub fn of(path: &Path) -> io::Result<Named> {
        walk::named(path, None)
    }

    /// As [`Folder::of`], where nobody but this user and root can rename anything on the way: what the path means now,
    /// it meant before.
    ///
    /// # Errors
    /// As [`Folder::of`]; `PermissionDenied`, which names the folder in which others can rename something.
    pub fn of_unshared(path: &Path) -> io::Result<Named> {
        walk::unshared(path)
    }

    /// As [`Folder::of`], and makes the folders that are missing.
    ///
    /// # Errors
    /// As [`Folder::of`].
    pub fn make_of(path: &Path, mode: Mode) -> io::Result<Named> {
        walk::named(path, Some(mode))
    }

    /// Opens what is below this folder; an empty path is the folder itself. No link is followed.
    ///
    /// # Errors
    /// The system's; `ELOOP` for a link.
    pub fn beneath(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        beneath::open(self.0.as_fd(), path, flags, mode)
    }

    /// A folder below this one. No link is followed.
    ///
    /// # Errors
    /// The system's; `ELOOP` or `ENOTDIR` for a link.
    pub fn enter(&self, path: &[u8]) -> Result<Folder> {
        self.beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map(Folder)
    }

    /// What has this name here. No link is followed.
    ///
    /// # Errors
    /// The system's.
    pub fn stat(&self, name: &[u8]) -> Result<Stat> {
        rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Compares what has this name in the folder with a file or folder known by its identity. It follows no link.
    pub fn has(&self, name: &[u8], identity: Identity) -> bool {
        self.stat(name).is_ok_and(|found| identity_of(&found) == identity)
    }

    /// Makes a folder. Returns whether it is new.
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

    /// This folder about itself.
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

    /// Whether this is the folder that has this name in `parent`.
    pub fn is_at(&self, parent: &Folder, name: &[u8]) -> bool {
        self.identity().is_ok_and(|own| parent.has(name, own))
    }

    /// A descriptor for calls that list, change or write back the folder itself.
    ///
    /// # Errors
    /// The system's: this user may not read it.
    pub fn readable(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.0, ".", flags, Mode::empty())
    }

    /// # Errors
    /// There is no descriptor left.
    pub fn try_clone(&self) -> io::Result<Folder> {
        self.0.try_clone().map(Folder)
    }

    /// The folder that this one is in.
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
    /// The descriptor of a folder.
    fn from(fd: OwnedFd) -> Folder {
        Folder(fd)
    }
}

impl From<Folder> for OwnedFd {
    fn from(folder: Folder) -> OwnedFd {
        folder.0
    }
}
