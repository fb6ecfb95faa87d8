//! Work of a node's service on paths, as their user: `landbridge slurm look` and `remove`.

use std::ffi::OsString;
use std::io::{BufRead, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use folder::Folder;
use stage::StageError;

use crate::error::{Context, Result};

/// Time limit for a running transfer to leave a target that is removed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads a path from standard input.
///
/// # Errors
/// There is none.
pub fn read_path() -> Result<PathBuf> {
    let path: Vec<u8> = read_line("a path")?;
    Ok(PathBuf::from(OsString::from_vec(path)))
}

/// Checks whether the target path of a job's input exists. Follows no link at its end. Only the path identifies the
/// input when it is removed, so nobody else may be able to rename anything on the way.
///
/// # Errors
/// The path cannot be examined.
pub fn exists(path: &Path) -> Result<bool> {
    match Folder::of_unshared(path).and_then(|named| Ok(named.stat()?)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot look at {}", path.display())),
    }
}

/// Removes staged files: a list of paths on standard input. Missing paths are not an error. Returns the failures.
///
/// # Errors
/// Standard input is not a list of paths.
pub fn remove() -> Result<Vec<StageError>> {
    let paths: Vec<Vec<u8>> = read_line("a list of paths")?;
    let paths = paths.into_iter().map(|path| PathBuf::from(OsString::from_vec(path)));
    Ok(paths.filter_map(|path| stage::evict(&path, PATIENCE).err()).collect())
}

fn read_line<T: serde::de::DeserializeOwned>(content: &'static str) -> Result<T> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    serde_json::from_str(&line).context(content)
}
