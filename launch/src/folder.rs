//! The folder of an agent: files that MPI libraries and libpmix write on its node while the job runs.
//!
//! The agent makes it when a job needs it. Both the agent and its keeper remove it, so that it is gone whichever of them is
//! killed. A folder whose agent and keeper were both killed is removed by the next agent of the same user.

use std::fs::{DirBuilder, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Names of all agents' folders begin so.
const PREFIX: &str = "landbridge-agent-";
/// A file in the folder that is locked as long as the agent or its keeper lives.
const LOCK: &str = "lock";

/// Where files are in memory.
const MEMORY: &str = "/dev/shm";

/// Where the folder is or would be: two of one name, one of them in memory if the node has such a place.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    memory: PathBuf,
}

impl Folder {
    /// A place that nobody else uses, in the node's folder for temporary files.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn fresh() -> io::Result<Folder> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| io::Error::other(e.to_string()))?;
        let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(random));
        Ok(Folder::at(std::env::temp_dir().join(name)))
    }

    /// The place an agent was told.
    pub fn at(path: PathBuf) -> Folder {
        let place = Path::new(MEMORY);
        let memory = path.file_name().filter(|_| place.is_dir()).map_or_else(|| path.clone(), |name| place.join(name));
        Folder { path, memory }
    }

    /// The place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The place for files that ranks map to share memory.
    pub fn memory(&self) -> &Path {
        &self.memory
    }

    fn both(&self) -> impl Iterator<Item = &Path> {
        [self.path(), self.memory()].into_iter().take(if self.path == self.memory { 1 } else { 2 })
    }

    /// Makes it, with a folder inside for each of these ranks. It stays locked until the result is dropped.
    ///
    /// # Errors
    /// For the user: what could not be made, and why.
    pub fn create(&self, ranks: Range<u32>) -> Result<Vec<File>, String> {
        let mut locks = Vec::new();
        for path in self.both() {
            remove_abandoned(path);
            let made = create(path).map_err(|error| (path.to_owned(), error));
            let inner = ranks.clone().filter(|_| path == self.path).map(|rank| path.join(rank.to_string()));
            let made = made.and_then(|lock| {
                inner.into_iter().try_for_each(|path| make(&path).map_err(|error| (path, error)))?;
                Ok(lock)
            });
            let named = |(path, error): (PathBuf, io::Error)| {
                format!("cannot make {} (TMPDIR names another place): {error}", path.display())
            };
            locks.push(made.map_err(named)?);
        }
        Ok(locks)
    }

    /// Removes it and what is in it, if it is there.
    pub fn remove(&self) {
        self.both().for_each(remove);
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn create(path: &Path) -> io::Result<File> {
    make(path)?;
    // Locked before it has its name: nobody ever sees it unlocked while we live.
    let fresh = path.join("lock.new");
    let lock = File::create_new(&fresh)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    std::fs::rename(fresh, path.join(LOCK))?;
    Ok(lock)
}

fn remove(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(folder = %path.display(), %error, "cannot be removed");
        }
        _ => {}
    }
}

/// Removes folders beside this one whose agents are dead.
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
    fn an_abandoned_folder_goes_when_the_next_one_comes() {
        let parent = tempfile::tempdir().unwrap();
        let place = |name: &str| Folder::at(parent.path().join(format!("{PREFIX}{name}")));
        let number = std::process::id();
        let [dead, alive, next] = ["dead", "alive", "next"].map(|name| place(&format!("{name}-{number}")));
        drop(dead.create(0..2).unwrap());
        let held = alive.create(2..3).unwrap();
        std::fs::create_dir(parent.path().join("landbridge-agent-without-lock")).unwrap();
        std::fs::create_dir(parent.path().join("other")).unwrap();
        let lock = next.create(0..1).unwrap();
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
        let refused = Folder::at("/proc/landbridge-agent-x".into()).create(0..1).unwrap_err();
        assert!(refused.starts_with("cannot make /proc/landbridge-agent-x (TMPDIR"), "{refused}");
    }
}
