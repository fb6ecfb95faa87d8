//! What is known of a job's copies: a file of the controller's for each job that has any.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub user: u32,
    /// In the order of the script.
    pub inputs: Vec<Copies>,
    /// Where it runs or has run.
    pub nodes: Vec<String>,
}

/// An input's copies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// Nodes that have all of it.
    pub whole: Vec<String>,
    /// Nodes that may have a part of it, or all of it. Nothing was at its path there before.
    pub begun: Vec<String>,
}

/// The folder of the records.
#[derive(Clone, Debug)]
pub struct Records(pub PathBuf);

impl Records {
    fn file(&self, job: u32) -> PathBuf {
        self.0.join(job.to_string())
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

    /// Writes a job's record, whole or not at all.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, job: u32, record: &Record) -> Result<(), String> {
        let file = self.file(job);
        let write = || {
            std::fs::create_dir_all(&self.0)?;
            let fresh = self.0.join(format!("{job}.new"));
            std::fs::write(&fresh, serde_json::to_vec(record)?)?;
            std::fs::rename(&fresh, &file)
        };
        write().map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Forgets a job.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, job: u32) -> Result<(), String> {
        match std::fs::remove_file(self.file(job)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("{}: {error}", self.file(job).display())),
            _ => Ok(()),
        }
    }

    /// All jobs that have one.
    pub fn jobs(&self) -> Vec<u32> {
        let entries = std::fs::read_dir(Path::new(&self.0)).into_iter().flatten().flatten();
        let mut jobs: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        jobs.sort_unstable();
        jobs
    }
}
