//! The previous occupant of a target's name, and the meaning of a target's path.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use folder::{Folder, Folders, Identity, identity_of};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use crate::error::{At, StageError};
use crate::manifest::{EntryKind, Manifest};

/// The previous occupant of the target's name.
#[derive(Debug)]
pub(super) enum Before {
    Nothing,
    /// A file or link; the new file replaces it.
    File,
    /// A folder; the new contents are added to it. It stays open, because another folder may get its name.
    Folder(Folder),
}

impl Before {
    pub(super) fn folder(&self) -> Option<&Folder> {
        match self {
            Before::Folder(folder) => Some(folder),
            Before::Nothing | Before::File => None,
        }
    }
}

/// The target path for a source called `name`. `typed` with a trailing slash, or `.`, names an existing folder, and the
/// source goes into it; the same holds for the target of several sources (`into`). Any other path is the target itself,
/// whether it exists or not, so the same command always means the same.
///
/// # Errors
/// [`StageError::Conflict`] if there is no such folder.
pub fn resolve(typed: &Path, name: &Path, into: bool) -> Result<PathBuf, StageError> {
    let refused = |problem: &str| Err(StageError::Conflict { path: typed.to_owned(), problem: problem.to_owned() });
    if !into && !means_into(typed) {
        return Ok(typed.to_owned());
    }
    if let Err(error) = Folder::open(typed) {
        return match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => {
                refused("there is no such folder: make it, or leave out the slash to give the source this name")
            }
            Some(Errno::NOTDIR) => refused("it is no folder: leave out the slash to replace it"),
            _ => Err(error).at("open the folder", typed),
        };
    }
    match name.file_name() {
        // `components` drops a trailing `.`.
        Some(name) => Ok(typed.components().collect::<PathBuf>().join(name)),
        None => refused("the source has no name to put there"),
    }
}

/// Returns true if the form of a path alone marks it as a folder that the source goes into.
pub fn means_into(typed: &Path) -> bool {
    let bytes = typed.as_os_str().as_bytes();
    bytes == b"." || bytes == b"~" || bytes.ends_with(b"/") || bytes.ends_with(b"/.")
}

/// Refuses a target that is its own source, or inside it.
pub(super) fn refuse_own_source(
    parent: &Folder,
    name: &[u8],
    path: &Path,
    source: Option<Identity>,
) -> Result<(), StageError> {
    let Some(source) = source else { return Ok(()) };
    let refused = |problem: &str| Err(StageError::Conflict { path: path.to_owned(), problem: problem.to_owned() });
    if rustix::fs::statat(parent, name, AtFlags::empty()).is_ok_and(|found| identity_of(&found) == source) {
        return refused("the target is its own source");
    }
    let mut folder = parent.try_clone().at("open", path)?;
    loop {
        let found = folder.identity().at("examine", path)?;
        if found == source {
            return refused("the target is inside its source");
        }
        let above = folder.above().at("examine", path)?;
        if above.identity().at("examine", path)? == found {
            return Ok(());
        }
        folder = above;
    }
}

/// Owners whose folders may be written to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owners {
    me: u32,
    /// True to permit folders of all users.
    pub(super) others: bool,
}

impl Owners {
    pub(super) fn new(others: bool) -> Owners {
        Owners { me: rustix::process::geteuid().as_raw(), others }
    }

    /// A folder's owner can change and replace its contents, so only this user's and root's folders are permitted by
    /// default.
    pub(super) fn allow(self, found: &Stat, path: &Path) -> Result<(), StageError> {
        let owner = found.st_uid;
        if self.others || owner == self.me || owner == 0 {
            return Ok(());
        }
        let problem = format!(
            "this folder belongs to user id {owner}, who could change and replace what arrives there: choose another \
             folder, or add to it all the same by --allow-other-owner"
        );
        Err(StageError::Conflict { path: path.to_owned(), problem })
    }
}

