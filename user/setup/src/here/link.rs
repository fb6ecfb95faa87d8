//! The `landbridge` command that a user types: a symbolic link in `~/.local/bin` to the copy of this release.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::HereError;
use crate::release::COMMAND_FILE;

/// The link's folder, below the home directory.
const PLACE: &str = ".local/bin";

/// Makes the link point to this release. Returns a note for the user if the link is new or belongs to another
/// installation, which stays.
///
/// # Errors
/// The link cannot be made.
pub(crate) fn make() -> Result<Option<String>, HereError> {
    let program = std::env::current_exe().map_err(HereError::Command)?;
    make_at(&std::env::home_dir().ok_or(HereError::NoHome)?, &program)
}

fn make_at(home: &Path, program: &Path) -> Result<Option<String>, HereError> {
    let folder = home.join(PLACE);
    let link = folder.join(COMMAND_FILE);
    let wrong = HereError::file(&link);
    let base = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    match std::fs::read_link(&link) {
        Ok(target) if target == program => return Ok(None),
        Ok(target) if is_below(&target, base) => {
            replace(&link, program).map_err(wrong)?;
            return Ok(None);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        _ => {
            return Ok(Some(format!(
                "{} is not from `sites add` and stays as it is; the copy of this release is {}",
                link.display(),
                program.display()
            )));
        }
    }
    std::fs::create_dir_all(&folder).map_err(HereError::file(&folder))?;
    std::os::unix::fs::symlink(program, &link).map_err(wrong)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_typed = std::env::split_paths(&path).any(|entry| entry == folder);
    let advice = if is_typed { "" } else { "; if the shell does not find it, add ~/.local/bin to PATH there" };
    Ok(Some(format!("`landbridge` can be typed there too: {}{advice}", link.display())))
}

/// Removes the link if it points to a release below `base`.
pub(crate) fn remove(base: &Path) -> Result<(), HereError> {
    let Some(home) = std::env::home_dir() else { return Ok(()) };
    let link = home.join(PLACE).join(COMMAND_FILE);
    match std::fs::read_link(&link) {
        Ok(target) if is_below(&target, base) => std::fs::remove_file(&link).map_err(HereError::file(&link)),
        _ => Ok(()),
    }
}

/// True if `target` is the command of a release below `base`.
fn is_below(target: &Path, base: &Path) -> bool {
    target.file_name().is_some_and(|name| name == COMMAND_FILE) && target.parent().and_then(Path::parent) == Some(base)
}

/// Replaces the link atomically.
fn replace(link: &Path, program: &Path) -> std::io::Result<()> {
    let part: PathBuf = link.with_file_name(format!(".{COMMAND_FILE}.{}", std::process::id()));
    std::os::unix::fs::symlink(program, &part)?;
    std::fs::rename(&part, link).inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_link_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let release = |id: &str| home.path().join("share").join(id).join(COMMAND_FILE);
        let link = home.path().join(PLACE).join(COMMAND_FILE);
        assert!(make_at(home.path(), &release("1")).unwrap().unwrap().contains("can be typed"));
        assert_eq!(make_at(home.path(), &release("1")).unwrap(), None, "said once");
        assert_eq!(make_at(home.path(), &release("2")).unwrap(), None);
        assert_eq!(std::fs::read_link(&link).unwrap(), release("2"));
        std::fs::remove_file(&link).unwrap();
        std::fs::write(&link, "mine").unwrap();
        assert!(make_at(home.path(), &release("2")).unwrap().unwrap().contains("stays as it is"));
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "mine");
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/opt/landbridge/bin/landbridge", &link).unwrap();
        assert!(make_at(home.path(), &release("2")).unwrap().unwrap().contains("stays as it is"));
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("/opt/landbridge/bin/landbridge"));
    }
}
