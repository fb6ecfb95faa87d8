//! Permissions, attributes and times of new files and folders, and a record of those that cannot be kept.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use types::untrusted::printable;

use crate::acl::{self, Acl, People};
use crate::error::{At, StageError};
use crate::manifest::{Entry, EntryKind};

/// Permission bits that a file keeps. Set-id bits are dropped: the file belongs to this user now, and they would let
/// others act as this user.
const FILE_BITS: u32 = 0o1777;
/// Permission bits that a folder keeps.
pub(super) const FOLDER_BITS: u32 = 0o3777;
/// Set-group-id of a folder: its new contents get its group.
pub(super) const SET_GROUP: u32 = 0o2000;
/// Prefix of attributes that a sender may set. `security.` and `trusted.` belong to the machine, and access control
/// lists have names of their own in transit.
const ALLOWED: &[u8] = b"user.";

/// Sets the metadata of files and folders.
#[derive(Debug)]
pub(super) struct Dresser {
    without: bool,
    people: People,
    lost: Option<Lost>,
    absent: Option<Lost>,
}

/// Metadata that could not be kept.
#[derive(Debug)]
struct Lost {
    /// Number of files and folders.
    count: u64,
    /// Description of the first case.
    what: String,
    path: PathBuf,
}

impl Dresser {
    /// `without`: drop attributes and access control lists.
    pub(super) fn new(without: bool) -> Dresser {
        Dresser { without, people: People::default(), lost: None, absent: None }
    }

    /// Sets permissions, attributes and times of an open file or folder.
    ///
    /// # Errors
    /// System errors. An attribute that cannot be kept here is not an error: see [`Dresser::notes`].
    pub(super) fn dress(&mut self, file: &OwnedFd, entry: &Entry, path: &Path) -> Result<(), StageError> {
        let mut mode = entry.mode & if entry.kind == EntryKind::Folder { FOLDER_BITS } else { FILE_BITS };
        let mut lost = None;
        for (name, value) in &entry.attributes {
            let list = acl::at_file(name).and_then(|_| Acl::of_text(value));
            let kept = match (self.without, &list) {
                (true, _) => Err(Errno::OPNOTSUPP),
                (false, Some(list)) => self.set_list(file, name, list, path),
                (false, None) if name.starts_with(ALLOWED) => {
                    rustix::fs::fsetxattr(file, &name[..], value, XattrFlags::empty())
                }
                (false, None) => Err(Errno::PERM),
            };
            let Err(error) = kept else { continue };
            // Without the list, these mode bits would be the list's mask, and would grant it to the owning group.
            if let Some(group) = list.filter(|_| acl::is_access(name)).and_then(|list| list.group_bits()) {
                mode = mode & !0o070 | group << 3;
            }
            if !is_for_want_of_room_or_support(error) {
                return Err(error).at("set the attributes of", path);
            }
            let shown = printable(&String::from_utf8_lossy(name));
            lost.get_or_insert_with(|| format!("{shown}: {}", std::io::Error::from(error)));
        }
        if let Some(what) = lost.filter(|_| !self.without) {
            self.lost.get_or_insert_with(|| Lost { count: 0, what, path: path.to_owned() }).count += 1;
        }
        if entry.kind == EntryKind::Folder {
            // A new folder inherits this bit and the group from its parent.
            mode |= rustix::fs::fstat(file).at("examine", path)?.st_mode & SET_GROUP;
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).at("set the permissions of", path)?;
        rustix::fs::futimens(file, &times(entry)).at("set the time of", path)
    }

    fn set_list(&mut self, file: &OwnedFd, name: &[u8], list: &Acl, path: &Path) -> rustix::io::Result<()> {
        let Some(at_file) = acl::at_file(name) else { return Err(Errno::PERM) };
        let mut absent = Vec::new();
        let value = list.for_file(&mut self.people, &mut absent);
        rustix::fs::fsetxattr(file, at_file, &value, XattrFlags::empty())?;
        if let Some(first) = absent.into_iter().next() {
            let what = printable(&first);
            self.absent.get_or_insert_with(|| Lost { count: 0, what, path: path.to_owned() }).count += 1;
        }
        Ok(())
    }

    /// Notes for the user about metadata that could not be kept.
    pub(super) fn notes(&self) -> Vec<String> {
        let lost = self.lost.iter().map(|Lost { count, what, path }| {
            let path = printable(&path.to_string_lossy());
            format!("of {count} files or folders, not all attributes are kept here; first of {path} {what}")
        });
        let absent = self.absent.iter().map(|Lost { count, what, path }| {
            let path = printable(&path.to_string_lossy());
            format!(
                "of {count} files or folders, the access control lists have users or groups without an account here, \
                 who are left out; first of {path} {what}"
            )
        });
        lost.chain(absent).collect()
    }
}

/// Returns true if the file system has no room for an attribute, or does not support it.
fn is_for_want_of_room_or_support(error: Errno) -> bool {
    let room = [Errno::NOSPC, Errno::DQUOT, Errno::TOOBIG, Errno::RANGE, Errno::NAMETOOLONG];
    let support = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::PERM, Errno::INVAL, Errno::ACCESS];
    room.contains(&error) || support.contains(&error)
}

pub(super) fn times(entry: &Entry) -> Timestamps {
    let (seconds, nanoseconds) = entry.modified;
    let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW }, last_modification: modified }
}
