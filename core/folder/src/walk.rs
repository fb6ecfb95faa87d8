//! The way from a path to a descriptor, name by name.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::Folder;

/// Flags for opening folders on the way.
pub(crate) const WAY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The most links followed; Linux has the same limit.
const MOST_LINKS: u32 = 40;

/// A name in an open folder.
#[derive(Debug)]
pub struct Named {
    pub folder: Folder,
    /// The name there; `.`: the folder itself.
    pub name: Vec<u8>,
}

impl Named {
    /// Resolves a path. A link at its end is followed under the same rule as on the way ([`Folder::open`]).
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn resolve(path: &Path) -> io::Result<Named> {
        let mut walk = Walk::new(path, None)?;
        let name = walk.last_name(true)?.unwrap_or_else(|| b".".to_vec());
        Ok(Named { folder: Folder(walk.at), name })
    }

    /// As [`Named::resolve`], and makes missing folders on the way.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn resolve_or_make(path: &Path, mode: Mode) -> io::Result<Named> {
        let mut walk = Walk::new(path, Some(mode))?;
        let name = walk.last_name(true)?.unwrap_or_else(|| b".".to_vec());
        Ok(Named { folder: Folder(walk.at), name })
    }

    /// Opens the file or folder of this name. A link is not followed.
    ///
    /// # Errors
    /// The system's.
    pub fn open(&self, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(&self.folder, &self.name[..], flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)
    }

    /// Examines the entry of this name. A link is not followed.
    ///
    /// # Errors
    /// The system's.
    pub fn stat(&self) -> rustix::io::Result<Stat> {
        self.folder.stat(&self.name)
    }
}

pub(crate) fn folder(path: &Path, make: Option<Mode>) -> io::Result<Folder> {
    let mut walk = Walk::new(path, make)?;
    if let Some(name) = walk.last_name(true)? {
        walk.enter(&name)?;
    }
    Ok(Folder(walk.at))
}

/// As [`named`], but refuses a path whose meaning others can change.
pub(crate) fn unshared(path: &Path) -> io::Result<Named> {
    Walk { unshared: true, ..Walk::new(path, None)? }.named()
}

/// The users besides `user` and root who can rename entries of a folder, if any. In a sticky folder, only its owner
/// can.
fn others_who_rename(folder: &Stat, user: u32) -> Option<String> {
    let (owner, mode) = (folder.st_uid, folder.st_mode & 0o7777);
    if owner != user && owner != 0 {
        return Some(format!("user id {owner}"));
    }
    (mode & 0o022 != 0 && mode & 0o1000 == 0).then(|| format!("anybody to whom its mode {mode:o} allows it"))
}

pub(crate) fn named(path: &Path, make: Option<Mode>) -> io::Result<Named> {
    Walk::new(path, make)?.named()
}

struct Walk {
    at: OwnedFd,
    rest: VecDeque<Vec<u8>>,
    links: u32,
    /// The path walked so far, for messages.
    shown: PathBuf,
    make: Option<Mode>,
    /// True if a folder in which another user can rename entries ends the walk.
    unshared: bool,
}

