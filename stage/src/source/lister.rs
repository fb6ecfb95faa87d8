//! Listing of a source: the manifest of its entries.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::SystemTime;

use folder::{Folders, through};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::{FUSE, TRAVELLING, name_of, stamp_of};
use crate::acl::{self, Acl, People};
use crate::area;
use crate::error::{At, StageError};
use crate::manifest::{Attributes, Entry, EntryKind, Stamp, below};
use crate::writers;

/// Walks a source and lists it.
pub(super) struct Lister<'a> {
    path: &'a Path,
    pub(super) entries: Vec<Entry>,
    /// First entries of files with several hard links, by device and inode.
    names: HashMap<(u64, u64), u32>,
    /// False once the file system has refused attributes.
    attributes: bool,
    people: People,
    /// By device: true if a file there may have contents although its size is 0.
    sizeless: HashMap<u64, bool>,
    /// By device: true if writes through a mapping change no times there.
    timeless: HashMap<u64, bool>,
    attempt: u64,
}

impl<'a> Lister<'a> {
    pub(super) fn new(path: &'a Path) -> Lister<'a> {
        let (entries, names, people, sizeless, timeless) = Default::default();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let attempt = (now.as_nanos() as u64).max(1);
        Lister { path, entries, names, attributes: true, people, sizeless, timeless, attempt }
    }

    pub(super) fn folder(&mut self, folders: &mut Folders, found: &Stat) -> Result<(), StageError> {
        let attributes = self.attributes_of(&Of::Open(folders.root()), self.path)?;
        self.entry(Vec::new(), EntryKind::Folder, found, attributes);
        let mut waiting = vec![Vec::new()];
        while let Some(folder) = waiting.pop() {
            let shown = below(self.path, &folder);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let fd = folders.open(&folder, flags, Mode::empty()).at("open", &shown)?;
            let mut names = Vec::new();
            for found in Dir::read_from(&fd).at("list", &shown)? {
                let found = found.at("list", &shown)?;
                let name: &CStr = found.file_name();
                if !matches!(name.to_bytes(), b"." | b"..") && !area::is_area(name.to_bytes()) {
                    names.push(name.to_bytes().to_vec());
                }
            }
            // Sort, so that the order does not depend on the file system.
            names.sort_unstable();
            let mut inner = Vec::new();
            for name in names {
                let mut path = folder.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&name);
                if self.within(&fd, &name, &path)? {
                    inner.push(path);
                }
            }
            waiting.extend(inner.into_iter().rev());
        }
        Ok(())
    }

