//! The hidden folder beside a target in which its contents grow.
//!
//! Another user who can write to the parent folder can rename it and give its name to another folder. So the area is
//! opened once and used by its descriptor, and its contents must identify it as a transfer's folder.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use folder::Folder;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{At, StageError};

const PREFIX: &[u8] = b".landbridge-stage-";

/// New contents, before they are put in place.
pub(crate) const TREE: &str = "tree";
pub(crate) const JOURNAL: &str = "journal";
const LOCK: &str = "lock";
/// The target's name. It identifies the leftovers of the target's transfers.
const NAME: &str = "name";
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// Repeats an attempt on a folder of a transfer while another process holds its lock, for at most `patience`.
///
/// # Errors
/// Those of the last attempt; [`StageError::Busy`] if the lock is still held.
pub(crate) fn patiently<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T, StageError>,
) -> Result<T, StageError> {
    /// Time between two attempts.
    const LOOK: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + patience;
    loop {
        match attempt() {
            Err(StageError::Busy { .. }) if Instant::now() < deadline => std::thread::sleep(LOOK),
            result => return result,
        }
    }
}

/// Returns true for the name of a transfer's hidden folder. Such folders are never moved.
pub(crate) fn is_area(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The area, while this process writes there.
#[derive(Debug)]
pub(crate) struct Area {
    path: PathBuf,
    /// The parent folder, and the area's name in it: `path` may come to mean another folder.
    parent: Folder,
    name: Vec<u8>,
    folder: Folder,
    /// True if this process created the folder.
    fresh: bool,
    /// The kernel releases the lock when this process ends for any reason.
    lock: OwnedFd,
}

impl Area {
    /// Creates the folder, or reopens the one that an earlier transfer of the same name left. The name is derived from
    /// the source and the target, so the same command continues its transfer.
    ///
    /// # Errors
    /// [`StageError::Busy`] if another process holds it; [`StageError::Conflict`] if it is not a transfer's folder.
    pub(crate) fn open(parent: &Folder, shown: &Path, origin: &[u8], target: &[u8]) -> Result<Area, StageError> {
        /// Number of attempts while other processes create and remove the folder.
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
        // Create nothing in a folder that is not a transfer's. A folder whose lock is held may only look foreign for a
        // moment.
        let is_ours = is_of(&folder, target).at("list", path)?;
        let (flags, mode) = if is_ours { (OFlags::CREATE, PRIVATE) } else { (OFlags::empty(), Mode::empty()) };
        let lock = match folder.beneath(LOCK.as_bytes(), OFlags::RDWR | flags, mode) {
            Err(Errno::NOENT) if is_ours || is_removed(&folder).at("examine", path)? => return Ok(None),
            // Our lock is never a link or a folder.
            Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR) => return Err(foreign(path)),
            lock => held(&folder, lock.at("open", path.join(LOCK))?, path)?,
        };
        if !folder.has_file(LOCK.as_bytes(), &lock) || !folder.is_at(parent, name) {
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
                // The new folder is still empty.
                if fresh {
                    let _ = area.remove();
                }
                Err(error)
            }
        }
    }

    /// Records the process that holds the lock, and the target.
    fn sign(&self, target: &[u8]) -> Result<(), StageError> {
        let process = format!("{} of {}\n", std::process::id(), rustix::system::uname().nodename().to_string_lossy());
        rustix::fs::ftruncate(&self.lock, 0).at("write", self.path.join(LOCK))?;
        rustix::io::pwrite(&self.lock, process.as_bytes(), 0).at("write", self.path.join(LOCK))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let named = self.folder.beneath(NAME.as_bytes(), flags, PRIVATE).at("open", self.path.join(NAME))?;
        rustix::io::pwrite(&named, target, 0).at("write", self.path.join(NAME)).map(drop)
    }

    /// Finds the leftovers of this user's transfer to this target under this name, and takes their lock if they have
    /// one. `None`: the name belongs to something else.
    ///
    /// # Errors
    /// [`StageError::Busy`]: a process is using it.
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

    /// Returns true if this process created the folder.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Checks that the lock still keeps other transfers out.
    ///
    /// # Errors
    /// [`StageError::TakenOver`]: somebody has removed or replaced it.
    pub(crate) fn check(&self) -> Result<(), StageError> {
        match self.folder.has_file(LOCK.as_bytes(), &self.lock) {
            true => Ok(()),
            false => Err(StageError::TakenOver { path: self.path.clone() }),
        }
    }

    /// The reason for an error in the area. If another transfer has taken it over, that transfer has moved or removed
    /// the files.
    pub(crate) fn reason(&self, error: StageError) -> StageError {
        self.check().err().unwrap_or(error)
    }

    /// Removes the area with its contents. Returns true if it is gone, false if somebody has renamed it; its contents
    /// are removed in both cases.
    ///
    /// # Errors
    /// [`StageError::TakenOver`], and the contents stay; system errors.
    pub(crate) fn remove(self) -> Result<bool, StageError> {
        self.check()?;
        remove(&self.folder, &self.parent, &self.name).at("remove", &self.path)
    }

    /// Removes the contents written so far.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn clear(&self) -> Result<(), StageError> {
        self.folder.remove(TREE.as_bytes()).at("remove", self.path.join(TREE))
    }

    /// Makes all folders of the contents writable for this user: their permissions may deny it.
    pub(crate) fn unseal(&self) {
        if let Ok(tree) = self.folder.enter(TREE.as_bytes()) {
            unseal(&tree);
        }
    }
}

/// The name of a transfer's folder.
fn called(origin: &[u8], target: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    for part in [origin, target] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    [PREFIX, &hasher.finalize().to_hex().as_bytes()[..16]].concat()
}

/// Checks that the folder is this user's and closed to all others.
fn private(folder: &Folder, path: &Path) -> Result<(), StageError> {
    let found = folder.examine().at("examine", path)?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
        let problem = "this folder of a transfer belongs to somebody else, or others may write there: remove it".into();
        return Err(StageError::Conflict { path: path.to_owned(), problem });
    }
    Ok(())
}

/// Returns true if a folder belongs to transfers to this target. A process killed during setup may have written only
/// part of the target's name, and then the folder holds nothing but the lock and the name.
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
    /// Longer than any file name.
    const MOST: u64 = 4096;
    let file = folder.beneath(name.as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Removes a transfer's folder with its contents. The caller holds its lock, or the folder has none. Returns true if it
/// is gone, false if somebody has renamed it; its contents are removed in both cases.
///
/// # Errors
/// System errors.
pub(crate) fn remove(folder: &Folder, parent: &Folder, name: &[u8]) -> io::Result<bool> {
    // Remove the journal first: if this process is killed halfway, the journal must not list contents that are gone.
    folder.remove(JOURNAL.as_bytes())?;
    // The name marks the rest as ours, and the lock keeps other transfers out until the end.
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
        // Another transfer has begun in it, or has used it since and removed it; a third one may have the name now.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty || is_removed(folder)? => Ok(true),
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

/// Takes the lock for this process.
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

/// Best effort: the removal that follows reports folders that could not be changed.
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

/// The name of a target at this path. Rejects names that a target cannot have.
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

    /// Another user who can write to the parent folder can give any folder in it the name of a future transfer's area.
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

    /// A process may find the folder while another creates, uses or removes it.
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
