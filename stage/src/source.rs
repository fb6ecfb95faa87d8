//! The sending side: lists files and folders, then reads them block by block.

mod lister;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use folder::{Folders, Named};
use memory::Pages;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::blocks::FilePiece;
use crate::blocks::Hash;
use crate::error::{At, StageError};
use crate::journal::UNKNOWN;
use crate::manifest::{EntryKind, Manifest, Stamp};
use crate::reader::FileReader;
use crate::relaid::{Layouts, Relaid};
use crate::writers::Unsteady;
use lister::{Lister, Of};

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
