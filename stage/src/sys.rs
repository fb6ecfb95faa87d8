//! System calls that have no safe form.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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

/// Takes a socket that this process has inherited under this number. To be called once for each.
///
/// # Errors
/// It is not open, or no socket.
pub(crate) fn inherited(descriptor: i32) -> std::io::Result<OwnedFd> {
    let name = std::fs::read_link(format!("/proc/self/fd/{descriptor}"))?;
    if !name.as_os_str().to_string_lossy().starts_with("socket:") {
        return Err(std::io::Error::other(format!("it is {}, no socket", name.display())));
    }
    // SAFETY: the descriptor is open, and was inherited for no other purpose than this call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
