//! The sending side: lists files and folders, then reads them block by block.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use folder::{Folders, Named, through};
use memory::Pages;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::acl::{self, Acl, People};
use crate::area;
use crate::blocks::FilePiece;
use crate::blocks::Hash;
use crate::error::{At, StageError};
use crate::journal::UNKNOWN;
use crate::manifest::{Attributes, Entry, EntryKind, Manifest, Stamp, below};
use crate::reader::FileReader;
use crate::relaid::{Layouts, Relaid};
use crate::writers::{self, Unsteady};

/// Prefix of attributes that are moved, besides access control lists. `security.` and `trusted.` belong to the machine.
const TRAVELLING: &[u8] = b"user.";
/// The `statfs` type of file systems in user space.
const FUSE: u32 = 0x6573_5546;

/// A file, or a folder with its contents.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    root: Root,
    manifest: Manifest,
    /// The file read last, left open.
    open: Option<(u32, OwnedFd)>,
    reader: FileReader,
    unsteady: Unsteady,
}

#[derive(Debug)]
enum Root {
    File(OwnedFd),
    Folder(Folders),
    Relaid(Box<Relaid>),
}

impl Source {
    /// Lists a file or folder. `path` itself may be a symbolic link to one; links below it are not followed.
    ///
    /// # Errors
    /// [`StageError`] if it cannot be read, or contains something that cannot be moved.
    pub fn open(path: &Path) -> Result<Source, StageError> {
        // Without NONBLOCK, opening a pipe waits for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = Named::resolve(path).and_then(|named| Ok(named.open(flags, Mode::empty())?)).at("open", path)?;
        let found = rustix::fs::fstat(&fd).at("examine", path)?;
        let mut lister = Lister::new(path);
        let root = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => {
                let attributes = lister.attributes_of(&Of::Open(fd.as_fd()), path)?;
                lister.file(Vec::new(), &found, attributes, || fd.try_clone().map_err(|_| Errno::MFILE))?;
                Root::File(fd)
            }
            FileType::Directory => {
                let mut folders = Folders::new(fd);
                lister.folder(&mut folders, &found)?;
                Root::Folder(folders)
            }
            other => return Err(StageError::Special { path: path.to_owned(), what: name_of(other) }),
        };
        let manifest = Manifest { entries: lister.entries };
        Ok(Source::new(path, root, manifest))
    }

    /// The files of an array's processes, presented in another layout. `pattern` contains [`crate::relaid::PROCESS`].
    ///
    /// # Errors
    /// [`StageError`] if a file is missing or its size does not match its layout.
    pub fn relaid(pattern: &Path, layouts: &Layouts) -> Result<Source, StageError> {
        let (relaid, manifest) = Relaid::open(pattern, layouts)?;
        let root = Root::Relaid(Box::new(relaid));
        Ok(Source::new(pattern, root, manifest))
    }

    fn new(path: &Path, root: Root, manifest: Manifest) -> Source {
        let (reader, unsteady) = Default::default();
        Source { path: path.to_owned(), root, manifest, open: None, reader, unsteady }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Device and inode of the root. A target uses them to detect that it is its own source.
    ///
    /// # Errors
    /// [`StageError`].
    pub fn identity(&self) -> Result<(u64, u64), StageError> {
        let found = match &self.root {
            Root::File(fd) => rustix::fs::fstat(fd),
            Root::Folder(folders) => rustix::fs::fstat(folders.root()),
            Root::Relaid(relaid) => relaid.root().examine(),
        };
        let found = found.at("examine", &self.path)?;
        Ok((found.st_dev, found.st_ino))
    }

    /// Reads the pieces of a block into `block`, replacing its contents.
    ///
    /// # Errors
    /// [`StageError::Changed`] if a file has changed since it was listed.
    pub fn read(&mut self, pieces: &[FilePiece], block: &mut Pages) -> Result<Hash, StageError> {
        self.fill(pieces, block)?;
        Ok(*blake3::hash(block).as_bytes())
    }

    /// Like [`Source::read`], but computes the hash only if it is wanted.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub(crate) fn block(&mut self, pieces: &[FilePiece], bytes: &mut Pages, hashed: bool) -> Result<Hash, StageError> {
        if hashed { self.read(pieces, bytes) } else { self.fill(pieces, bytes).map(|()| UNKNOWN) }
    }

    fn fill(&mut self, pieces: &[FilePiece], block: &mut Pages) -> Result<(), StageError> {
        let length = pieces.iter().map(|piece| piece.length as usize).sum();
        block.resize(length);
        let mut rest = &mut block[..];
        for piece in pieces.iter().filter(|piece| piece.length > 0) {
            let (part, after) = rest.split_at_mut(piece.length as usize);
            self.read_piece(*piece, part)?;
            rest = after;
        }
        Ok(())
    }

    fn read_piece(&mut self, piece: FilePiece, part: &mut [u8]) -> Result<(), StageError> {
        if let Root::Relaid(relaid) = &mut self.root {
            return relaid.read(piece.entry, piece.offset, part);
        }
        self.read_unchecked(piece, part)?;
        match self.unsteady.read(piece, part) {
            true => Ok(()),
            false => Err(self.changed(piece.entry, "it was written to".to_owned())),
        }
    }

    fn changed(&self, entry: u32, what: String) -> StageError {
        let path = self.manifest.entries.get(entry as usize).map_or(self.path.clone(), |entry| entry.below(&self.path));
        StageError::Changed { path, what }
    }

    fn read_unchecked(&mut self, piece: FilePiece, part: &mut [u8]) -> Result<(), StageError> {
        let Some((entry, EntryKind::File { stamp, .. })) =
            self.manifest.entries.get(piece.entry as usize).map(|entry| (entry, &entry.kind))
        else {
            return Err(StageError::Manifest(format!("entry {} is no file", piece.entry)));
        };
        let shown = || entry.below(&self.path);
        let changed = |what: String| StageError::Changed { path: shown(), what };
        let gone = || changed("it was removed or replaced".to_owned());
        if self.open.as_ref().is_none_or(|(open, _)| *open != piece.entry) {
            let fd = match &self.root {
                Root::File(fd) => fd.try_clone().at("open", shown())?,
                Root::Relaid(_) => return Err(gone()),
                Root::Folder(folders) => {
                    match folders.open(&entry.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
                        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Err(gone()),
                        opened => opened.at("open", shown())?,
                    }
                }
            };
            let opened = self.unsteady.opened(&fd, stamp.attempt != 0).at("examine", shown())?;
            if !opened {
                return Err(changed("somebody has opened it for writing".to_owned()));
            }
            self.open = Some((piece.entry, fd));
        }
        let Some((_, fd)) = &self.open else { return Err(gone()) };
        let read = self.reader.read(fd, part, piece.offset).at("read", shown())?;
        if read < part.len() {
            let end = piece.offset + read as u64;
            return Err(changed(format!("it ends at {end} of {} bytes", stamp.size)));
        }
        match difference(stamp, &rustix::fs::fstat(fd).at("examine", shown())?) {
            None => Ok(()),
            Some(what) => Err(changed(what)),
        }
    }

    /// Checks that every file is unchanged since it was listed. A check before anything is put in place ensures that
    /// all contents are of one version.
    ///
    /// # Errors
    /// [`StageError::Changed`].
    pub fn check(&mut self) -> Result<(), StageError> {
        self.open = None;
        if let Root::Relaid(relaid) = &mut self.root {
            return relaid.check();
        }
        for entry in &self.manifest.entries {
            let EntryKind::File { stamp, .. } = &entry.kind else { continue };
            let path = || entry.below(&self.path);
            let found = match &mut self.root {
                Root::File(fd) => rustix::fs::fstat(fd),
                Root::Relaid(relaid) => relaid.root().examine(),
                Root::Folder(folders) => folders
                    .parent(&entry.path)
                    .and_then(|(folder, name)| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)),
            };
            let what = match found {
                Ok(found) => difference(stamp, &found),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Some("it was removed or replaced".to_owned()),
                Err(error) => return Err(error).at("examine", path()),
            };
            if let Some(what) = what {
                return Err(StageError::Changed { path: path(), what });
            }
        }
        self.read_again()
    }

    /// Reads those parts again whose changes the times do not show.
    fn read_again(&mut self) -> Result<(), StageError> {
        let mut part = Vec::new();
        for piece in self.unsteady.again() {
            part.resize(piece.length as usize, 0);
            self.read_unchecked(piece, &mut part)?;
            if !self.unsteady.is_same(piece, &part) {
                return Err(self.changed(piece.entry, "it was written to".to_owned()));
            }
        }
        Ok(())
    }
}

