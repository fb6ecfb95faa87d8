//! The folder of an agent: files that MPI libraries and libpmix write on its node while the job runs, and the names of
//! files that they write in other places.
//!
//! The agent makes the folder when a job needs it. Both the agent and its keeper remove it, so it is gone even if one
//! of the two is killed. If both are killed, the next agent of the same user removes it. Files that the job left in
//! other places are removed with it (see `leftovers.rs`).

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use thiserror::Error;

use crate::leftovers::{remove_claimed, remove_strays};

/// The prefix of all agents' folders.
const PREFIX: &str = "landbridge-agent-";
/// A file in the folder that stays locked while the agent or its keeper runs.
const LOCK: &str = "lock";
/// A file in the folder that lists path prefixes of the job's files elsewhere, each followed by a zero byte.
const CLAIMS: &str = "claims";

/// A folder whose files are in memory.
const MEMORY: &str = "/dev/shm";

/// A folder could not be made.
#[derive(Debug, Error)]
#[error("cannot make {} (TMPDIR names another place): {source}", .path.display())]
pub struct FolderError {
    path: PathBuf,
    source: io::Error,
}

/// The place of the folder, which may not exist: two paths with the same name, one of them in memory if the node has a
/// file system for that.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    memory: PathBuf,
}

impl Folder {
    /// A new place in the node's folder for temporary files.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn fresh() -> io::Result<Folder> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| io::Error::other(e.to_string()))?;
        let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(random));
        Ok(Folder::at(std::env::temp_dir().join(name)))
    }

    /// The place with this path, which the keeper passes to its agent.
    pub fn at(path: PathBuf) -> Folder {
        let place = Path::new(MEMORY);
        let memory = path.file_name().filter(|_| place.is_dir()).map_or_else(|| path.clone(), |name| place.join(name));
        Folder { path, memory }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The place for files that ranks map as shared memory.
    pub fn memory(&self) -> &Path {
        &self.memory
    }

    fn both(&self) -> impl Iterator<Item = &Path> {
        [self.path(), self.memory()].into_iter().take(if self.path == self.memory { 1 } else { 2 })
    }

    /// Makes the folder, with an inner folder for each of these ranks. Files in other places whose paths begin with one
    /// of `claims` are removed with it. The folder stays locked until the result is dropped.
    ///
    /// # Errors
    /// [`FolderError`], which names the folder that could not be made.
    pub fn create(&self, ranks: Range<u32>, claims: &[PathBuf]) -> Result<Vec<File>, FolderError> {
        let mut locks = Vec::new();
        for path in self.both() {
            remove_abandoned(path);
            let failed = |path: &Path| {
                let path = path.to_owned();
                |source| FolderError { path, source }
            };
            locks.push(create(path).map_err(failed(path))?);
            if path == self.path {
                let listed: Vec<u8> =
                    claims.iter().flat_map(|claim| [claim.as_os_str().as_bytes(), b"\0"].concat()).collect();
                std::fs::write(path.join(CLAIMS), listed).map_err(failed(path))?;
                for inner in ranks.clone().map(|rank| path.join(rank.to_string())) {
                    make(&inner).map_err(failed(&inner))?;
                }
            }
        }
        Ok(locks)
    }

    /// Removes the folder with its contents, and the files that its job left in other places. All processes that could
    /// write more must have ended.
    pub fn remove(&self) {
        self.both().for_each(remove);
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn create(path: &Path) -> io::Result<File> {
    make(path)?;
    // Locked before it gets its final name, so no other process ever sees it unlocked while this one runs.
    let fresh = path.join("lock.new");
    let lock = File::create_new(&fresh)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    std::fs::rename(fresh, path.join(LOCK))?;
    Ok(lock)
}

fn remove(path: &Path) {
    let claims = std::fs::read(path.join(CLAIMS)).unwrap_or_default();
    for claim in claims.split(|byte| *byte == 0).filter(|claim| !claim.is_empty()) {
        remove_claimed(Path::new(OsStr::from_bytes(claim)));
    }
    // The lock is older than the first rank.
    if let Ok(since) = std::fs::metadata(path.join(LOCK)).and_then(|lock| lock.modified()) {
        remove_strays(since);
    }
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(folder = %path.display(), %error, "cannot be removed");
        }
        _ => {}
    }
}

/// Removes the folders beside this one whose agents are dead.
fn remove_abandoned(beside: &Path) {
    let me = rustix::process::getuid().as_raw();
    let entries = beside.parent().and_then(|parent| std::fs::read_dir(parent).ok());
    for entry in entries.into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let mine = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == me);
        let path = entry.path();
        if ours && mine && path != beside && is_abandoned(&path) {
            remove(&path);
        }
    }
}

fn is_abandoned(path: &Path) -> bool {
    let lock = File::open(path.join(LOCK));
    lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_folder_made_removes_abandoned_ones() {
        let parent = tempfile::tempdir().unwrap();
        let place = |name: &str| Folder::at(parent.path().join(format!("{PREFIX}{name}")));
        let number = std::process::id();
        let [dead, alive, next] = ["dead", "alive", "next"].map(|name| place(&format!("{name}-{number}")));
        let claimed = parent.path().join("mpich_shm_ab_0");
        std::fs::write(&claimed, "").unwrap();
        drop(dead.create(0..2, &[parent.path().join("mpich_shm_ab_")]).unwrap());
        let held = alive.create(2..3, &[]).unwrap();
        std::fs::create_dir(parent.path().join("landbridge-agent-without-lock")).unwrap();
        std::fs::create_dir(parent.path().join("other")).unwrap();
        let lock = next.create(0..1, &[]).unwrap();
        assert!(!claimed.exists());
        assert!(!dead.path().exists() && alive.path().join("2").is_dir() && next.path().join("0").is_dir());
        assert!(!dead.memory().exists() && alive.memory().is_dir() && next.memory().is_dir());
        assert!(parent.path().join("other").exists() && parent.path().join("landbridge-agent-without-lock").exists());
        drop((held, lock));
        for folder in [&alive, &next, &next] {
            folder.remove();
            assert!(!folder.path().exists() && !folder.memory().exists());
        }
    }

    #[test]
    fn a_place_where_nothing_can_be_made_is_named() {
        let refused = Folder::at("/proc/landbridge-agent-x".into()).create(0..1, &[]).unwrap_err().to_string();
        assert!(refused.starts_with("cannot make /proc/landbridge-agent-x (TMPDIR"), "{refused}");
    }
}
