//! What Linux knows about a TCP connection: no safe crate wraps `TCP_INFO`.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Offset at which the kernel writes how many segments have arrived.
const ARRIVED: std::ops::Range<usize> = {
    let start = offset_of!(libc::tcp_info, tcpi_segs_in);
    start..start + size_of::<u32>()
};

/// See tcp(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub round_trip: Duration,
    /// Segments retransmitted.
    pub retransmissions: u64,
    /// Segments that have arrived, with or without data; wraps. The kernel counts them whether or not their bytes are
    /// read. `None`: it is older than Linux 4.2.
    pub arrived: Option<u32>,
}

impl TcpInfo {
    /// Asks the kernel.
    ///
    /// # Errors
    /// That of `getsockopt`, for example if the socket is not one of TCP.
    pub fn of(socket: impl AsFd) -> io::Result<TcpInfo> {
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the descriptor is open while it is borrowed; the kernel writes at most `length` bytes to `info`,
        // which has that length.
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
            arrived: (length as usize >= ARRIVED.end).then_some(info.tcpi_segs_in),
        })
    }
}

/// Signs of life of the kernel at the other end, which acknowledges and answers whether or not a process there runs.
#[derive(Debug, Default)]
pub struct Arrivals {
    before: Option<u32>,
}

impl Arrivals {
    /// Whether anything has arrived since the last look, from [`TcpInfo::arrived`]. At the first look the connection is
    /// new: something has. `None`: our own kernel does not count.
    pub fn look(&mut self, arrived: Option<u32>) -> Option<bool> {
        let before = std::mem::replace(&mut self.before, arrived);
        arrived.map(|_| before != arrived)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::{Arrivals, TcpInfo};

    #[test]
    fn only_what_has_come_since_the_last_look_is_new() {
        let mut arrivals = Arrivals::default();
        let looks = [Some(4), Some(4), Some(5), Some(5), None, Some(5)].map(|arrived| arrivals.look(arrived));
        assert_eq!(looks, [Some(true), Some(false), Some(true), Some(false), None, Some(true)]);
    }

    #[test]
    fn a_connection_that_was_used_has_a_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        near.write_all(b"hello").unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
        let info = TcpInfo::of(&near).unwrap();
        assert!(info.round_trip.as_micros() > 0 && info.retransmissions == 0, "{info:?}");
        assert!(TcpInfo::of(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }

    #[test]
    fn what_arrives_is_counted_before_it_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let before = TcpInfo::of(&far).unwrap().arrived.unwrap();
        near.write_all(b"hello").unwrap();
        far.peek(&mut [0; 5]).unwrap();
        assert_eq!(TcpInfo::of(&far).unwrap().arrived, Some(before + 1));
        far.read_exact(&mut [0; 5]).unwrap();
    }
}
