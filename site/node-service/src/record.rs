//! Records of the copies of jobs: on the controller, one file for each job that has any.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use folder::Folder;
use serde::{Deserialize, Serialize};

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
    /// It cannot be read.
    pub fn read(&self, job: u32) -> Result<Record, String> {
        let file = self.file(job);
        let shown = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
        match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| shown(&e)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Record::default()),
            Err(error) => Err(shown(&error)),
        }
    }

    /// Writes a job's record atomically.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, job: u32, record: &Record) -> Result<(), String> {
        let file = self.file(job);
        let write = || {
            Folder::make_private(&self.0)?;
            let mut fresh = std::fs::File::create(self.fresh(job))?;
            fresh.write_all(&serde_json::to_vec(record)?)?;
            // After a power failure either the old record or the new one exists.
            fresh.sync_all()?;
            std::fs::rename(self.fresh(job), &file)
        };
        write().map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Removes a job's record.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self, job: u32) -> Result<(), String> {
        for file in [self.fresh(job), self.file(job)] {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", file.display()));
                }
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
