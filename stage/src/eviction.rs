//! Removes the result of a transfer, complete or not.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use folder::Folder;
use rustix::io::Errno;

use crate::area::{self, Area, name_of_target};
use crate::error::{At, StageError};

/// Removes a target, and the leftovers of transfers to it beside it. A transfer that is still writing there gets
/// `patience` to end. A missing target is not an error, and links are not followed.
///
/// The path alone selects the files to remove, so only this user may be able to put something of this user's there.
///
/// # Errors
/// System errors, or [`StageError::Busy`]; another user can rename something on the way to the target.
pub fn evict(target: &Path, patience: Duration) -> Result<(), StageError> {
    name_of_target(target)?;
    let named = match Folder::of_unshared(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        named => named.at("open the folder of", target)?,
    };
    let (folder, name) = (named.folder, named.name);
    let shown = target.parent().unwrap_or(Path::new("."));
    let since = Instant::now();
    // A transfer may still put its contents in place, so the target is removed last.
    let names = match folder.names() {
        // No transfer ran in a folder that is writable but cannot be listed: it could not have found its own area.
        Err(Errno::ACCESS) => Vec::new(),
        names => names.at("list", shown)?,
    };
    for other in names {
        let rest = patience.saturating_sub(since.elapsed());
        let left = area::patiently(rest, || Area::left(&folder, shown, &other, &name))?;
        if let Some((left, _lock)) = left {
            area::remove(&left, &folder, &other).at("remove", shown.join(OsStr::from_bytes(&other)))?;
        }
    }
    folder.remove(&name).at("remove", target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_goes_with_what_transfers_have_left_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let parent = Folder::open(folder.path()).unwrap();
        let area = |target: &str| Area::open(&parent, folder.path(), b"origin", target.as_bytes()).unwrap();
        let (mine, other) = (area("mine").path().to_owned(), area("other").path().to_owned());
        std::fs::create_dir_all(at("mine/deep")).unwrap();
        std::fs::write(at("mine2"), "x").unwrap();
        std::os::unix::fs::symlink("mine2", at("link")).unwrap();
        evict(&at("mine"), Duration::ZERO).unwrap();
        evict(&at("link"), Duration::ZERO).unwrap();
        evict(&at("never-there"), Duration::ZERO).unwrap();
        evict(&at("no/such/folder"), Duration::ZERO).unwrap();
        assert!(!mine.exists() && !at("mine").exists() && !at("link").is_symlink());
        assert!(other.exists() && at("mine2").exists());
        let held = area("held");
        let busy = evict(&at("held"), Duration::from_millis(1)).unwrap_err();
        assert!(matches!(busy, StageError::Busy { .. }) && held.path().exists());
    }
}