impl Walk {
    fn new(path: &Path, make: Option<Mode>) -> io::Result<Walk> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let root = if bytes[0] == b'/' { "/" } else { "." };
        let at = rustix::fs::openat(CWD, root, WAY, Mode::empty())?;
        let mut walk = Walk { at, rest: VecDeque::new(), links: 0, shown: PathBuf::from(root), make, unshared: false };
        walk.prepend(bytes);
        Ok(walk)
    }

    fn prepend(&mut self, path: &[u8]) {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
        for part in parts.rev() {
            self.rest.push_front(part.to_vec());
        }
    }

    /// The folder and the last name, which is not followed.
    fn named(mut self) -> io::Result<Named> {
        match self.last_name(false)? {
            Some(name) => Ok(Named { folder: Folder(self.at), name }),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the path ends in no name")),
        }
    }

    /// Walks up to the last name, which may not exist. `None`: the path does not end in a name.
    fn last_name(&mut self, follow: bool) -> io::Result<Option<Vec<u8>>> {
        while let Some(name) = self.rest.pop_front() {
            if self.unshared {
                self.examine()?;
            }
            let is_last = self.rest.is_empty();
            if name == b".." {
                self.at = rustix::fs::openat(&self.at, "..", WAY, Mode::empty())?;
                self.shown.push("..");
                continue;
            }
            if is_last && !follow {
                return Ok(Some(name));
            }
            let found = rustix::fs::statat(&self.at, &name[..], AtFlags::SYMLINK_NOFOLLOW);
            let is_link = found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink);
            match is_link {
                true => self.follow(&name, found?)?,
                false if is_last => return Ok(Some(name)),
                false => self.enter(&name)?,
            }
        }
        Ok(None)
    }

    /// Fails if others than this user and root can rename entries of the folder reached.
    fn examine(&self) -> io::Result<()> {
        let found = rustix::fs::fstat(&self.at)?;
        let Some(who) = others_who_rename(&found, rustix::process::geteuid().as_raw()) else { return Ok(()) };
        let text = format!("{who} can rename what is in {:?}: name a path in folders of your own", self.shown);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    fn enter(&mut self, name: &[u8]) -> io::Result<()> {
        let opened = match (rustix::fs::openat(&self.at, name, WAY, Mode::empty()), self.make) {
            (Err(Errno::NOENT), Some(mode)) => {
                match rustix::fs::mkdirat(&self.at, name, mode) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                rustix::fs::openat(&self.at, name, WAY, Mode::empty())
            }
            (opened, _) => opened,
        };
        self.at = opened?;
        self.shown.push(OsStr::from_bytes(name));
        Ok(())
    }

    fn follow(&mut self, name: &[u8], link: Stat) -> io::Result<()> {
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        let around = rustix::fs::fstat(&self.at)?;
        if !is_trusted(link.st_uid, around.st_uid, rustix::process::geteuid().as_raw()) {
            let link_shown = self.shown.join(OsStr::from_bytes(name));
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{:?} is a link of user id {}, who could have it lead anywhere: name the folder that it leads to",
                    link_shown, link.st_uid
                ),
            ));
        }
        let target = rustix::fs::readlinkat(&self.at, name, Vec::new())?.into_bytes();
        if target.first() == Some(&b'/') {
            self.at = rustix::fs::openat(CWD, "/", WAY, Mode::empty())?;
            self.shown = PathBuf::from("/");
        }
        self.prepend(&target);
        Ok(())
    }
}

/// Returns true if `me` may follow a link of `owner`, who can redirect it at any time. The owner of the folder that
/// contains it could replace that folder's contents as well, but must not redirect root.
fn is_trusted(owner: u32, owner_around: u32, me: u32) -> bool {
    owner == me || owner == 0 || (me != 0 && owner == owner_around)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::identity_of;

    #[test]
    fn links_of_others_are_not_followed() {
        let (root, anna, bob) = (0, 7, 8);
        assert!(is_trusted(anna, root, anna) && is_trusted(root, bob, anna) && is_trusted(bob, bob, anna));
        assert!(!is_trusted(bob, root, anna) && !is_trusted(bob, anna, anna));
        assert!(!is_trusted(anna, anna, root) && is_trusted(root, anna, root));
    }

    #[test]
    fn a_path_means_what_it_means_to_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "x").unwrap();
        symlink("a/b", at("link")).unwrap();
        symlink(at("link"), at("a/over")).unwrap();
        symlink("file", at("a/b/same")).unwrap();
        symlink("round", at("round")).unwrap();
        for path in ["link/file", "a/over/../b/./same", "a//b/file", "link/../over/file"] {
            let named = Named::resolve(&at(path)).unwrap();
            let found = named.stat().unwrap();
            let expected = rustix::fs::statat(CWD, at(path), AtFlags::empty()).unwrap();
            assert_eq!(identity_of(&found), identity_of(&expected), "{path}");
        }
        assert!(Folder::open(&at("a/over")).unwrap().stat(b"file").is_ok());
        assert_eq!(Folder::of(&at("a/over")).unwrap().name, b"over");
        assert_eq!(Named::resolve(&at("a/b/..")).unwrap().name, b".");
        assert_eq!(Folder::open(&at("round")).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert!(Folder::open(&at("a/b/file")).is_err() && Folder::of(&at("a/..")).is_err());
        let made = Folder::make_of(&at("link/new/er/file"), Mode::from_raw_mode(0o755)).unwrap();
        assert!(made.folder.is_at(&Folder::open(&at("a/b/new")).unwrap(), b"er"));
    }

    #[test]
    fn where_others_can_rename_something_a_path_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let above = tempfile::tempdir().unwrap();
        let copy = above.path().join("group/anna/copy");
        std::fs::create_dir_all(&copy).unwrap();
        let group = above.path().join("group");
        for (mode, others) in [(0o755, false), (0o1777, false), (0o775, true), (0o757, true)] {
            std::fs::set_permissions(&group, PermissionsExt::from_mode(mode)).unwrap();
            let named = Folder::of_unshared(&copy);
            assert_eq!(named.is_err(), others, "{mode:o}");
            if let Err(error) = named {
                assert!(error.to_string().contains("group\": name a path in folders of your own"), "{error}");
            }
            assert!(Folder::of(&copy).is_ok());
        }
    }
}
