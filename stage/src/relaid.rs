//! A source whose files are computed: the input files hold the parts of an array in one layout, and the source presents
//! them in another layout.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use folder::Folder;
use plan::redistribution::files::{Files, FilesError, Stretch, elements};
use plan::redistribution::text;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::{At, StageError};
use crate::manifest::{Entry, EntryKind, Manifest, Stamp};
use crate::source::{difference, stamp_of};

/// Placeholder for a process's number in a file name.
pub const PROCESS: &[u8] = b"%r";
/// Maximum number of open files.
const OPEN: usize = 256;

/// Files in one layout to be presented in another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layouts {
    /// In the syntax of [`text::parse`].
    pub from: String,
    pub to: String,
    /// The names of the new files; contains [`PROCESS`].
    pub name: Vec<u8>,
}

/// Faults in the texts of layouts and in the names of their files.
#[derive(Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LayoutsError {
    #[error("layout {layout}: {error}")]
    Layout { layout: String, error: text::TextError },
    #[error("elements of {from} bytes cannot become elements of {to} bytes")]
    Elements { from: u64, to: u64 },
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("{}: the name of the files needs %r, which is a process's number", .0.display())]
    NoProcess(PathBuf),
    #[error("{}: %r may be in the name of the files alone", .0.display())]
    ProcessInFolder(PathBuf),
}

impl Layouts {
    /// The array's two layouts, and the size of an element in bytes.
    ///
    /// # Errors
    /// [`LayoutsError`] if there is a fault in the texts.
    pub fn read(&self) -> Result<(Files, u64), LayoutsError> {
        let parse =
            |text: &str| text::parse(text).map_err(|error| LayoutsError::Layout { layout: text.to_owned(), error });
        let ((from, bytes), (to, other)) = (parse(&self.from)?, parse(&self.to)?);
        if bytes != other {
            return Err(LayoutsError::Elements { from: bytes, to: other });
        }
        Ok((Files::new(from, to)?, bytes))
    }
}

