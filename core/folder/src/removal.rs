//! Removing an entry of a folder, with all its contents.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use crate::{Folder, identity_of, through};

impl Folder {
    /// Removes a file, link or folder, if it exists. Folders are emptied through their descriptors. A folder that is
    /// exchanged meanwhile stays.
    ///
    /// # Errors
    /// The system's; another folder has taken the name.
    pub fn remove(&self, name: &[u8]) -> io::Result<()> {
        let found = match self.stat(name) {
            Err(Errno::NOENT) => return Ok(()),
            found => found?,
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return self.unlink(name, AtFlags::empty());
        }
        let inner = self.enter(name)?;
        inner.clear()?;
        self.remove_empty(name, &inner)
    }

    /// Removes all contents of this folder.
    ///
    /// # Errors
    /// As [`Folder::remove`].
    pub fn clear(&self) -> io::Result<()> {
        let names = match self.names() {
            Err(Errno::ACCESS) => {
                self.unseal()?;
                self.names()
            }
            names => names,
        };
        for name in names? {
            match self.remove(&name) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && self.unseal().is_ok() => {
                    self.remove(&name)?;
                }
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Removes `inner`, which is empty, from this folder, if it still has this name.
    ///
    /// # Errors
    /// As [`Folder::remove`].
    pub fn remove_empty(&self, name: &[u8], inner: &Folder) -> io::Result<()> {
        let own = inner.identity()?;
        match self.stat(name) {
            Err(Errno::NOENT) => Ok(()),
            Ok(found) if identity_of(&found) == own => self.unlink(name, AtFlags::REMOVEDIR),
            Ok(_) => Err(io::Error::other("somebody has renamed it, and something else has its name now")),
            Err(error) => Err(error.into()),
        }
    }

    fn unlink(&self, name: &[u8], flags: AtFlags) -> io::Result<()> {
        match rustix::fs::unlinkat(self, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives this user all permissions for the folder, because its mode may let nobody change it.
    ///
    /// # Errors
    /// The system's: it belongs to somebody else.
    pub fn unseal(&self) -> io::Result<()> {
        // The mode of an `O_PATH` descriptor cannot be changed directly. This path leads to it without a name.
        Ok(rustix::fs::chmod(through(self.0.as_fd(), b""), Mode::from_raw_mode(0o700))?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_folder_goes_with_all_that_is_in_it_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("tree/a/b/c")).unwrap();
        std::fs::create_dir(at("precious")).unwrap();
        std::fs::write(at("precious/file"), "x").unwrap();
        std::fs::write(at("tree/a/b/file"), "x").unwrap();
        symlink(at("precious"), at("tree/a/link")).unwrap();
        std::fs::set_permissions(at("tree/a/b"), std::fs::Permissions::from_mode(0o000)).unwrap();
        std::fs::set_permissions(at("tree"), std::fs::Permissions::from_mode(0o500)).unwrap();
        let held = Folder::open(folder.path()).unwrap();
        held.remove(b"tree").unwrap();
        held.remove(b"never-there").unwrap();
        assert!(!at("tree").exists() && at("precious/file").exists());
    }

    #[test]
    fn a_folder_that_was_exchanged_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("mine")).unwrap();
        let held = Folder::open(folder.path()).unwrap();
        let mine = held.enter(b"mine").unwrap();
        std::fs::rename(at("mine"), at("aside")).unwrap();
        std::fs::create_dir(at("mine")).unwrap();
        assert!(held.remove_empty(b"mine", &mine).unwrap_err().to_string().contains("has its name now"));
        assert!(at("mine").exists());
    }
}
