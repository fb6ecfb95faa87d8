//! Opening files below a folder without leaving it: no symbolic link is followed, neither on the way nor at the end.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

use crate::walk::WAY;

/// True if the kernel has no `openat2` (before Linux 5.6, or forbidden in a container).
static WITHOUT: AtomicBool = AtomicBool::new(false);

/// Opens `path` below `root`; an empty path means `root` itself, which must then be a folder.
///
/// # Errors
/// The system's; `ELOOP` for a symbolic link.
pub(crate) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let whole = if path.is_empty() { b"." } else { path };
    if !WITHOUT.load(Ordering::Relaxed) {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(root, whole, flags, mode, resolve) {
            Err(Errno::NOSYS | Errno::PERM) => WITHOUT.store(true, Ordering::Relaxed),
            // The kernel noticed a rename and cannot exclude that the path left the root.
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    by_steps(root, whole, flags, mode)
}

fn by_steps(root: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let mut parts = path.split(|byte| *byte == b'/').peekable();
    let mut at = rustix::fs::openat(root, ".", WAY, Mode::empty())?;
    while let Some(part) = parts.next() {
        if part == b".." || part.is_empty() {
            return Err(Errno::XDEV);
        }
        if parts.peek().is_none() {
            return rustix::fs::openat(&at, part, flags, mode);
        }
        at = rustix::fs::openat(&at, part, WAY, Mode::empty())?;
    }
    Err(Errno::NOENT)
}

/// A path below an open file or folder, for calls that take no descriptor. An empty name means the open file or folder
/// itself.
pub fn through(open: impl AsFd, name: &[u8]) -> PathBuf {
    let own = PathBuf::from(format!("/proc/self/fd/{}", open.as_fd().as_raw_fd()));
    if name.is_empty() { own } else { own.join(OsStr::from_bytes(name)) }
}

/// Folders below a root. The last one used stays open, because neighbours in a manifest share it.
#[derive(Debug)]
pub struct Folders {
    root: OwnedFd,
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl Folders {
    pub fn new(root: OwnedFd) -> Folders {
        Folders { root, last: None }
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a file or folder below the root.
    ///
    /// # Errors
    /// The system's; `ELOOP` for a link.
    pub fn open(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        open(self.root.as_fd(), path, flags, mode)
    }

    /// The folder that contains `path`, which is not empty, and its name there.
    ///
    /// # Errors
    /// The system's.
    pub fn parent<'a>(&mut self, path: &'a [u8]) -> Result<(BorrowedFd<'_>, &'a [u8])> {
        let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else {
            return Ok((self.root.as_fd(), path));
        };
        let (folder, name) = (&path[..slash], &path[slash + 1..]);
        if self.last.as_ref().is_none_or(|(last, _)| last != folder) {
            self.last = None;
            let opened = open(self.root.as_fd(), folder, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
            self.last = Some((folder.to_vec(), opened));
        }
        match &self.last {
            Some((_, opened)) => Ok((opened.as_fd(), name)),
            None => Err(Errno::NOENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let secret = tempfile::tempdir().unwrap();
        std::fs::write(secret.path().join("key"), "secret").unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("a/b/file"), "x").unwrap();
        symlink(secret.path(), folder.path().join("a/out")).unwrap();
        symlink("b", folder.path().join("a/in")).unwrap();
        symlink(secret.path().join("key"), folder.path().join("a/key")).unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        for opener in [open, by_steps] {
            let tried =
                |path: &[u8]| opener(root.as_fd(), path, OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty()).err();
            assert_eq!(tried(b"a/b/file"), None);
            assert!(matches!(tried(b"a/out/key"), Some(Errno::LOOP | Errno::NOTDIR)));
            assert!(matches!(tried(b"a/in/file"), Some(Errno::LOOP | Errno::NOTDIR)));
            assert_eq!(tried(b"a/key"), Some(Errno::LOOP));
            assert_eq!(tried(b"../x"), Some(Errno::XDEV));
            assert!(tried(b"a/../../x").is_some());
        }
    }
}
