//! The hidden folder beside a target in which its contents grow.
//!
//! Another user who can write to the folder around it can rename it, and give its name to another folder there. So it
//! is opened once and used by its descriptor, and it is a transfer's only if its contents say so.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use folder::{Folder, identity_of};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{At, StageError};

const PREFIX: &[u8] = b".landbridge-stage-";

/// New contents, until they are put in place.
pub(crate) const TREE: &str = "tree";
pub(crate) const JOURNAL: &str = "journal";
const LOCK: &str = "lock";
/// The target's name, by which what is left of its transfers is found.
const NAME: &str = "name";
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// Whether a name is of such a folder. None is ever moved.
pub(crate) fn is_area(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The folder, for as long as this process writes there.
#[derive(Debug)]
pub(crate) struct Area {
    path: PathBuf,
    /// The folder that it is in, and its name there: what `path` means may change.
    parent: Folder,
    name: Vec<u8>,
    folder: Folder,
    /// Whether there was none before.
    fresh: bool,
    /// Its lock ends with this process, however that ends.
    lock: OwnedFd,
}

impl Area {
    /// Makes the folder, or finds the one that an earlier transfer of the same name left. What the transfer is called
    /// follows from what it moves and to where, so that the same command continues it.
    ///
    /// # Errors
    /// [`StageError::Busy`] if another process is at it; [`StageError::Conflict`] if it is no transfer's.
    pub(crate) fn open(parent: &Folder, shown: &Path, origin: &[u8], target: &[u8]) -> Result<Area, StageError> {
        /// How often it is tried while other processes make it and remove it.
        const ATTEMPTS: u32 = 50;
        const PAUSE: Duration = Duration::from_millis(10);
        let name = called(origin, target);
        let path = shown.join(OsString::from_vec(name.clone()));
        for _ in 0..ATTEMPTS {
            if let Some(area) = Area::attempt(parent, &path, &name, target)? {
                return Ok(area);
            }
            std::thread::sleep(PAUSE);
        }
        Err(StageError::Busy { path, process: String::new() })
    }

    /// `None`: another process has removed it meanwhile.
    fn attempt(parent: &Folder, path: &Path, name: &[u8], target: &[u8]) -> Result<Option<Area>, StageError> {
        let fresh = parent.make(name, Mode::from_raw_mode(0o700)).at("make", path)?;
        let folder = match parent.enter(name) {
            Err(Errno::NOENT) => return Ok(None),
            folder => folder.at("open", path)?,
        };
        private(&folder, path)?;
        // Nothing is made in a folder that is not a transfer's; one whose lock is held may only look as if it were not.
        let is_ours = is_of(&folder, target).at("list", path)?;
        let (flags, mode) = if is_ours { (OFlags::CREATE, PRIVATE) } else { (OFlags::empty(), Mode::empty()) };
        let lock = match folder.beneath(LOCK.as_bytes(), OFlags::RDWR | flags, mode) {
            Err(Errno::NOENT) if is_ours || is_removed(&folder).at("examine", path)? => return Ok(None),
            // No link, and no folder, is a lock of ours.
            Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR) => return Err(foreign(path)),
            lock => held(&folder, lock.at("open", path.join(LOCK))?, path)?,
        };
        if !is_locked_by(&folder, &lock) || !folder.is_at(parent, name) {
            return Ok(None);
        }
        if !is_of(&folder, target).at("list", path)? {
            return Err(foreign(path));
        }
        let parent = parent.try_clone().at("open the folder of", path)?;
        let area = Area { path: path.to_owned(), parent, name: name.to_vec(), folder, fresh, lock };
        match area.sign(target) {
            Ok(()) => Ok(Some(area)),
            Err(error) => {
                // Nothing is in it yet.
                if fresh {
                    let _ = area.remove();
                }
                Err(error)
            }
        }
    }

    /// Writes who has locked it, and for which target.
    fn sign(&self, target: &[u8]) -> Result<(), StageError> {
        let process = format!("{} of {}\n", std::process::id(), rustix::system::uname().nodename().to_string_lossy());
        rustix::fs::ftruncate(&self.lock, 0).at("write", self.path.join(LOCK))?;
        rustix::io::pwrite(&self.lock, process.as_bytes(), 0).at("write", self.path.join(LOCK))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let named = self.folder.beneath(NAME.as_bytes(), flags, PRIVATE).at("open", self.path.join(NAME))?;
        rustix::io::pwrite(&named, target, 0).at("write", self.path.join(NAME)).map(drop)
    }

    /// What a transfer to this target has left under this name, by this user, and its lock if it has one. `None`: the
    /// name is of something else.
    ///
    /// # Errors
    /// [`StageError::Busy`]: a process is at it.
    pub(crate) fn left(
        parent: &Folder,
        shown: &Path,
        name: &[u8],
        target: &[u8],
    ) -> Result<Option<(Folder, Option<OwnedFd>)>, StageError> {
        let path = shown.join(OsString::from_vec(name.to_vec()));
        let Some(folder) = is_area(name).then(|| parent.enter(name).ok()).flatten() else { return Ok(None) };
        if private(&folder, &path).is_err() || read(&folder, NAME).ok().as_deref() != Some(target) {
            return Ok(None);
        }
        match folder.beneath(LOCK.as_bytes(), OFlags::RDWR, Mode::empty()) {
            Ok(lock) => held(&folder, lock, &path).map(|lock| Some((folder, Some(lock)))),
            Err(_) => Ok(Some((folder, None))),
        }
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there was none before.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Removes it with all that is in it. Returns whether it is gone: somebody may have renamed it, and then it is
    /// empty.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn remove(self) -> Result<bool, StageError> {
        remove(&self.folder, &self.parent, &self.name).at("remove", &self.path)
    }

    /// Removes the contents that it has so far.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn clear(&self) -> Result<(), StageError> {
        self.folder.remove(TREE.as_bytes()).at("remove", self.path.join(TREE))
    }

    /// Lets this user change all folders of the contents: they may have permissions by which nobody can.
    pub(crate) fn unseal(&self) {
        if let Ok(tree) = self.folder.enter(TREE.as_bytes()) {
            unseal(&tree);
        }
    }
}

