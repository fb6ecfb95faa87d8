//! The hidden folder beside a target in which its contents grow.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath::through;
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
    /// The folder that it is in, and its name there: what `path` means may change.
    parent: OwnedFd,
    name: Vec<u8>,
    folder: OwnedFd,
    /// Whether there was none before.
    fresh: bool,
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
        let name = called(origin, target);
        let path = shown.join(OsString::from_vec(name.clone()));
        let private = Mode::from_raw_mode(0o700);
        let fresh = match rustix::fs::mkdirat(parent, &name, private) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error).at("make", path),
        };
        let parent = parent.try_clone_to_owned().at("open the folder of", &path)?;
        let opened = Area::enter(parent, name, path, target, fresh);
        opened.map_err(|(parent, name, error)| {
            // Nothing is in it yet, and nobody else is at it.
            if fresh && !matches!(error, StageError::Busy { .. }) {
                let _ = std::fs::remove_dir_all(through(parent.as_fd(), &name));
            }
            error
        })
    }

    fn enter(
        parent: OwnedFd,
        name: Vec<u8>,
        path: PathBuf,
        target: &[u8],
        fresh: bool,
    ) -> Result<Area, (OwnedFd, Vec<u8>, StageError)> {
        match Area::locked(parent.as_fd(), &name, &path, target) {
            Ok((folder, lock)) => Ok(Area { path, parent, name, folder, fresh, _lock: lock }),
            Err(error) => Err((parent, name, error)),
        }
    }

    /// The folder, and its lock.
    fn locked(
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: &Path,
        target: &[u8],
    ) -> Result<(OwnedFd, OwnedFd), StageError> {
        let path = path.to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(parent, name, flags, Mode::empty()).at("open", &path)?;
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
        Ok((folder, lock))
    }

    /// Whether a transfer from `origin` to this target has put all in place and was ended before it forgot that.
    pub(crate) fn has_placed(parent: BorrowedFd<'_>, origin: &[u8], target: &[u8]) -> bool {
        let area = called(origin, target);
        let find = |name: &str| {
            let path = [&area, &b"/"[..], name.as_bytes()].concat();
            rustix::fs::statat(parent, path, AtFlags::SYMLINK_NOFOLLOW).map(|_| ())
        };
        find(JOURNAL).is_ok() && find(TREE) == Err(Errno::NOENT)
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

    /// Whether there was none before.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Removes it with all that is in it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn remove(self) -> Result<(), StageError> {
        // First what says what the rest is: a process that is killed meanwhile must not leave half of what it says.
        match rustix::fs::unlinkat(&self.folder, JOURNAL, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).at("remove", self.path.join(JOURNAL)),
        }
        remove_all(&through(self.parent.as_fd(), &self.name)).at("remove", &self.path)
    }

    /// Removes the contents that it has so far.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn clear(&self) -> Result<(), StageError> {
        remove_all(&through(self.folder.as_fd(), TREE.as_bytes())).at("remove", self.path.join(TREE))
    }

    /// Lets this user change all folders of the contents: they may have permissions by which nobody can.
    pub(crate) fn unseal(&self) {
        unseal(&through(self.folder.as_fd(), TREE.as_bytes()));
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

/// Removes a file or folder, if it is there. No link is followed.
pub(crate) fn remove_all(path: &Path) -> std::io::Result<()> {
    let remove = || match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    let removed = match remove() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            unseal(path);
            remove()
        }
        removed => removed,
    };
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Best effort: what follows says what could not be changed.
fn unseal(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700));
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                unseal(&entry.path());
            }
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
