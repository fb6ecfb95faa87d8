//! Why a region cannot be made, opened or used. Each error names the path; the caller adds site and node.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// What is wrong with a region or the folder for it.
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
    /// Too little room.
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
        /// Its length.
        needed: u64,
        /// The process's limit.
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
        /// What shows it.
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
        /// The endpoint's number.
        instance: u32,
        /// The process that has it.
        pid: u32,
    },
    /// More processes than one region can hold.
    #[error("memory {path}: {ranks} ranks are more than the {most} that one region can hold: set `memory = \"off\"`",
        path = .path.display())]
    TooMany {
        /// The file or folder.
        path: PathBuf,
        /// How many.
        ranks: u32,
        /// How many it can hold.
        most: u32,
    },
    /// Any other system error.
    #[error("memory {path}: {what}: {source}", path = .path.display())]
    System {
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
