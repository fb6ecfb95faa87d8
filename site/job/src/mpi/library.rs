//! The MPI library of a program.

use std::path::PathBuf;

use crate::message::Family;

/// A program's MPI library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Which MPI it is.
    pub family: Family,
    /// The library's file, if it was found.
    pub file: Option<PathBuf>,
    /// True if its folder must be added to LD_LIBRARY_PATH for the dynamic linker to find it.
    pub beside: bool,
    /// True if the program itself is linked to it, so no other MPI can replace it.
    pub linked: bool,
}
