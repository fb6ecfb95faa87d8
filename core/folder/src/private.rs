//! Folders of one account alone. Nobody else can rename their entries, so a path through them means the same from one
//! system call to the next.

use std::io;
use std::path::Path;

use rustix::fs::Mode;

use crate::Folder;

/// The bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;

impl Folder {
    /// Opens a folder into which only this user, or root, can write. If it is missing, makes it and its missing
    /// parents, for this user alone.
    ///
    /// # Errors
    /// As [`Folder::open`]; `PermissionDenied`, with advice: it belongs to another user, or others can write to it.
    pub fn make_private(path: &Path) -> io::Result<Folder> {
        let folder = Folder::make_all(path, Mode::RWXU)?;
        let user = rustix::process::geteuid().as_raw();
        let found = folder.examine()?;
        match problem((found.st_uid, found.st_mode), user, path) {
            Some(problem) => Err(io::Error::new(io::ErrorKind::PermissionDenied, problem)),
            None => Ok(folder),
        }
    }
}

/// The reason why others than `user` could change the entries of a folder with this owner and mode; `None` if they
/// cannot.
fn problem((owner, mode): (u32, u32), user: u32, path: &Path) -> Option<String> {
    if owner != user && owner != 0 {
        return Some(format!(
            "it belongs to user {owner}, not to user {user} who runs this: remove it, or change its owner"
        ));
    }
    let mode = mode & 0o7777;
    let path = types::shell::path(path);
    (mode & OTHERS_WRITE != 0).then(|| format!("others can write to it (mode {mode:o}): type `chmod go-w {path}`"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("state/landbridge");
        Folder::make_private(&path).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        for allowed in [0o755, 0o750] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(allowed)).unwrap();
            Folder::make_private(&path).unwrap();
        }
        for (open, shown) in [(0o775, "775"), (0o757, "757"), (0o1777, "1777")] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(open)).unwrap();
            let error = Folder::make_private(&path).unwrap_err().to_string();
            assert!(error.contains(shown) && error.contains("chmod go-w"), "{error}");
        }
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let path = Path::new("/home/ann/.config/landbridge");
        assert_eq!(problem((7, 0o40700), 7, path), None);
        assert_eq!(problem((0, 0o40755), 7, path), None, "root could do anything anyway");
        assert!(problem((8, 0o40700), 7, path).unwrap().contains("belongs to user 8, not to user 7"));
        assert!(problem((8, 0o40700), 0, path).is_some(), "root follows nobody");
    }

    #[test]
    fn the_command_to_type_survives_a_shell() {
        let found = problem((7, 0o40775), 7, Path::new("/home/ann/my files; ls")).unwrap();
        assert!(found.ends_with("type `chmod go-w '/home/ann/my files; ls'`"), "{found}");
    }
}