pub(crate) fn stamp_of(found: &Stat) -> Stamp {
    let nanoseconds = |seconds: i64, nanoseconds: u64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    Stamp {
        inode: found.st_ino,
        size: found.st_size as u64,
        modified: nanoseconds(found.st_mtime, found.st_mtime_nsec),
        changed: nanoseconds(found.st_ctime, found.st_ctime_nsec),
        attempt: 0,
    }
}

pub(crate) fn difference(listed: &Stamp, found: &Stat) -> Option<String> {
    let now = &Stamp { attempt: listed.attempt, ..stamp_of(found) };
    if found.st_nlink == 0 {
        Some("it was removed or replaced".to_owned())
    } else if listed.inode != now.inode {
        Some("another file has its name".to_owned())
    } else if listed.size != now.size {
        Some(format!("{} bytes became {}", listed.size, now.size))
    } else {
        (listed != now).then(|| "it was written to".to_owned())
    }
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "something unknown",
    }
}

/// The object whose attributes are read.
enum Of<'a> {
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

/// Walks a source and lists it.
struct Lister<'a> {
    path: &'a Path,
    entries: Vec<Entry>,
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
    fn new(path: &'a Path) -> Lister<'a> {
        let (entries, names, people, sizeless, timeless) = Default::default();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let attempt = (now.as_nanos() as u64).max(1);
        Lister { path, entries, names, attributes: true, people, sizeless, timeless, attempt }
    }

    fn folder(&mut self, folders: &mut Folders, found: &Stat) -> Result<(), StageError> {
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

    fn file(
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

    fn attributes_of(&mut self, of: &Of<'_>, shown: &Path) -> Result<Attributes, StageError> {
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
