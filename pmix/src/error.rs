//! What can go wrong with libpmix.

use std::path::PathBuf;

use thiserror::Error;

/// Why a file is not a libpmix that can be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic linker does not take it.
    #[error("{0}")]
    Linker(String),
    /// It lacks a function.
    #[error("it has no function {0}")]
    Function(String),
    /// It names no version.
    #[error("it says its version is {0:?}")]
    Banner(String),
    /// Its interface is not the one that is known here.
    #[error("it is version {0}, and only 4 to 6 are supported")]
    Version(String),
}

/// Why there is no PMIx server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PmixError {
    /// No usable library.
    #[error(
        "Open MPI's ranks start by PMIx, but there is no libpmix (version 4 to 6) here; tried {tried}. \
         Install it on this node (Debian: libpmix2), or say where it is with LANDBRIDGE_PMIX"
    )]
    NotFound {
        /// Each place, and why not.
        tried: String,
    },
    /// The library somebody named cannot be used.
    #[error("LANDBRIDGE_PMIX={}: {problem}", .path.display())]
    Named {
        /// As it was named.
        path: PathBuf,
        /// Why not.
        problem: LoadError,
    },
    /// A function of the library failed.
    #[error("libpmix {version}: {call} failed: {status}")]
    Call {
        /// The library's version.
        version: String,
        /// The function.
        call: &'static str,
        /// Its status, in the library's words.
        status: String,
    },
    /// A function of the library did not call back.
    #[error("libpmix {version}: {call} did not answer within {seconds} s")]
    Silent {
        /// The library's version.
        version: String,
        /// The function.
        call: &'static str,
        /// How long it had.
        seconds: u64,
    },
    /// The library has one server per process.
    #[error("this process has a PMIx server already")]
    Second,
    /// A text that C or PMIx cannot hold.
    #[error("{value:?} cannot be told to libpmix: {problem}")]
    Text {
        /// The text.
        value: String,
        /// Why not.
        problem: &'static str,
    },
}
