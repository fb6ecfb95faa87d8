//! A system call that rustix does not have.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

/// Begins to write a part of a file to its disk, and with `wait` waits until it is there (`sync_file_range`).
///
/// # Errors
/// The system's; `EINVAL` or `ENOSYS` where the file system or the kernel cannot.
pub(crate) fn write_back(file: BorrowedFd<'_>, offset: u64, length: u64, wait: bool) -> Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WRITE
        | if wait { libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER } else { 0 };
    let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
        return Err(Errno::INVAL);
    };
    // SAFETY: the call takes no memory, and the file is open for as long as it is borrowed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
