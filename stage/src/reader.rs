//! Reads files without leaving them in the page cache, which belongs to the running application.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use rustix::io::{Errno, ReadWriteFlags, Result};

/// Flag for reads and writes that leave nothing in the page cache (`RWF_DONTCACHE`, Linux 6.14).
pub(crate) const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Reads with [`DONTCACHE`] until the kernel or the file system refuses it.
#[derive(Debug)]
pub(crate) struct FileReader {
    uncached: bool,
}

impl Default for FileReader {
    fn default() -> FileReader {
        FileReader { uncached: true }
    }
}

impl FileReader {
    /// Fills `part` from `offset` of a file. Returns the number of bytes: fewer at the end of the file.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn read(&mut self, file: impl AsFd, part: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < part.len() {
            let (rest, at) = (&mut part[done..], offset + done as u64);
            let read = if self.uncached {
                rustix::io::preadv2(&file, &mut [IoSliceMut::new(rest)], at, DONTCACHE)
            } else {
                rustix::io::pread(&file, rest, at)
            };
            match read {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) if self.uncached => self.uncached = false,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}
