//! Checks the ends of a transfer before it begins: the source must exist, and the target must be possible. Changes
//! nothing.

use std::ffi::OsStr;
use std::path::Path;

use folder::{Folder, Named};
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{At, StageError};
use crate::target::{means_into, resolve};

/// The end of a transfer that a place is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Source,
    Target,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// A transfer can begin, as far as can be seen beforehand.
    Usable,
    /// No transfer can begin, for this reason.
    Unusable(String),
    /// The system gave no answer, for this reason: a file system that does not respond, for instance.
    Unknown(String),
}

impl Found {
    fn of(looked: Result<(), StageError>) -> Found {
        match looked {
            Ok(()) => Found::Usable,
            Err(error) if is_certain(&error) => Found::Unusable(error.to_string()),
            Err(error) => Found::Unknown(error.to_string()),
        }
    }

    /// Truncates the reason to this many characters.
    pub(crate) fn cut(self, most: usize) -> Found {
        let cut = |text: String| text.chars().take(most).collect();
        match self {
            Found::Usable => Found::Usable,
            Found::Unusable(text) => Found::Unusable(cut(text)),
            Found::Unknown(text) => Found::Unknown(cut(text)),
        }
    }
}

/// Checks a place as this process's user.
pub fn look(path: &Path, role: Role) -> Found {
    Found::of(match role {
        Role::Source => source(path),
        Role::Target => target(path),
    })
}

/// The source must be a readable file or folder; a link at its end is followed.
fn source(path: &Path) -> Result<(), StageError> {
    let named = Named::resolve(path).at("find", path)?;
    let found = named.stat().at("find", path)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile | FileType::Directory => {}
        _ => return Err(StageError::Special { path: path.to_owned(), what: "neither a file nor a folder" }),
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    named.open(flags, Mode::empty()).map(drop).at("read", path)
}

/// The target must be an existing folder, or a name in one. The folder must be writable either way: the hidden area is
/// created in it.
fn target(path: &Path) -> Result<(), StageError> {
    let (folder, shown) = match means_into(path) {
        true => {
            resolve(path, Path::new(OsStr::new("any")), false)?;
            (Folder::open(path).at("open the folder", path)?, path)
        }
        false => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let named = Folder::of(path).map_err(|error| missing(above, error))?;
            (named.folder, above)
        }
    };
    rustix::fs::accessat(&folder, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty()).at("write to", shown)
}

fn missing(folder: &Path, error: std::io::Error) -> StageError {
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => {
            let problem = "there is no such folder: make it".to_owned();
            StageError::Conflict { path: folder.to_owned(), problem }
        }
        _ => StageError::System { doing: "open the folder", path: folder.to_owned(), source: error },
    }
}

/// Returns true if a transfer would fail in the same way, false if the system may only be unavailable for now.
fn is_certain(error: &StageError) -> bool {
    let StageError::System { source, .. } = error else { return true };
    const CERTAIN: [Errno; 8] = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::ACCESS,
        Errno::PERM,
        Errno::ROFS,
        Errno::LOOP,
        Errno::NAMETOOLONG,
        Errno::INVAL,
    ];
    Errno::from_io_error(source).is_some_and(|errno| CERTAIN.contains(&errno))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn problem(path: &Path, role: Role) -> String {
        match look(path, role) {
            Found::Unusable(problem) => problem,
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    #[test]
    fn a_target_needs_a_folder_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("there")).unwrap();
        std::fs::write(at("file"), "x").unwrap();
        for good in ["there", "there/", "there/.", "file", "new", "there/new"] {
            assert_eq!(look(&at(good), Role::Target), Found::Usable, "{good}");
        }
        assert!(problem(&at("none/new"), Role::Target).contains("none: there is no such folder: make it"));
        assert!(problem(&at("none/"), Role::Target).contains("there is no such folder: make it"));
        assert!(problem(&at("file/"), Role::Target).contains("it is no folder"));
        assert!(problem(&at("file/new"), Role::Target).contains("Not a directory"));
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 2, "nothing is changed");
    }

    #[test]
    fn a_target_needs_a_folder_that_can_be_written() {
        if rustix::process::geteuid().is_root() {
            // Root may write everywhere except in places like /proc.
            assert!(matches!(look(Path::new("/proc/self/new"), Role::Target), Found::Unusable(_)));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o500)).unwrap();
        assert!(problem(&folder.path().join("new"), Role::Target).contains("cannot write to"));
    }

    #[test]
    fn a_source_is_a_file_or_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("none", at("dangling")).unwrap();
        for good in ["file", "link", ""] {
            assert_eq!(look(&at(good), Role::Source), Found::Usable, "{good}");
        }
        assert!(problem(&at("none"), Role::Source).contains("No such file"));
        assert!(problem(&at("dangling"), Role::Source).contains("No such file"));
        assert!(problem(Path::new("/dev/null"), Role::Source).contains("neither a file nor a folder"));
    }

    #[test]
    fn a_system_that_does_not_answer_is_no_answer() {
        let failed = |errno: Errno| Found::of(Err::<(), _>(errno).at("find", Path::new("/x")));
        assert!(matches!(failed(Errno::IO), Found::Unknown(_)) && matches!(failed(Errno::STALE), Found::Unknown(_)));
        assert!(matches!(failed(Errno::NOENT), Found::Unusable(_)));
    }
}
