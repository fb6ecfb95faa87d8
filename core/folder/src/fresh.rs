//! A new file that replaces another one as a whole.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::Folder;

/// Number of attempts to make a file whose name others keep taking.
const TRIES: u32 = 8;

/// A file made by this process, locked while it is open. Dropping it before it is placed removes it.
#[derive(Debug)]
pub struct Fresh {
    folder: Folder,
    name: Vec<u8>,
    pub file: File,
    placed: bool,
}

impl Fresh {
    /// Makes a file of this name. A leftover of a process that has ended, or anything else of this name, is removed
    /// first; no existing file is opened for writing.
    ///
    /// # Errors
    /// The system's; `WouldBlock`: another process is writing it.
    pub fn make(folder: &Folder, name: &[u8]) -> io::Result<Fresh> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            match rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => {
                    if let Some(fresh) = Fresh::lock(folder, name, file)? {
                        return Ok(fresh);
                    }
                }
                Err(Errno::EXIST) => remove_left(folder, name)?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::WOULDBLOCK.into())
    }

    /// Locks a new file. `None`: before that, another process has taken it for an abandoned one and removed it.
    fn lock(folder: &Folder, name: &[u8], file: OwnedFd) -> io::Result<Option<Fresh>> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if !folder.has_file(name, &file) {
            return Ok(None);
        }
        let (folder, name) = (folder.try_clone()?, name.to_vec());
        Ok(Some(Fresh { folder, name, file: file.into(), placed: false }))
    }

    /// Returns true if the file still has its first name. False: somebody has removed or replaced it, so its lock keeps
    /// no other process out.
    pub fn is_held(&self) -> bool {
        self.folder.has_file(&self.name, &self.file)
    }

    /// Renames the file within its folder, replacing any file of that name.
    ///
    /// # Errors
    /// The system's; `WouldBlock`: another process has taken the file's first name meanwhile.
    pub fn place(mut self, name: &[u8]) -> io::Result<()> {
        if !self.is_held() {
            self.placed = true;
            let problem = "somebody has removed or replaced the new file before it was complete: try again";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, problem));
        }
        rustix::fs::renameat(&self.folder, &self.name[..], &self.folder, name)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.placed && self.is_held() {
            let _ = rustix::fs::unlinkat(&self.folder, &self.name[..], AtFlags::empty());
        }
    }
}

/// Removes the file that has the name of a new file, unless a process is writing it.
fn remove_left(folder: &Folder, name: &[u8]) -> io::Result<()> {
    let found = match folder.stat(name) {
        Err(Errno::NOENT) => return Ok(()),
        found => found?,
    };
    // The lock is held until the name is gone: so a process that waits for it finds out that it has lost its file.
    let mut _held = None;
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // An unreadable file was not made here, and no process here writes it.
        if let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) {
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            if !folder.has_file(name, &file) {
                // Another process removed it first, and the name may be a new file's.
                return Ok(());
            }
            _held = Some(file);
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
    fn one_process_at_a_time_has_the_file() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let (inside, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            let held = Folder::open(folder.path()).unwrap();
            while turns.load(Ordering::SeqCst) < 2_000 {
                match Fresh::make(&held, b"lock") {
                    Ok(fresh) => {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                        turns.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        // Some processes are killed.
                        if turns.load(Ordering::SeqCst).is_multiple_of(20) {
                            let Fresh { file, .. } = &fresh;
                            flock(file, FlockOperation::Unlock).unwrap();
                            std::mem::forget(fresh);
                        }
                    }
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
                }
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(work)));
    }

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

    #[test]
    fn a_file_that_was_replaced_is_held_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let held = Folder::open(folder.path()).unwrap();
        let first = Fresh::make(&held, b"lock").unwrap();
        assert!(first.is_held());
        std::fs::remove_file(at("lock")).unwrap();
        assert!(!first.is_held(), "removed");
        let second = Fresh::make(&held, b"lock").unwrap();
        assert!(!first.is_held() && second.is_held(), "replaced");
        let error = first.place(b"whole").unwrap_err();
        assert!(error.kind() == io::ErrorKind::WouldBlock && error.to_string().contains("replaced"), "{error}");
        assert!(second.is_held() && !at("whole").exists());
    }
}
