//! Linux's measurements of a TCP connection (`TCP_INFO`), which no safe crate wraps.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Offsets of the kernel's count of segments that have arrived.
const ARRIVED: std::ops::Range<usize> = {
    let start = offset_of!(libc::tcp_info, tcpi_segs_in);
    start..start + size_of::<u32>()
};
/// Ends of the fields for bytes acknowledged, shortest round trip and rate of delivery.
const ACKNOWLEDGED_END: usize = offset_of!(libc::tcp_info, tcpi_bytes_acked) + size_of::<u64>();
const SHORTEST_END: usize = offset_of!(libc::tcp_info, tcpi_min_rtt) + size_of::<u32>();
const DELIVERY_END: usize = offset_of!(libc::tcp_info, tcpi_delivery_rate) + size_of::<u64>();
/// Offset of the byte whose lowest bit is `tcpi_delivery_rate_app_limited`. libc's structures have no bit fields and
/// leave it out: it follows the byte of the window scales.
const APPLICATION_LIMITED: usize = offset_of!(libc::tcp_info, tcpi_snd_rcv_wscale) + 1;
/// The kernel's value for an unknown shortest round trip.
const NO_ROUND_TRIP: u32 = u32::MAX;

/// Measurements of a TCP connection; see tcp(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub round_trip: Duration,
    /// Segments retransmitted.
    pub retransmissions: u64,
    /// Segments that have arrived, with or without data; wraps. The kernel counts them even before their bytes are
    /// read. `None`: the kernel is older than Linux 4.2.
    pub arrived: Option<u32>,
    /// Bytes that the peer has acknowledged. `None`: the kernel is older than Linux 4.1.
    pub acknowledged: Option<u64>,
    /// The shortest round trip of the last minutes (`net.ipv4.tcp_min_rtt_wlen`, 300 s by default), so a path that has
    /// become longer shows late. `None`: none is known yet, or the kernel is older than Linux 4.6.
    pub shortest: Option<Duration>,
    /// The last sample of the rate of delivery. `None`: there is none yet, or the kernel is older than Linux 4.9.
    pub delivery: Option<Delivery>,
}

/// A sample of the rate at which a connection delivered: the bytes acknowledged in about one round trip, divided by the
/// time this took (`net/ipv4/tcp_rate.c`; Cheng, Cardwell, Hassas Yeganeh, Jacobson, "Delivery Rate Estimation", IETF
/// draft).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Bytes per second, without headers. The kernel keeps the last sample that the application did not limit until
    /// another such sample or a higher one follows, so an idle connection shows an old sample.
    pub rate: u64,
    /// The application sent less than the path and the windows allowed, so the rate does not describe the path.
    pub application_limited: bool,
}

impl TcpInfo {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The error of `getsockopt`, for example if the socket is not a TCP socket.
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
        // SAFETY: the byte is inside `info`, and was zeroed before the kernel may have written it.
        let limits = unsafe { info.as_ptr().cast::<u8>().add(APPLICATION_LIMITED).read() };
        // SAFETY: the structure has integers only, all zero where the kernel (an older one may know fewer fields) wrote
        // nothing.
        let info = unsafe { info.assume_init() };
        Ok(TcpInfo {
            round_trip: Duration::from_micros(info.tcpi_rtt.into()),
            retransmissions: info.tcpi_total_retrans.into(),
            arrived: (length as usize >= ARRIVED.end).then_some(info.tcpi_segs_in),
            acknowledged: (length as usize >= ACKNOWLEDGED_END).then_some(info.tcpi_bytes_acked),
            shortest: (length as usize >= SHORTEST_END && ![0, NO_ROUND_TRIP].contains(&info.tcpi_min_rtt))
                .then(|| Duration::from_micros(info.tcpi_min_rtt.into())),
            delivery: (length as usize >= DELIVERY_END && info.tcpi_delivery_rate > 0)
                .then_some(Delivery { rate: info.tcpi_delivery_rate, application_limited: limits & 1 != 0 }),
        })
    }
}

/// Signs of life of the kernel at the other end, which acknowledges and answers even if no process there runs.
#[derive(Debug, Default)]
pub struct Arrivals {
    before: Option<u32>,
}

impl Arrivals {
    /// True if segments have arrived since the last look, according to [`TcpInfo::arrived`]. At the first look the
    /// connection is new, which counts as an arrival. `None`: our own kernel does not count.
    pub fn look(&mut self, arrived: Option<u32>) -> Option<bool> {
        let before = std::mem::replace(&mut self.before, arrived);
        arrived.map(|_| before != arrived)
    }
}

/// A reachable machine acknowledges a ping within this time; one ping is sent per second.
const ANSWERS_NS: u64 = 2_500_000_000;

/// The machine at the other end. Its kernel acknowledges pings even if the process there does not run.
#[derive(Debug, Default)]
pub struct Machine {
    arrivals: Arrivals,
    at_ns: Option<u64>,
}

impl Machine {
    /// True if segments from it have arrived recently. `arrived` is [`TcpInfo::arrived`]; times are of any one clock.
    pub fn answers(&mut self, arrived: Option<u32>, now_ns: u64) -> bool {
        if self.arrivals.look(arrived) == Some(true) {
            self.at_ns = Some(now_ns);
        }
        self.at_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < ANSWERS_NS)
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
    fn a_connection_that_sent_much_has_a_rate_and_an_idle_one_shows_who_limits_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let reader = std::thread::spawn(move || {
            let mut taken = vec![0; 1 << 16];
            std::iter::from_fn(|| far.read(&mut taken).ok().filter(|count| *count > 0)).sum::<usize>()
        });
        let mut limited = Vec::new();
        for _ in 0..256 {
            near.write_all(&[7; 1 << 16]).unwrap();
            limited.extend(TcpInfo::of(&near).unwrap().delivery.map(|delivery| delivery.application_limited));
        }
        let info = TcpInfo::of(&near).unwrap();
        assert!(info.delivery.unwrap().rate > 1 << 20, "{info:?}");
        assert!(info.acknowledged.unwrap() > 1 << 20 && info.shortest.unwrap() < info.round_trip * 2, "{info:?}");
        assert!(limited.contains(&false), "it was filled all the time");
        drop(near);
        assert_eq!(reader.join().unwrap(), 256 << 16);

        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        for _ in 0..20 {
            near.write_all(b"a few bytes").unwrap();
            far.read_exact(&mut [0; 11]).unwrap();
            far.write_all(b"x").unwrap();
            near.read_exact(&mut [0; 1]).unwrap();
        }
        let info = TcpInfo::of(&near).unwrap();
        assert!(info.delivery.is_none_or(|delivery| delivery.application_limited), "{info:?}");
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
