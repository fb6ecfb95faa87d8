//! The reasons why an MPI library cannot be used.

use std::path::PathBuf;

use thiserror::Error;

use super::provider::PROVIDER_FILE;
use crate::message::Family;

/// Reasons why a program's MPI cannot be set up. The messages include advice.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MpiError {
    /// The program's MPI could not be determined.
    #[error(
        "cannot tell which MPI {program} uses: {problem}. Name it: --mpi mpich, --mpi intel or --mpi openmpi; or --mpi none if it uses libfabric without an MPI"
    )]
    Unsure {
        /// The program.
        program: String,
        /// The examined files and the finding.
        problem: String,
    },
    /// The program loads another MPI than the user named.
    #[error("--mpi {wish}, but {program} loads {}, which is {found}'s: put the library that you mean into LD_LIBRARY_PATH, or leave --mpi out", .file.display())]
    Other {
        /// The user's choice.
        wish: Family,
        /// The program.
        program: String,
        /// The MPI that the program loads.
        found: Family,
        /// The file of that MPI.
        file: PathBuf,
    },
    /// An Open MPI that cannot be started.
    #[error("{} is Open MPI before 4.1, which cannot start under Landbridge: use 4.1 or 5", .0.display())]
    TooOld(PathBuf),
    /// `LANDBRIDGE_COLLECTIVES` has an unknown value.
    #[error(transparent)]
    Collectives(#[from] types::settings::SettingError),
    /// `LANDBRIDGE_TREES` names no algorithm.
    #[error("LANDBRIDGE_TREES: {0}")]
    Trees(#[from] plan::UnknownAlgorithm),
    /// The layer to preload is missing.
    #[error("{} is not there: install it beside {PROVIDER_FILE}, with which it comes, or run with --collectives native", .0.display())]
    NoLayer(PathBuf),
    /// The dynamic linker cannot preload the layer.
    #[error("{} cannot be preloaded, because its path has a space or a colon: install Landbridge elsewhere, or run with --collectives native", .0.display())]
    LayerPath(PathBuf),
    /// The provider is missing.
    #[error("{PROVIDER_FILE} is not at {}: install it beside the landbridge command or in ../lib/landbridge from there, or set LANDBRIDGE_PROVIDER to its path", .0.display())]
    NoProvider(PathBuf),
}
