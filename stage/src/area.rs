//! The hidden folder beside a target in which its contents grow.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{At, StageError};

const PREFIX: &[u8] = b".landbridge-stage-";

/// New contents, until they are put in place.
pub(crate) const TREE: &str = "tree";
pub(crate) const JOURNAL: &str = "journal";
const LOCK: &str = "lock";
/// The target's name, by which what is left of its transfers is found.
const NAME: &str = "name";

/// Whether a name is of such a folder. None is ever moved.
pub(crate) fn is_area(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The folder, for as long as this process writes there.
#[derive(Debug)]
pub(crate) struct Area {
    path: PathBuf,
    folder: OwnedFd,
    /// Its lock ends with this process, however that ends.
    _lock: OwnedFd,
}

impl Area {
    /// Makes the folder, or finds the one that an earlier transfer of the same name left. What the transfer is called
    /// follows from what it moves and to where, so that the same command continues it.
    ///
    /// # Errors
    /// [`StageError::Busy`] if another process is at it.
    pub(crate) fn open(parent: BorrowedFd<'_>, shown: &Path, origin: &[u8], target: &[u8]) -> Result<Area, StageError> {
        let mut hasher = blake3::Hasher::new();
        for part in [origin, target] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        let name = [PREFIX, &hasher.finalize().to_hex().as_bytes()[..16]].concat();
        let path = shown.join(OsString::from_vec(name.clone()));
        let private = Mode::from_raw_mode(0o700);
        match rustix::fs::mkdirat(parent, &name, private) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).at("make", path),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(parent, &name, flags, Mode::empty()).at("open", &path)?;
        let found = rustix::fs::fstat(&folder).at("examine", &path)?;
        if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            let problem =
                "this folder of a transfer belongs to somebody else, or others may write there: remove it".into();
            return Err(StageError::Conflict { path, problem });
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&folder, LOCK, flags, Mode::from_raw_mode(0o600)).at("open", path.join(LOCK))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let process = std::fs::read_to_string(path.join(LOCK)).unwrap_or_default();
                return Err(StageError::Busy { path, process: process.trim().to_owned() });
            }
            Err(error) => return Err(error).at("lock", path.join(LOCK)),
        }
        let process = format!("{} of {}\n", std::process::id(), rustix::system::uname().nodename().to_string_lossy());
        rustix::fs::ftruncate(&lock, 0).at("write", path.join(LOCK))?;
        rustix::io::pwrite(&lock, process.as_bytes(), 0).at("write", path.join(LOCK))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let named = rustix::fs::openat(&folder, NAME, flags, Mode::from_raw_mode(0o600)).at("open", path.join(NAME))?;
        rustix::io::pwrite(&named, target, 0).at("write", path.join(NAME))?;
        Ok(Area { path, folder, _lock: lock })
    }

    /// Whether a folder is that of a transfer to this target, by this user, and no process is at it.
    ///
    /// # Errors
    /// It is one, and a process is.
    pub(crate) fn is_left(path: &Path, target: &[u8]) -> Result<bool, StageError> {
        let own = |found: std::fs::Metadata| {
            use std::os::unix::fs::MetadataExt;
            found.is_dir() && found.uid() == rustix::process::geteuid().as_raw()
        };
        let name = path.file_name().is_some_and(|name| is_area(name.as_bytes()));
        if !name || !std::fs::symlink_metadata(path).is_ok_and(own) {
            return Ok(false);
        }
        if std::fs::read(path.join(NAME)).ok().as_deref() != Some(target) {
            return Ok(false);
        }
        let Ok(lock) = std::fs::File::open(path.join(LOCK)) else { return Ok(true) };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let process = std::fs::read_to_string(path.join(LOCK)).unwrap_or_default();
                Err(StageError::Busy { path: path.to_owned(), process: process.trim().to_owned() })
            }
            other => other.map(|()| true).at("lock", path.join(LOCK)),
        }
    }

    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with all that is in it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn remove(self) -> Result<(), StageError> {
        std::fs::remove_dir_all(&self.path).at("remove", &self.path)
    }

    /// Removes the contents that it has so far.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn clear(&self) -> Result<(), StageError> {
        let tree = self.path.join(TREE);
        let removed = match std::fs::symlink_metadata(&tree) {
            Ok(found) if found.is_dir() => std::fs::remove_dir_all(&tree),
            Ok(_) => std::fs::remove_file(&tree),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        removed.at("remove", tree)
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