    /// Lists the entry of this name in a folder. Returns true if it is a folder.
    fn within(&mut self, folder: &OwnedFd, name: &[u8], path: &[u8]) -> Result<bool, StageError> {
        let shown = below(self.path, path);
        let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).at("examine", &shown)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        match kind {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(folder, name, Vec::new()).at("read the link", &shown)?;
                self.entry(path.to_vec(), EntryKind::Link(target.into_bytes()), &found, Vec::new());
            }
            FileType::Directory | FileType::RegularFile => {
                let attributes = self.attributes_of(&Of::Named(folder.as_fd(), name), &shown)?;
                if kind == FileType::Directory {
                    self.entry(path.to_vec(), EntryKind::Folder, &found, attributes);
                    return Ok(true);
                }
                self.file(path.to_vec(), &found, attributes, || {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    rustix::fs::openat(folder, name, flags, Mode::empty())
                })?;
            }
            other => return Err(StageError::Special { path: shown, what: name_of(other) }),
        }
        Ok(false)
    }

    pub(super) fn file(
        &mut self,
        path: Vec<u8>,
        found: &Stat,
        attributes: Attributes,
        open: impl Fn() -> rustix::io::Result<OwnedFd>,
    ) -> Result<(), StageError> {
        if found.st_nlink > 1 {
            let number = self.entries.len() as u32;
            let first = *self.names.entry((found.st_dev, found.st_ino)).or_insert(number);
            if first != number {
                self.entry(path, EntryKind::Same(first), found, Vec::new());
                return Ok(());
            }
        }
        let size = found.st_size as u64;
        let shown = || below(self.path, &path);
        let attempt = self.attempt_of(found, &open).at("examine", shown())?;
        let data = match size {
            0 => {
                self.refuse_sizeless(found, open, &shown())?;
                Vec::new()
            }
            _ if (found.st_blocks as u64).saturating_mul(512) >= size => vec![(0, size)],
            _ => extents(&open().at("open", shown())?, size).at("find the holes of", shown())?,
        };
        let kind = EntryKind::File { stamp: Stamp { attempt, ..stamp_of(found) }, data };
        self.entry(path, kind, found, attributes);
        Ok(())
    }

    /// The value of [`Stamp::attempt`] for a file.
    fn attempt_of(&mut self, found: &Stat, open: impl Fn() -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<u64> {
        if found.st_size == 0 || self.timeless.get(&found.st_dev) == Some(&false) {
            return Ok(0);
        }
        // An unreadable file is refused later, when it is read.
        let Ok(file) = open() else { return Ok(0) };
        let timeless = writers::is_in_memory(&file)?;
        self.timeless.insert(found.st_dev, timeless);
        Ok(if timeless && writers::has_writer(&file) { self.attempt } else { 0 })
    }

    /// Refuses files that the kernel or a process generates on reading: their size is 0 although they have contents.
    fn refuse_sizeless(
        &mut self,
        found: &Stat,
        open: impl FnOnce() -> rustix::io::Result<OwnedFd>,
        shown: &Path,
    ) -> Result<(), StageError> {
        if self.sizeless.get(&found.st_dev) == Some(&false) {
            return Ok(());
        }
        // An unreadable file counts as empty.
        let Ok(file) = open() else { return Ok(()) };
        let system = rustix::fs::fstatfs(&file).at("examine the file system of", shown)?;
        let sizeless = system.f_blocks == 0 || system.f_type as u32 == FUSE;
        self.sizeless.insert(found.st_dev, sizeless);
        if sizeless && rustix::io::pread(&file, &mut [0u8; 1][..], 0).is_ok_and(|read| read > 0) {
            let path = shown.to_owned();
            return Err(StageError::Special { path, what: "a file that has contents and says that it has 0 bytes" });
        }
        Ok(())
    }

    fn entry(&mut self, path: Vec<u8>, kind: EntryKind, found: &Stat, attributes: Attributes) {
        let mode = found.st_mode & 0o7777;
        let modified = (found.st_mtime, found.st_mtime_nsec as u32);
        self.entries.push(Entry { path, kind, mode, modified, attributes });
    }

    pub(super) fn attributes_of(&mut self, of: &Of<'_>, shown: &Path) -> Result<Attributes, StageError> {
        if !self.attributes {
            return Ok(Vec::new());
        }
        let names = match grown(|buffer| of.names(buffer)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.attributes = false;
                return Ok(Vec::new());
            }
            names => names.at("list the attributes of", shown)?,
        };
        let mut found = Vec::new();
        let list = |name: &[u8]| acl::travelling(name).is_some();
        for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(TRAVELLING) || list(name)) {
            let value = match grown(|buffer| of.value(name, buffer)) {
                Err(Errno::NODATA) => continue,
                value => value.at("read the attributes of", shown)?,
            };
            match acl::travelling(name) {
                None => found.push((name.to_vec(), value)),
                Some(travelling) => {
                    // An unknown format cannot be translated into names, and its ids mean nothing elsewhere.
                    let list = Acl::of_file(&value, &mut self.people);
                    found.extend(list.map(|list| (travelling.to_vec(), list.to_text())));
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// The object whose attributes are read.
pub(super) enum Of<'a> {
    Open(BorrowedFd<'a>),
    /// A folder, and a name in it that may be a link.
    Named(BorrowedFd<'a>, &'a [u8]),
}

impl Of<'_> {
    fn names(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Of::Open(fd) => rustix::fs::flistxattr(fd, buffer),
            Of::Named(folder, name) => rustix::fs::llistxattr(through(*folder, name), buffer),
        }
    }

    fn value(&self, name: &[u8], buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Of::Open(fd) => rustix::fs::fgetxattr(fd, name, buffer),
            Of::Named(folder, file) => rustix::fs::lgetxattr(through(*folder, file), name, buffer),
        }
    }
}

/// Finds the data extents of a file.
fn extents(fd: &OwnedFd, size: u64) -> rustix::io::Result<Vec<(u64, u64)>> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let begin = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(begin) if begin < size => begin,
            Ok(_) | Err(Errno::NXIO) => break,
            // The file system does not support holes.
            Err(Errno::INVAL) => return Ok(vec![(0, size)]),
            Err(error) => return Err(error),
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(begin))?.min(size);
        if end <= begin {
            break;
        }
        found.push((begin, end - begin));
        at = end;
    }
    Ok(found)
}

/// Calls with a small buffer, then with one of the maximum size if needed.
fn grown(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = [0u8; 512];
    match call(&mut buffer) {
        Ok(length) => return Ok(buffer[..length].to_vec()),
        Err(Errno::RANGE) => {}
        Err(error) => return Err(error),
    }
    // The kernel's limit for a value and for the list of names.
    let mut buffer = vec![0u8; 64 << 10];
    let length = call(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}
