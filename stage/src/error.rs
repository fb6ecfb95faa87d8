//! Errors of a transfer.

use std::path::{Path, PathBuf};

use thiserror::Error;
use types::untrusted::printable;

/// Reasons why something was not moved. Each names the path. Data moved before stays, unless the message states
/// otherwise.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StageError {
    #[error("cannot {doing} {}: {source}", shown(path))]
    System { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} is {what}: only files, folders and links can be moved", shown(path))]
    Special { path: PathBuf, what: &'static str },
    #[error(
        "{} changed while it was being moved ({what}); nothing was put in place. Try again once nobody writes there",
        shown(path)
    )]
    Changed { path: PathBuf, what: String },
    #[error("{}: {problem}", shown(path))]
    Conflict { path: PathBuf, problem: String },
    #[error(
        "{} has room for {free} bytes, {kept} of which are left to others; {needed} are needed. Nothing was moved",
        shown(path)
    )]
    NoRoom { path: PathBuf, needed: u64, free: u64, kept: u64 },
    #[error("{} has room for {free} more files and folders; {needed} are needed. Nothing was moved", shown(path))]
    NoFiles { path: PathBuf, needed: u64, free: u64 },
    /// `process` is empty if the other process has not recorded its name yet.
    #[error("{} is being written by another transfer{}", shown(path), by(process))]
    Busy { path: PathBuf, process: String },
    /// The lock file of the transfer's hidden folder was removed or replaced, so another transfer may write there.
    #[error(
        "another transfer took over {}, whose lock file was removed or replaced meanwhile. Wait for its end, and type \
         the same command again",
        shown(path)
    )]
    TakenOver { path: PathBuf },
    #[error("block {block} ({}) differs from the one that its sender read: it was damaged on its way", shown(path))]
    Damaged { block: u32, path: PathBuf },
    #[error("the list of files is faulty: {0}")]
    Manifest(String),
    #[error("a block of {0} bytes: on a node where other users compute, --block must be at most 64 MiB")]
    BlockBeside(u64),
    #[error("a block of {0} bytes: it must be from 4 KiB to 1 GiB")]
    BlockSize(u64),
}

/// A path for a message: file names are untrusted text.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn by(process: &str) -> String {
    if process.is_empty() { String::new() } else { format!(", process {process}") }
}

/// Adds the attempted action and the path to a system error.
pub(crate) trait At<T> {
    fn at(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T, StageError>;
}

impl<T, E: Into<std::io::Error>> At<T> for Result<T, E> {
    fn at(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T, StageError> {
        self.map_err(|source| StageError::System { doing, path: path.into(), source: source.into() })
    }
}
