//! What the kernel knows of a TCP connection. The only unsafe code of this crate: no safe crate wraps `TCP_INFO`.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// See tcp(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// Smoothed round trip.
    pub round_trip: Duration,
    /// Segments sent again.
    pub retransmissions: u64,
}

/// Asks the kernel.
pub(crate) fn of(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed; the kernel writes at most `length` bytes to `info`, which is so long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is integers only, all zero where the kernel (an older one may know fewer fields) wrote nothing.
    let info = unsafe { info.assume_init() };
    Ok(TcpInfo {
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
        retransmissions: info.tcpi_total_retrans.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_connection_that_was_used_has_a_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        near.write_all(b"hello").unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
        let info = super::of(&near).unwrap();
        assert!(info.round_trip.as_micros() > 0 && info.retransmissions == 0, "{info:?}");
        assert!(super::of(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
