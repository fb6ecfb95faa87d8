//! Receives files that a user pushes here: they arrive piece by piece, and appear atomically or not at all.

use std::fs::Permissions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use folder::{Folder, Fresh, Named, through};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::error::HereError;
use crate::message::{Item, ItemKind, Reply};
use crate::parcel::place as place_of;
use crate::sums::Sums;

/// Time limit for the next piece to arrive.
const PIECE: Duration = Duration::from_secs(120);
const PIECE_LEN: usize = 64 << 10;
const SUM_LEN: usize = 32;
/// The suffix of a file's name while the file arrives.
const PART: &[u8] = b".landbridge-part";
/// Mode of missing folders that are made for a path, before the user's umask.
const FOLDER: Mode = Mode::from_raw_mode(0o777);

/// Answers an offer: finds the offered files that already exist here with the same length, and returns their sums.
///
/// # Errors
/// There is no home directory.
pub(crate) fn offer(items: &[Item]) -> Result<Reply, HereError> {
    let home = std::env::home_dir().ok_or(HereError::NoHome)?;
    let mut sums = Sums::of_user();
    let sum = |item: &Item| {
        let ItemKind::File { length, .. } = item.kind else { return None };
        let path = place_of(&home, &item.path, item.below_home);
        let found = Folder::of(&path).ok()?.stat().ok()?;
        (kind_of(&found) == FileType::RegularFile && found.st_size as u64 == length)
            .then(|| sums.of(&path).ok())
            .flatten()
    };
    Ok(Reply::Has { sums: items.iter().map(sum).collect() })
}

/// Makes the items. The content and the sum of each file come from `input`. After a failure, the remaining content is
/// read and discarded, so that the next request is understood.
///
/// # Errors
/// The connection is lost or silent, so no further request can be understood.
pub(crate) async fn place(items: &[Item], input: &mut (impl AsyncRead + Unpin)) -> Result<Reply, HereError> {
    let home = std::env::home_dir().ok_or(HereError::NoHome)?;
    let mut failed: Option<HereError> = None;
    for item in items {
        let path = place_of(&home, &item.path, item.below_home);
        let writing = if failed.is_none() { begin(item, &path, &home) } else { Ok(None) };
        let mut arriving = match writing {
            Ok(arriving) => arriving,
            Err(error) => {
                failed = Some(error);
                None
            }
        };
        let ItemKind::File { length, .. } = item.kind else { continue };
        let mut left = length;
        let mut piece = vec![0; PIECE_LEN];
        while left > 0 {
            let most = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = read(input, &mut piece[..most]).await?;
            left -= count as u64;
            if let Some(Err(error)) = arriving.as_mut().map(|arriving| arriving.take(&piece[..count])) {
                (failed, arriving) = (Some(error), None);
            }
        }
        let mut sum = [0; SUM_LEN];
        let mut filled = 0;
        while filled < SUM_LEN {
            filled += read(input, &mut sum[filled..]).await?;
        }
        if let Some(Err(error)) = arriving.map(|arriving| arriving.complete(&sum)) {
            failed = Some(error);
        }
    }
    failed.map_or_else(|| Ok(Reply::Done { note: String::new() }), Err)
}

async fn read(input: &mut (impl AsyncRead + Unpin), piece: &mut [u8]) -> Result<usize, HereError> {
    match timeout(PIECE, input.read(piece)).await {
        Ok(Ok(count @ 1..)) => Ok(count),
        _ => Err(HereError::Cut),
    }
}

/// Makes an item without content, or begins a file. No path is resolved twice: others may write to the folders around
/// it.
fn begin(item: &Item, path: &Path, home: &Path) -> Result<Option<ArrivingFile>, HereError> {
    let wrong = HereError::file(path);
    match &item.kind {
        ItemKind::Folder { .. } => Folder::make_all(path, FOLDER).map(|_| None).map_err(wrong),
        ItemKind::Mode { mode } => set_mode(path, *mode).map(|()| None).map_err(wrong),
        ItemKind::Link { target, below_home } => {
            let target = place_of(home, target, *below_home);
            let named = Folder::make_of(path, FOLDER).map_err(&wrong)?;
            match there(&named).map_err(&wrong)? {
                Some(FileType::Directory) => return Err(HereError::IsFolder(path.to_owned())),
                Some(FileType::Symlink) if leads_to(&named, &target) => return Ok(None),
                Some(_) => {
                    let gone = rustix::fs::unlinkat(&named.folder, &named.name[..], AtFlags::empty());
                    gone.map_err(|error| wrong(error.into()))?;
                }
                None => {}
            }
            let made = rustix::fs::symlinkat(&target, &named.folder, &named.name[..]);
            made.map(|()| None).map_err(|error| wrong(error.into()))
        }
        ItemKind::File { mode, .. } => {
            let named = Folder::make_of(path, FOLDER).map_err(&wrong)?;
            if there(&named).map_err(&wrong)? == Some(FileType::Directory) {
                return Err(HereError::IsFolder(path.to_owned()));
            }
            ArrivingFile::begin(path, named, *mode).map(Some)
        }
    }
}

fn kind_of(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn there(named: &Named) -> io::Result<Option<FileType>> {
    match named.stat() {
        Err(Errno::NOENT) => Ok(None),
        found => Ok(Some(kind_of(&found?))),
    }
}

fn leads_to(named: &Named, target: &Path) -> bool {
    let found = rustix::fs::readlinkat(&named.folder, &named.name[..], Vec::new());
    found.is_ok_and(|found| found.as_bytes() == target.as_os_str().as_bytes())
}

/// Gives a file or folder this mode, unless it has it. A link stands for its target if this user made the link.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let named = Named::resolve(path)?;
    // The file may have permissions that let nobody open it.
    let opened = match named.open(OFlags::PATH, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let found = rustix::fs::fstat(&opened)?;
    if kind_of(&found) != FileType::Symlink && found.st_mode & 0o7777 != mode {
        // Uses a path to the descriptor: this kind of descriptor cannot be changed itself.
        rustix::fs::chmod(through(&opened, b""), Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// A file that is not complete yet. If it is dropped incomplete, it leaves nothing behind.
struct ArrivingFile {
    path: PathBuf,
    name: Vec<u8>,
    fresh: Fresh,
    digest: Sha256,
    mode: u32,
}

impl ArrivingFile {
    fn begin(path: &Path, named: Named, mode: u32) -> Result<ArrivingFile, HereError> {
        let Named { folder, name } = named;
        match Fresh::make(&folder, &[b".", &name[..], PART].concat()) {
            Ok(fresh) => Ok(ArrivingFile { path: path.to_owned(), name, fresh, digest: Sha256::new(), mode }),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(HereError::OtherPush(path.to_owned())),
            Err(error) => Err(HereError::file(path)(error)),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), HereError> {
        self.digest.update(bytes);
        self.fresh.file.write_all(bytes).map_err(|source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => HereError::NoRoom { path: self.path.clone(), source },
            _ => HereError::file(&self.path)(source),
        })
    }

    fn complete(mut self, sum: &[u8]) -> Result<(), HereError> {
        if self.digest.finalize_reset()[..] != *sum {
            return Err(HereError::NotWhole(self.path.clone()));
        }
        let wrong = HereError::file(&self.path);
        self.fresh.file.set_permissions(Permissions::from_mode(self.mode)).map_err(&wrong)?;
        match self.fresh.place(&self.name) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(HereError::OtherPush(self.path.clone())),
            placed => placed.map_err(wrong),
        }
    }
}