/// What the folder of a transfer is called.
fn called(origin: &[u8], target: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    for part in [origin, target] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    [PREFIX, &hasher.finalize().to_hex().as_bytes()[..16]].concat()
}

/// Nobody else may write there.
fn private(folder: &Folder, path: &Path) -> Result<(), StageError> {
    let found = folder.examine().at("examine", path)?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
        let problem = "this folder of a transfer belongs to somebody else, or others may write there: remove it".into();
        return Err(StageError::Conflict { path: path.to_owned(), problem });
    }
    Ok(())
}

/// Whether a folder is of transfers to this target. A process that was killed at its beginning may not have written all
/// of what says so, and nothing else then.
fn is_of(folder: &Folder, target: &[u8]) -> rustix::io::Result<bool> {
    let name = match read(folder, NAME) {
        Ok(name) if name == target => return Ok(true),
        Ok(name) => name,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(_) => return Ok(false),
    };
    let begun = |found: &Vec<u8>| matches!(&found[..], b"lock" | b"name");
    Ok(target.starts_with(&name) && folder.names()?.iter().all(begun))
}

fn read(folder: &Folder, name: &str) -> io::Result<Vec<u8>> {
    /// Longer than a name can be.
    const MOST: u64 = 4096;
    let file = folder.beneath(name.as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Removes the folder of a transfer with all that is in it. The caller holds its lock, or it has none. Returns whether
/// it is gone: somebody may have renamed it, and then it is empty.
///
/// # Errors
/// The system's.
pub(crate) fn remove(folder: &Folder, parent: &Folder, name: &[u8]) -> io::Result<bool> {
    // First what says what the rest is: a process that is killed meanwhile must not leave half of what it says.
    folder.remove(JOURNAL.as_bytes())?;
    // The name says whose the rest is, and while the lock is there nobody else writes here.
    for other in folder.names()? {
        if other != LOCK.as_bytes() && other != NAME.as_bytes() {
            folder.remove(&other)?;
        }
    }
    folder.remove(NAME.as_bytes())?;
    folder.remove(LOCK.as_bytes())?;
    if !folder.is_at(parent, name) {
        // Another transfer may have used it since, and removed it.
        return Ok(is_removed(folder)?);
    }
    match parent.remove_empty(name, folder) {
        // Another transfer has begun in it.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(true),
        removed => removed.map(|()| true),
    }
}

fn foreign(path: &Path) -> StageError {
    let problem = "it has the name of a transfer's folder and is none: somebody may have renamed it. Move it away";
    StageError::Conflict { path: path.to_owned(), problem: problem.to_owned() }
}

fn is_removed(folder: &Folder) -> rustix::io::Result<bool> {
    folder.examine().map(|found| found.st_nlink == 0)
}

/// Whether this is the folder's lock: the process that held it before may have removed it.
fn is_locked_by(folder: &Folder, lock: &OwnedFd) -> bool {
    rustix::fs::fstat(lock).is_ok_and(|own| folder.has(LOCK.as_bytes(), identity_of(&own)))
}

/// The lock, held by this process.
fn held(folder: &Folder, lock: OwnedFd, path: &Path) -> Result<OwnedFd, StageError> {
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => {
            let process = String::from_utf8_lossy(&read(folder, LOCK).unwrap_or_default()).trim().to_owned();
            Err(StageError::Busy { path: path.to_owned(), process })
        }
        Err(error) => Err(error).at("lock", path.join(LOCK)),
    }
}

/// Best effort: what follows says what could not be changed.
fn unseal(folder: &Folder) {
    let _ = folder.unseal();
    for name in folder.names().unwrap_or_default() {
        let is_folder =
            folder.stat(&name).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        if let (true, Ok(inner)) = (is_folder, folder.enter(&name)) {
            unseal(&inner);
        }
    }
}

/// Whether a name can be a target's.
pub(crate) fn name_of_target(path: &Path) -> Result<&[u8], StageError> {
    let refused = |problem: &str| StageError::Conflict { path: path.to_owned(), problem: problem.to_owned() };
    let name = path.file_name().ok_or_else(|| refused("a target needs a name of its own"))?.as_bytes();
    if is_area(name) {
        return Err(refused("names like this are of transfers that are not complete"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// Another user who can write to the folder around can give any folder in it the name that a transfer will use.
    #[test]
    fn a_folder_with_a_transfers_name_that_is_none_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let parent = Folder::open(folder.path()).unwrap();
        let precious = folder.path().join(OsString::from_vec(called(b"from", b"to")));
        std::fs::create_dir(&precious).unwrap();
        rustix::fs::chmod(&precious, Mode::from_raw_mode(0o700)).unwrap();
        for name in ["tree", "journal", "lock"] {
            std::fs::write(precious.join(name), "precious").unwrap();
        }
        let error = Area::open(&parent, folder.path(), b"from", b"to").unwrap_err().to_string();
        assert!(error.contains("somebody may have renamed it"), "{error}");
        assert!(
            ["tree", "journal", "lock"].iter().all(|name| std::fs::read(precious.join(name)).unwrap() == b"precious")
        );
        assert!(!precious.join("name").exists());
    }

    #[test]
    fn a_folder_that_is_exchanged_for_another_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let parent = Folder::open(folder.path()).unwrap();
        let area = Area::open(&parent, folder.path(), b"from", b"to").unwrap();
        let (path, aside) = (area.path().to_owned(), folder.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("precious"), "precious").unwrap();
        assert!(!area.remove().unwrap());
        assert_eq!(std::fs::read(path.join("precious")).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(aside).unwrap().count(), 0, "what was the transfer's is gone");
    }

    /// A process finds the folder of another that is making, using or removing it.
    #[test]
    fn processes_that_meet_at_it_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let inside = std::sync::atomic::AtomicU32::new(0);
        let turns: u32 = std::thread::scope(|scope| {
            let transfer = || {
                let parent = Folder::open(folder.path()).unwrap();
                let mut turns = 0;
                for _ in 0..300 {
                    match Area::open(&parent, folder.path(), b"from", b"to") {
                        Ok(area) => {
                            assert_eq!(inside.fetch_add(1, Relaxed), 0, "one at a time");
                            for name in [JOURNAL, TREE] {
                                std::fs::write(area.path().join(name), "").unwrap();
                            }
                            assert_eq!(inside.fetch_sub(1, Relaxed), 1, "one at a time");
                            assert!(area.remove().unwrap());
                            turns += 1;
                        }
                        Err(StageError::Busy { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                turns
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(transfer)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(turns > 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn one_that_was_only_begun_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let parent = Folder::open(folder.path()).unwrap();
        for names in [&[][..], &["lock"], &["lock", "name"]] {
            let area = folder.path().join(OsString::from_vec(called(b"from", b"to")));
            std::fs::create_dir(&area).unwrap();
            rustix::fs::chmod(&area, Mode::from_raw_mode(0o700)).unwrap();
            names.iter().for_each(|name| std::fs::write(area.join(name), "").unwrap());
            assert!(Area::open(&parent, folder.path(), b"from", b"to").unwrap().remove().unwrap());
        }
    }
}