/// Examines the target's present contents. Refuses contents that the manifest cannot be put over, and folders of other
/// users, including the parent folder.
pub(super) fn look(
    parent: &Folder,
    name: &[u8],
    path: &Path,
    manifest: &Manifest,
    owners: Owners,
) -> Result<Before, StageError> {
    let conflict = |path: PathBuf, problem: &str| {
        Err(StageError::Conflict { path, problem: format!("{problem}: remove it first") })
    };
    let kind_of = |found: &Stat| FileType::from_raw_mode(found.st_mode);
    let around = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    owners.allow(&parent.examine().at("examine", around)?, around)?;
    let found = match parent.stat(name) {
        Err(Errno::NOENT) => return Ok(Before::Nothing),
        found => kind_of(&found.at("examine", path)?),
    };
    let is_folder = manifest.entries[0].kind == EntryKind::Folder;
    match (found, is_folder) {
        (FileType::Directory, true) => {}
        (FileType::Directory, false) => {
            let problem = "a folder is where a file should go: with a slash at its end, the file goes into it";
            return conflict(path.to_owned(), &format!("{problem}; or"));
        }
        (FileType::RegularFile | FileType::Symlink, false) => return Ok(Before::File),
        (FileType::RegularFile, true) => return conflict(path.to_owned(), "a file is where a folder should go"),
        (_, true) => return conflict(path.to_owned(), "something else is where a folder should go"),
        _ => return conflict(path.to_owned(), "something is there that is neither a file nor a folder"),
    }
    let held = parent.enter(name).at("open", path)?;
    owners.allow(&held.examine().at("examine", path)?, path)?;
    let mut folders = Folders::new(held.try_clone().at("open", path)?.into());
    let mut absent: HashSet<&[u8]> = HashSet::new();
    for entry in manifest.entries.iter().skip(1) {
        let above = entry.path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |slash| &entry.path[..slash]);
        let shown = || entry.below(path);
        let found = match absent.contains(above) {
            true => Err(Errno::NOENT),
            false => folders
                .parent(&entry.path)
                .and_then(|(folder, name)| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)),
        };
        let is_folder = entry.kind == EntryKind::Folder;
        match found {
            Err(Errno::NOENT) => {
                if is_folder {
                    absent.insert(&entry.path);
                }
            }
            Err(error) => return Err(error).at("examine", shown()),
            Ok(found) => match (kind_of(&found), is_folder) {
                (FileType::Directory, true) => owners.allow(&found, &shown())?,
                (FileType::RegularFile | FileType::Symlink, false) => {}
                (FileType::Directory, false) => return conflict(shown(), "a folder is where a file should go"),
                (FileType::Symlink, true) => return conflict(shown(), "a link is where a folder should go"),
                (_, true) => return conflict(shown(), "a file is where a folder should go"),
                _ => return conflict(shown(), "something is there that is neither a file nor a folder"),
            },
        }
    }
    Ok(Before::Folder(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_target_means_does_not_depend_on_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("file"), "x").unwrap();
        for typed in ["folder", "file", "none"] {
            assert_eq!(resolve(&at(typed), Path::new("run7"), false).unwrap(), at(typed), "{typed}");
        }
        for typed in ["folder/", "folder/."] {
            assert_eq!(resolve(&at(typed), Path::new("run7"), false).unwrap(), at("folder/run7"));
        }
        assert_eq!(resolve(&at("folder"), Path::new("run7"), true).unwrap(), at("folder/run7"));
        let refused = |typed: &str| resolve(&at(typed), Path::new("run7"), false).unwrap_err().to_string();
        assert!(refused("none/").contains("there is no such folder: make it"));
        assert!(refused("file/").contains("it is no folder: leave out the slash"));
    }

    #[test]
    fn folders_of_others_are_refused_unless_they_are_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = Folder::open(folder.path()).unwrap().examine().unwrap();
        let owners = |me, others| Owners { me, others };
        found.st_uid = 7;
        let refused = owners(8, false).allow(&found, folder.path()).unwrap_err().to_string();
        assert!(refused.contains("user id 7") && refused.contains("--allow-other-owner"), "{refused}");
        assert!(owners(7, false).allow(&found, folder.path()).is_ok());
        assert!(owners(8, true).allow(&found, folder.path()).is_ok());
        assert!(owners(0, false).allow(&found, folder.path()).is_err(), "root least of all");
        found.st_uid = 0;
        assert!(owners(8, false).allow(&found, folder.path()).is_ok());
    }
}
