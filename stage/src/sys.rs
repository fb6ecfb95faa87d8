//! System calls that have no safe form.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};

use crate::control::Level;

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

/// Whether a file is open for writing, or mapped, by anybody on this machine. `None`: the file system cannot say, or
/// says it to the file's owner alone. The file must be open for reading only.
///
/// The kernel gives nobody a lease for reading while there is a writer. The lease is given back at once.
pub(crate) fn has_writer(file: BorrowedFd<'_>) -> Option<bool> {
    /// `F_SETSIG`: the signal by which a holder learns that somebody opens the file for writing. By default it is one
    /// that ends a process; this one is ignored.
    const SET_SIGNAL: libc::c_int = 10;
    // SAFETY: the calls take no memory, and the file is open for as long as it is borrowed.
    let call = |command: libc::c_int, value: libc::c_int| unsafe { libc::fcntl(file.as_raw_fd(), command, value) };
    if call(SET_SIGNAL, libc::SIGURG) != 0 {
        return None;
    }
    if call(libc::F_SETLEASE, libc::F_RDLCK) == 0 {
        call(libc::F_SETLEASE, libc::F_UNLCK);
        return Some(false);
    }
    (std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)).then_some(true)
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

/// Gives the calling thread this right to a core, and to a disk where the disk's scheduler knows such rights. Only ever
/// less than it has. Best effort: where the system refuses, the thread keeps what it has.
pub(crate) fn take_level(level: Level) {
    /// `ioprio_set`: a thread's, and the class of those that wait for everybody else.
    const THREAD: libc::c_long = 1;
    const IDLE_CLASS: libc::c_long = 3 << 13;
    match level {
        Level::Normal => {}
        Level::Low => {
            // Linux gives threads a nice value each; the call is for the calling thread.
            let _ = rustix::process::setpriority_process(None, 10);
        }
        Level::Idle => {
            // SAFETY: an all-zero `sched_param` is a valid one, and the kernel only reads it.
            unsafe {
                let parameter: libc::sched_param = std::mem::zeroed();
                libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter);
            }
            // SAFETY: the call takes no memory.
            unsafe {
                libc::syscall(libc::SYS_ioprio_set, THREAD, 0 as libc::c_long, IDLE_CLASS);
            }
        }
    }
}

/// Where the kernel divides cores among sessions first (`sched_autogroup_enabled`), a thread's own right counts within
/// its session alone: gives this process's session the right of a level. `waits`: it never asks for more rights than
/// are left over. If it may, the lowest level is not the system's lowest: the thread that measures whether it needs
/// more is in the session too, and must get a core in time. Best effort.
pub(crate) fn lower_session(level: Level, waits: bool) {
    let nice = match level {
        Level::Normal => "0",
        Level::Low => "10",
        Level::Idle if waits => "19",
        Level::Idle => "14",
    };
    let _ = std::fs::write("/proc/self/autogroup", nice);
}