/// Splits a path into its folder and a name with [`PROCESS`] in it.
///
/// # Errors
/// The name lacks [`PROCESS`], or the folder contains it.
pub fn split_pattern(path: &Path) -> Result<(PathBuf, Vec<u8>), LayoutsError> {
    let missing = || LayoutsError::NoProcess(path.to_owned());
    let name = path.file_name().ok_or_else(missing)?.as_bytes();
    if !has_process(name) {
        return Err(missing());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match has_process(folder.as_os_str().as_bytes()) {
        true => Err(LayoutsError::ProcessInFolder(path.to_owned())),
        false => Ok((folder.to_owned(), name.to_vec())),
    }
}

fn has_process(bytes: &[u8]) -> bool {
    bytes.windows(PROCESS.len()).any(|two| two == PROCESS)
}

/// Inserts a process's number into a name.
fn numbered(name: &[u8], process: u32) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), name);
    while let Some(at) = rest.windows(PROCESS.len()).position(|two| two == PROCESS) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(process.to_string().as_bytes());
        rest = &rest[at + PROCESS.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[derive(Debug)]
pub(crate) struct Relaid {
    folder: PathBuf,
    root: Folder,
    name: Vec<u8>,
    files: Arc<Files>,
    /// Size of an element in bytes.
    element: u64,
    stamps: Vec<Stamp>,
    open: HashMap<u32, OwnedFd>,
}

impl Relaid {
    /// Finds the input files, and lists the files to present.
    ///
    /// # Errors
    /// [`StageError`] if an input file is missing or its size does not match its layout.
    pub(crate) fn open(pattern: &Path, layouts: &Layouts) -> Result<(Relaid, Manifest), StageError> {
        let conflict = |problem: String| StageError::Conflict { path: pattern.to_owned(), problem };
        let fault = |fault: LayoutsError| conflict(fault.to_string());
        let (folder, name) = split_pattern(pattern).map_err(fault)?;
        let (files, element) = layouts.read().map_err(fault)?;
        let root = Folder::open(&folder).at("open", &folder)?;
        let (mut stamps, mut mode, mut modified) = (Vec::new(), 0o600, (0, 0));
        for process in 0..files.from().processes() {
            let own = numbered(&name, process);
            let path = folder.join(OsStr::from_bytes(&own));
            let found = root.stat(&own).at("find", &path)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
                return Err(StageError::Special { path, what: "no file" });
            }
            let (size, expected) = (found.st_size as u64, elements(files.from(), process).saturating_mul(element));
            if size != expected {
                let problem = format!("it has {size} bytes; process {process} of {} has {expected}", layouts.from);
                return Err(StageError::Conflict { path, problem });
            }
            (mode, modified) = (found.st_mode & 0o777, modified.max((found.st_mtime, found.st_mtime_nsec as u32)));
            stamps.push(stamp_of(&found));
        }
        let found = root.examine().at("examine", &folder)?;
        let root_entry = Entry {
            path: Vec::new(),
            kind: EntryKind::Folder,
            mode: found.st_mode & 0o777,
            modified: (found.st_mtime, found.st_mtime_nsec as u32),
            attributes: Vec::new(),
        };
        // A change of any input file counts as a change of all presented files.
        let all = postcard::to_stdvec(&(&stamps, &layouts.from, &layouts.to)).map_err(|e| conflict(e.to_string()))?;
        let hash = *blake3::hash(&all).as_bytes();
        let inode = hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        let mut entries = vec![root_entry];
        for process in 0..files.to().processes() {
            let size = elements(files.to(), process).saturating_mul(element);
            let data = Vec::from_iter((size > 0).then_some((0, size)));
            let stamp = Stamp { inode, size, modified: 0, changed: 0, attempt: 0 };
            let path = numbered(&layouts.name, process);
            entries.push(Entry { path, kind: EntryKind::File { stamp, data }, mode, modified, attributes: Vec::new() });
        }
        let files = Arc::new(files);
        let relaid = Relaid { folder, root, name, files, element, stamps, open: HashMap::new() };
        Ok((relaid, Manifest { entries }))
    }

    pub(crate) fn root(&self) -> &Folder {
        &self.root
    }

    /// Reads bytes of a presented file. Its entry is the number of its process plus 1; entry 0 is the folder.
    ///
    /// # Errors
    /// [`StageError`].
    pub(crate) fn read(&mut self, entry: u32, offset: u64, mut part: &mut [u8]) -> Result<(), StageError> {
        let process = entry.saturating_sub(1);
        let ended = || StageError::Manifest(format!("file {process} ends before {offset}"));
        // A clone ends the borrow of `self`, which opening files needs.
        let files = self.files.clone();
        let file = files.file(process);
        let mut at = offset;
        while !part.is_empty() {
            let (number, within) = (at / self.element, at % self.element);
            let Stretch { from, length } = file.at(number).ok_or_else(ended)?;
            let bytes = (length.saturating_mul(self.element) - within).min(part.len() as u64);
            let (now, rest) = part.split_at_mut(bytes as usize);
            match from {
                None => now.fill(0),
                Some((source, first)) => self.read_source(source, first * self.element + within, now)?,
            }
            part = rest;
            at += bytes;
        }
        Ok(())
    }

    fn path(&self, process: u32) -> PathBuf {
        self.folder.join(OsStr::from_bytes(&numbered(&self.name, process)))
    }

    fn read_source(&mut self, process: u32, mut offset: u64, mut part: &mut [u8]) -> Result<(), StageError> {
        let path = self.path(process);
        let changed = |what: &str| StageError::Changed { path: path.clone(), what: what.to_owned() };
        if !self.open.contains_key(&process) {
            if self.open.len() >= OPEN {
                self.open.clear();
            }
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let name = numbered(&self.name, process);
            let fd = match self.root.beneath(&name, flags, Mode::empty()) {
                Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Err(changed("it was removed or replaced")),
                opened => opened.at("open", &path)?,
            };
            self.open.insert(process, fd);
        }
        let Some(fd) = self.open.get(&process) else { return Err(changed("it was removed or replaced")) };
        while !part.is_empty() {
            match rustix::io::pread(fd, &mut *part, offset) {
                Ok(0) => return Err(changed("it has become shorter")),
                Ok(count) => {
                    offset += count as u64;
                    part = &mut part[count..];
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).at("read", &path),
            }
        }
        Ok(())
    }

    /// Checks that every input file is unchanged since it was listed.
    ///
    /// # Errors
    /// [`StageError::Changed`].
    pub(crate) fn check(&mut self) -> Result<(), StageError> {
        self.open.clear();
        for (process, stamp) in (0..).zip(&self.stamps) {
            let path = self.path(process);
            let name = numbered(&self.name, process);
            let what = match self.root.stat(&name) {
                Ok(found) => difference(stamp, &found),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Some("it was removed or replaced".to_owned()),
                Err(error) => return Err(error).at("examine", path),
            };
            if let Some(what) = what {
                return Err(StageError::Changed { path, what });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_one_place_for_the_process() {
        assert_eq!(split_pattern(Path::new("a/x.%r")), Ok((PathBuf::from("a"), b"x.%r".to_vec())));
        assert_eq!(split_pattern(Path::new("x%r")), Ok((PathBuf::from("."), b"x%r".to_vec())));
        assert!(split_pattern(Path::new("a/x")).unwrap_err().to_string().contains("needs %r"));
        assert!(split_pattern(Path::new("a%r/x%r")).unwrap_err().to_string().contains("alone"));
        assert_eq!(numbered(b"a.%r.b%r", 12), b"a.12.b12");
    }

    #[test]
    fn layouts_that_do_not_fit_are_refused() {
        let read = |from: &str, to: &str| Layouts { from: from.into(), to: to.into(), name: b"x%r".to_vec() }.read();
        assert!(read("4x4/8:block(2),*", "4x4/8:*,block(4)").is_ok());
        assert!(read("4x4/8:*,*", "4x4/4:*,*").unwrap_err().to_string().contains("8 bytes cannot become"));
        assert!(read("4x4/8:*,*", "4x5/8:*,*").unwrap_err().to_string().contains("shape"));
        assert!(read("4x4/8:*", "4x4/8:*,*").unwrap_err().to_string().contains("layout 4x4/8:*: 1 axes"));
    }
}
