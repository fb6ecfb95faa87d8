//! Errors when a region is made, opened or used. Each names the path; the caller adds site and node.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A problem with a region or its folder.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The folder cannot be used.
    #[error(
        "memory {folder}: {source}: `memory` in the sites file must name a folder that exists on every node of the \
         site and that its users can write to; \"off\" uses no shared memory",
        folder = .folder.display()
    )]
    Folder {
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The filesystem has too little free space.
    #[error(
        "memory {path}: {needed} bytes are needed and {free} are free{others}: make it larger, remove what dead jobs \
         have left in it, or set `memory = \"off\"` for the site",
        path = .path.display()
    )]
    Room {
        path: PathBuf,
        /// Bytes for the ring, or for the region without rings.
        needed: u64,
        /// Free bytes of the filesystem.
        free: u64,
        /// Regions of other jobs in the same folder, in words; empty if there are none.
        others: String,
    },
    /// The limit on file sizes is too small.
    #[error(
        "memory {path}: its file is {needed} bytes long, most of them never written, and the limit is {limit}: raise \
         it on the nodes (ulimit -f unlimited), or set `memory = \"off\"` for the site",
        path = .path.display()
    )]
    FileSize {
        path: PathBuf,
        /// The file's length in bytes.
        needed: u64,
        /// The process's limit in bytes.
        limit: u64,
    },
    /// The filesystem cannot share memory.
    #[error(
        "memory {path}: {source}: this filesystem cannot map a file into several processes; name a folder in memory \
         (tmpfs, or a pool that the nodes share), or set `memory = \"off\"` for the site",
        path = .path.display()
    )]
    Mapping {
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of that name exists.
    #[error("memory {path}: already exists, left over by a dead job with the same number: remove it",
        path = .0.display())]
    Leftover(PathBuf),
    /// The file is not this job's region.
    #[error("memory {path}: {problem}", path = .path.display())]
    Foreign {
        path: PathBuf,
        /// The mismatch, in words.
        problem: String,
    },
    /// A seat of the region is already taken.
    #[error(
        "memory {path}: endpoint {instance} of rank {rank} is already open in process {pid}: a rank's program can \
         be started only once per job",
        path = .path.display()
    )]
    Taken {
        path: PathBuf,
        rank: u32,
        /// The endpoint's number within its rank.
        instance: u32,
        /// The process that took it.
        pid: u32,
    },
    /// More processes than one region can hold.
    #[error("memory {path}: {ranks} ranks are more than the {most} that one region can hold: set `memory = \"off\"`",
        path = .path.display())]
    TooMany {
        /// The file or folder.
        path: PathBuf,
        /// Number of ranks requested.
        ranks: u32,
        /// Maximum number of ranks in one region.
        most: u32,
    },
    /// Any other system error.
    #[error("memory {path}: {what}: {source}", path = .path.display())]
    System {
        path: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
