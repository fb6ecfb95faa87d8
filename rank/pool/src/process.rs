//! Single copy: reading another process's memory straight into our own.

use std::io;

/// Maximum number of pieces per call.
pub(crate) const MAX_PIECES: usize = 8;

/// Lets processes of this user read this one's memory where the system requires permission (`kernel.yama.ptrace_scope =
/// 1`), as other MPI transports do. If the kernel refuses, or needs no permission, nothing changes: readers test the
/// access before they rely on it.
pub fn allow_reading() {
    // EINVAL means that the kernel has no such rule.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}

/// Reads from the memory of process `pid`: concatenates the bytes of `pieces` (address, length), skips the first `skip`
/// and copies as many as fit into `into`. Returns the number of bytes read.
///
/// # Errors
/// The system's error: EPERM (not allowed), ESRCH (no such process), EFAULT (an address that is not mapped there).
pub fn read_process(pid: u32, pieces: &[(u64, u64)], skip: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PIECES];
    let (mut count, mut skip, mut left) = (0, skip, into.len() as u64);
    for (address, length) in pieces {
        let passed = skip.min(*length);
        skip -= passed;
        let wanted = (length - passed).min(left);
        left -= wanted;
        if wanted == 0 {
            continue;
        }
        let Some(place) = remote.get_mut(count) else { break };
        *place = libc::iovec { iov_base: address.wrapping_add(passed) as *mut libc::c_void, iov_len: wanted as usize };
        count += 1;
    }
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the kernel writes at most `into.len()` bytes to `into`, which is exclusively ours, and checks the remote
    // addresses itself; both arrays have the lengths passed with them.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), count as libc::c_ulong, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_and_skipped() {
        let (a, b) = (*b"abcd", *b"efghij");
        let pieces = [(a.as_ptr() as u64, 4), (b.as_ptr() as u64, 6)];
        let own = std::process::id();
        for (skip, length, expected) in [(0, 10, "abcdefghij"), (2, 4, "cdef"), (5, 9, "fghij"), (4, 1, "e")] {
            let mut into = vec![0; length];
            assert_eq!(read_process(own, &pieces, skip, &mut into).unwrap(), expected.len(), "from {skip}");
            assert_eq!(&into[..expected.len()], expected.as_bytes());
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let mut into = [0; 8];
        let nowhere = read_process(std::process::id(), &[(8, 8)], 0, &mut into).unwrap_err();
        assert_eq!(nowhere.raw_os_error(), Some(libc::EFAULT));
        let nobody = read_process(i32::MAX as u32, &[(into.as_ptr() as u64, 8)], 0, &mut into).unwrap_err();
        assert_eq!(nobody.raw_os_error(), Some(libc::ESRCH));
    }
}
