//! A new file that takes another one's place as a whole.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::{Folder, Identity, identity_of};

/// How often a name is tried that somebody else takes at the same moment.
const TRIES: u32 = 8;

/// A file that this process has made, locked while it is open. Dropped before it has taken its place, it is removed.
#[derive(Debug)]
pub struct Fresh {
    folder: Folder,
    name: Vec<u8>,
    pub file: File,
    identity: Identity,
    placed: bool,
}

impl Fresh {
    /// Makes a file of this name, in place of one that a process has left there that is gone, and of whatever else has
    /// the name: nothing that was there is opened for writing.
    ///
    /// # Errors
    /// The system's; `WouldBlock`: another process is writing it.
    pub fn make(folder: &Folder, name: &[u8]) -> io::Result<Fresh> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            match rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => return Fresh::lock(folder, name, file),
                Err(Errno::EXIST) => remove_left(folder, name)?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    fn lock(folder: &Folder, name: &[u8], file: OwnedFd) -> io::Result<Fresh> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let identity = identity_of(&rustix::fs::fstat(&file)?);
        Ok(Fresh { folder: folder.try_clone()?, name: name.to_vec(), file: file.into(), identity, placed: false })
    }

    /// Gives the file another name in its folder, in place of what has that.
    ///
    /// # Errors
    /// The system's; `WouldBlock`: another process has taken the name meanwhile.
    pub fn place(mut self, name: &[u8]) -> io::Result<()> {
        if !self.folder.has(&self.name, self.identity) {
            self.placed = true;
            return Err(Errno::WOULDBLOCK.into());
        }
        rustix::fs::renameat(&self.folder, &self.name[..], &self.folder, name)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.placed && self.folder.has(&self.name, self.identity) {
            let _ = rustix::fs::unlinkat(&self.folder, &self.name[..], AtFlags::empty());
        }
    }
}

/// Removes what has the name of a new file, unless a process is writing it.
fn remove_left(folder: &Folder, name: &[u8]) -> io::Result<()> {
    let found = match folder.stat(name) {
        Err(Errno::NOENT) => return Ok(()),
        found => found?,
    };
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Not to be read: then it is not from here, and nobody here writes it.
        if let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) {
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        }
    }
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_was_planted_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let held = Folder::open(folder.path()).unwrap();
        std::fs::write(at("precious"), "precious").unwrap();
        let plants: [&dyn Fn(); 3] = [
            &|| symlink(at("precious"), at("part")).unwrap(),
            &|| std::fs::hard_link(at("precious"), at("part")).unwrap(),
            &|| std::fs::write(at("part"), "left by a crash").unwrap(),
        ];
        for plant in plants {
            plant();
            let mut fresh = Fresh::make(&held, b"part").unwrap();
            fresh.file.write_all(b"new").unwrap();
            assert_eq!(Fresh::make(&held, b"part").unwrap_err().kind(), io::ErrorKind::WouldBlock);
            fresh.place(b"whole").unwrap();
            assert_eq!(std::fs::read(at("whole")).unwrap(), b"new");
            assert_eq!(std::fs::read(at("precious")).unwrap(), b"precious");
            assert!(!at("part").exists());
        }
        drop(Fresh::make(&held, b"part").unwrap());
        assert!(!at("part").exists(), "what is dropped goes");
    }
}
