//! System calls without a safe wrapper.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};

use crate::control::Level;

/// Starts writing a part of a file to its disk; with `wait`, waits until it is there (`sync_file_range`).
///
/// # Errors
/// System errors; `EINVAL` or `ENOSYS` if the file system or the kernel does not support it.
pub(crate) fn write_back(file: BorrowedFd<'_>, offset: u64, length: u64, wait: bool) -> Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WRITE
        | if wait { libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER } else { 0 };
    let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
        return Err(Errno::INVAL);
    };
    // SAFETY: the call passes no pointer, and the file stays open while it is borrowed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Returns true if any process on this machine has a file open for writing or mapped. `None`: the file system cannot
/// report it, or reports it to the file's owner only. The file must be open for reading only.
///
/// The kernel grants no read lease while there is a writer. The lease is given back at once.
pub(crate) fn has_writer(file: BorrowedFd<'_>) -> Option<bool> {
    /// `F_SETSIG`: the signal that notifies a lease holder when another process opens the file for writing. The default
    /// signal ends a process; this one is ignored.
    const SET_SIGNAL: libc::c_int = 10;
    // SAFETY: the calls pass no pointer, and the file stays open while it is borrowed.
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

/// Takes over a socket that this process inherited under this number. Call it once per descriptor.
///
/// # Errors
/// The descriptor is not open, or is not a socket.
pub(crate) fn inherited(descriptor: i32) -> std::io::Result<OwnedFd> {
    let name = std::fs::read_link(format!("/proc/self/fd/{descriptor}"))?;
    if !name.as_os_str().to_string_lossy().starts_with("socket:") {
        return Err(std::io::Error::other(format!("it is {}, no socket", name.display())));
    }
    // SAFETY: the descriptor is open, and was inherited for no other purpose than this call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Sets the CPU priority of the calling thread, and its disk priority where the disk's scheduler has priorities. Only
/// ever lowers them. Best effort: where the system refuses, the thread keeps its priority.
pub(crate) fn take_level(level: Level) {
    /// `ioprio_set`: the target is a thread, and the class is idle.
    const THREAD: libc::c_long = 1;
    const IDLE_CLASS: libc::c_long = 3 << 13;
    match level {
        Level::Normal => {}
        Level::Low => {
            // Linux keeps a nice value for each thread; this call sets the calling thread's.
            let _ = rustix::process::setpriority_process(None, 10);
        }
        Level::Idle => {
            // SAFETY: an all-zero `sched_param` is a valid one, and the kernel only reads it.
            unsafe {
                let parameter: libc::sched_param = std::mem::zeroed();
                libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter);
            }
            // SAFETY: the call passes no pointer.
            unsafe {
                libc::syscall(libc::SYS_ioprio_set, THREAD, 0 as libc::c_long, IDLE_CLASS);
            }
        }
    }
}

/// Sets the priority of this process's session. Where the kernel divides cores among sessions first
/// (`sched_autogroup_enabled`), a thread's priority counts within its session only. `waits`: the transfer uses idle
/// cores only. Otherwise the lowest level stays above the system's lowest: the measuring thread is in the same session,
/// and must get a core in time. Best effort.
pub(crate) fn lower_session(level: Level, waits: bool) {
    let nice = match level {
        Level::Normal => "0",
        Level::Low => "10",
        Level::Idle if waits => "19",
        Level::Idle => "14",
    };
    let _ = std::fs::write("/proc/self/autogroup", nice);
}
