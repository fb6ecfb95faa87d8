//! Receiving what a user pushes here: files arrive piece by piece, and appear atomically or not at all.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::error::HereError;
use crate::message::{Item, ItemKind, Reply};
use crate::parcel::place as place_of;
use crate::sums::Sums;

/// How long the next piece may take to arrive.
const PIECE: Duration = Duration::from_secs(120);
const PIECE_LEN: usize = 64 << 10;
const SUM_LEN: usize = 32;
/// The suffix of a file's name while the file arrives.
const PART: &str = ".landbridge-part";

/// Offered files that already exist here with the same length, by their sums.
///
/// # Errors
/// There is no home directory.
pub(crate) fn offer(items: &[Item]) -> Result<Reply, HereError> {
    let home = std::env::home_dir().ok_or(HereError::NoHome)?;
    let mut sums = Sums::of_user();
    let sum = |item: &Item| {
        let ItemKind::File { length, .. } = item.kind else { return None };
        let path = place_of(&home, &item.path, item.below_home);
        let found = std::fs::symlink_metadata(&path).ok()?;
        (found.is_file() && found.len() == length).then(|| sums.of(&path).ok()).flatten()
    };
    Ok(Reply::Has { sums: items.iter().map(sum).collect() })
}

/// Makes the items. The content and the sum of each file come from `input`. After a failure the rest is read and
/// dropped, so that the next request is understood.
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

/// Makes an item without content, and begins a file.
fn begin(item: &Item, path: &Path, home: &Path) -> Result<Option<Arriving>, HereError> {
    let wrong = HereError::file(path);
    let found = std::fs::symlink_metadata(path);
    match &item.kind {
        ItemKind::Folder { .. } => std::fs::create_dir_all(path).map(|()| None).map_err(wrong),
        ItemKind::Mode { mode } => {
            let other = |found: Metadata| found.permissions().mode() & 0o7777 != *mode;
            if found.is_ok_and(other) {
                std::fs::set_permissions(path, Permissions::from_mode(*mode)).map_err(wrong)?;
            }
            Ok(None)
        }
        ItemKind::Link { target, below_home } => {
            let target = place_of(home, target, *below_home);
            if std::fs::read_link(path).is_ok_and(|now| now == target) {
                return Ok(None);
            }
            make_parent(path)?;
            match found {
                Ok(found) if found.is_dir() => return Err(HereError::IsFolder(path.to_owned())),
                Ok(_) => std::fs::remove_file(path).map_err(&wrong)?,
                Err(_) => {}
            }
            std::os::unix::fs::symlink(&target, path).map(|()| None).map_err(wrong)
        }
        ItemKind::File { mode, .. } => {
            if found.is_ok_and(|found| found.is_dir()) {
                return Err(HereError::IsFolder(path.to_owned()));
            }
            Arriving::begin(path, *mode).map(Some)
        }
    }
}

fn make_parent(path: &Path) -> Result<(), HereError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(HereError::file(folder))
}

/// A file that is not complete yet. If it is never completed, it leaves nothing behind.
struct Arriving {
    path: PathBuf,
    part: PathBuf,
    file: File,
    digest: Sha256,
    mode: u32,
    complete: bool,
}

impl Arriving {
    fn begin(path: &Path, mode: u32) -> Result<Arriving, HereError> {
        make_parent(path)?;
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(PART);
        let part = path.with_file_name(name);
        let wrong = HereError::file(&part);
        let options = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&part);
        let file = options.map_err(&wrong)?;
        // A part that a crashed machine left behind is not locked, and is reused.
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK) {
            return Err(HereError::OtherPush(path.to_owned()));
        }
        let arriving =
            Arriving { path: path.to_owned(), part: part.clone(), file, digest: Sha256::new(), mode, complete: false };
        arriving.file.set_len(0).map_err(wrong)?;
        Ok(arriving)
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), HereError> {
        self.digest.update(bytes);
        self.file.write_all(bytes).map_err(|source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => HereError::NoRoom { path: self.path.clone(), source },
            _ => HereError::file(&self.path)(source),
        })
    }

    fn complete(mut self, sum: &[u8]) -> Result<(), HereError> {
        if self.digest.finalize_reset()[..] != *sum {
            return Err(HereError::NotWhole(self.path.clone()));
        }
        let done = self
            .file
            .set_permissions(Permissions::from_mode(self.mode))
            .and_then(|()| std::fs::rename(&self.part, &self.path));
        self.complete = done.is_ok();
        done.map_err(HereError::file(&self.path))
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if !self.complete {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}
