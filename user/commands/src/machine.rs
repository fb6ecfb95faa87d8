//! The user's working directory on this machine.

use std::path::PathBuf;

use job::home::TYPED_DIRECTORY;

use crate::error::{Context, Result};

/// The working directory of the user. Prefers the shell's name for it, since links may differ at other sites.
///
/// # Errors
/// The system does not know it.
pub fn working_directory() -> Result<PathBuf> {
    if let Some(typed) = std::env::var_os(TYPED_DIRECTORY) {
        return Ok(typed.into());
    }
    let physical = std::env::current_dir().context("the working directory")?;
    let named = std::env::var_os("PWD").map(PathBuf::from).filter(|named| named.is_absolute());
    let same = |named: &PathBuf| std::fs::canonicalize(named).is_ok_and(|found| found == physical);
    Ok(named.filter(same).unwrap_or(physical))
}
