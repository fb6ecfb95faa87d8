//! Records of the copies of jobs: on the controller, one file for each job that has any.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use folder::Folder;
use serde::{Deserialize, Serialize};
use thiserror::Error;

const FRESH: &str = ".new";

/// The record of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub user: u32,
    /// True if copies that the job has used are kept after it.
    pub keep: bool,
    /// In the order of the job script.
    pub inputs: Vec<Copies>,
    /// The nodes on which the job runs or has run.
    pub nodes: Vec<String>,
    /// Number of failed attempts to remove its copies.
    #[serde(default)]
    pub failures: u32,
    /// Earliest time of the next attempt, in seconds of the machine's monotonic clock.
    #[serde(default)]
    pub retry_at: u64,
}

/// An input's copies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// Path of the copies on each node.
    pub path: String,
    /// Nodes that have a complete copy.
    pub whole: Vec<String>,
    /// Nodes that may have a partial or a complete copy. Before the copy, nothing existed at its path there.
    pub begun: Vec<String>,
}

impl Copies {
    /// Drops these nodes from the record.
    pub fn forget(&mut self, nodes: &[String]) {
        self.whole.retain(|node| !nodes.contains(node));
        self.begun.retain(|node| !nodes.contains(node));
    }
}

/// Reasons for failing to read, write or remove a record.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// The file holds no record.
    #[error("{}: {source}", .path.display())]
    Content { path: PathBuf, source: serde_json::Error },
}

/// The folder of the records.
#[derive(Clone, Debug)]
pub struct Records(pub PathBuf);

impl Records {
    fn file(&self, job: u32) -> PathBuf {
        self.0.join(job.to_string())
    }

    /// Path of a job's record, for messages.
    pub fn shown(&self, job: u32) -> String {
        self.file(job).display().to_string()
    }

    /// Path of a record while it is being written.
    fn fresh(&self, job: u32) -> PathBuf {
        self.0.join(format!("{job}{FRESH}"))
    }

    /// A job's record; an empty one if there is none.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(&self, job: u32) -> Result<Record, RecordError> {
        let path = self.file(job);
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| RecordError::Content { path, source }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Record::default()),
            Err(source) => Err(RecordError::File { path, source }),
        }
    }

    /// Writes a job's record atomically.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn write(&self, job: u32, record: &Record) -> Result<(), RecordError> {
        let path = self.file(job);
        let write = || {
            Folder::make_private(&self.0)?;
            let mut fresh = std::fs::File::create(self.fresh(job))?;
            fresh.write_all(&serde_json::to_vec(record)?)?;
            // After a power failure either the old record or the new one exists.
            fresh.sync_all()?;
            std::fs::rename(self.fresh(job), &path)
        };
        write().map_err(|source| RecordError::File { path, source })
    }

    /// Removes a job's record.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn remove(&self, job: u32) -> Result<(), RecordError> {
        for path in [self.fresh(job), self.file(job)] {
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != ErrorKind::NotFound => return Err(RecordError::File { path, source }),
                _ => {}
            }
        }
        Ok(())
    }

    /// All jobs that have a record, or a partial one because their hook was killed.
    pub fn jobs(&self) -> Vec<u32> {
        let entries = std::fs::read_dir(Path::new(&self.0)).into_iter().flatten().flatten();
        let job = |name: &str| name.strip_suffix(FRESH).unwrap_or(name).parse().ok();
        let mut jobs: Vec<u32> = entries.filter_map(|entry| job(entry.file_name().to_str()?)).collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }
}
