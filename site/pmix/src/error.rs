//! Errors of libpmix.

use std::path::PathBuf;

use thiserror::Error;

/// Reasons why a file is not a usable libpmix.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic linker rejects it.
    #[error("{0}")]
    Linker(String),
    /// It lacks a function.
    #[error("it has no function {0}")]
    Function(String),
    /// Its version text cannot be read.
    #[error("its version text is {0:?}")]
    Banner(String),
    /// Its interface is of an unsupported version.
    #[error("it is version {0}, and only 4 to 6 are supported")]
    Version(String),
}

/// Reasons why there is no PMIx server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PmixError {
    /// No usable library.
    #[error(
        "Open MPI's ranks start by PMIx, but there is no libpmix (version 4 to 6) on this node; tried {tried}. \
         Install it (Debian: libpmix2), or set LANDBRIDGE_PMIX to its path"
    )]
    NotFound {
        /// Each place tried, and the reason why it does not work.
        tried: String,
    },
    /// The library that LANDBRIDGE_PMIX names cannot be used.
    #[error("LANDBRIDGE_PMIX={}: {problem}", .path.display())]
    Named {
        /// The path as given.
        path: PathBuf,
        /// The reason.
        problem: LoadError,
    },
    /// A function of the library failed.
    #[error("libpmix {version}: {call} failed: {status}")]
    Call {
        /// The library's version.
        version: String,
        /// The function.
        call: &'static str,
        /// Its status, as the library describes it.
        status: String,
    },
    /// A function of the library did not call back in time.
    #[error("libpmix {version}: {call} did not answer within {seconds} s")]
    Silent {
        /// The library's version.
        version: String,
        /// The function.
        call: &'static str,
        /// The time limit.
        seconds: u64,
    },
    /// A second server in this process; the library supports only one.
    #[error("this process already has a PMIx server")]
    Second,
    /// A text that C or PMIx cannot hold.
    #[error("{value:?} cannot be passed to libpmix: {problem}")]
    Text {
        /// The text.
        value: String,
        /// The reason.
        problem: &'static str,
    },
}
