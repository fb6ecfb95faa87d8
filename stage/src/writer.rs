//! Writing without leaving the file in the page cache, which belongs to the running application.
//!
//! Which way the kernel and the file system have is found by trying: `RWF_DONTCACHE`; else each part is written back
//! and dropped while the next one is written; else the plain way.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::fs::Advice;
use rustix::io::{Errno, Result};

use crate::source::DONTCACHE;
use crate::sys;

/// Shorter writes go the plain way: the disk's turn for each would cost more than their pages.
const SHORT: usize = 64 << 10;

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// By `RWF_DONTCACHE`.
    #[default]
    Uncached,
    /// By `sync_file_range`, then `POSIX_FADV_DONTNEED`.
    WrittenBack,
    /// Through the page cache.
    Cached,
}

#[derive(Debug, Default)]
pub(crate) struct Writer {
    path: Path,
    /// The part that is being written back: which file, where and how long.
    behind: Option<(u32, u64, u64)>,
}

impl Writer {
    #[cfg(test)]
    pub(crate) fn by(path: Path) -> Writer {
        Writer { path, behind: None }
    }

    pub(crate) fn path(&self) -> Path {
        self.path
    }

    /// Writes all of `bytes` at `offset` of the file that has this number.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write(&mut self, file: BorrowedFd<'_>, number: u32, bytes: &[u8], offset: u64) -> Result<()> {
        let length = bytes.len() as u64;
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            let uncached = self.path == Path::Uncached && bytes.len() >= SHORT;
            let written = match uncached {
                true => rustix::io::pwritev2(file, &[IoSlice::new(rest)], at, DONTCACHE),
                false => rustix::io::pwrite(file, rest, at),
            };
            match written {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(count) => {
                    rest = &rest[count..];
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) if uncached => self.path = Path::WrittenBack,
                Err(error) => return Err(error),
            }
        }
        if self.path == Path::WrittenBack && bytes.len() >= SHORT {
            match self.write_back(file, number, offset, length) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::SPIPE | Errno::OPNOTSUPP) => self.path = Path::Cached,
                done => return done,
            }
        }
        Ok(())
    }

    /// Starts the disk on this part; waits for the one before, whose pages then go.
    fn write_back(&mut self, file: BorrowedFd<'_>, number: u32, offset: u64, length: u64) -> Result<()> {
        sys::write_back(file, offset, length, false)?;
        let behind = self.behind.replace((number, offset, length));
        if let Some((before, offset, length)) = behind
            && before == number
        {
            sys::write_back(file, offset, length, true)?;
            rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(length), Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Called when a file is complete: the pages of its last part go as well.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn finish(&mut self, file: BorrowedFd<'_>, number: u32) -> Result<()> {
        match self.behind.take() {
            Some((before, offset, length)) if before == number => {
                sys::write_back(file, offset, length, true)?;
                rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(length), Advice::DontNeed)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn each_path_writes_the_same() {
        for path in [Path::Uncached, Path::WrittenBack, Path::Cached] {
            let file = tempfile::tempfile().unwrap();
            let mut writer = Writer::by(path);
            let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 7) as u8).collect();
            for at in (0..bytes.len()).step_by(100_000) {
                writer.write(file.as_fd(), 1, &bytes[at..at + 100_000], at as u64).unwrap();
            }
            writer.finish(file.as_fd(), 1).unwrap();
            let mut read = vec![0; bytes.len()];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut read, 0).unwrap();
            assert!(read == bytes, "{path:?}");
        }
    }
}
