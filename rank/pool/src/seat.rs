//! The data that an endpoint publishes about itself to the others of its region.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{Ordering, fence};

use crate::host::HostId;
use crate::layout::LINE;
use crate::mapping::Mapping;

/// An endpoint as the others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its process id.
    pub pid: u32,
    /// The host on which that process id is valid.
    pub host: HostId,
    /// Address of the datagram socket that wakes it.
    pub doorbell: SocketAddr,
    /// Address and value of a word of its memory. Others read the word to test whether they can read that memory.
    pub probe: (u64, u64),
}

/// The state of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatState {
    /// Not taken yet.
    Empty,
    /// Taken.
    Open,
    /// Given back.
    Closed,
}

const EMPTY: u64 = 0;
const OPEN: u64 = 1;

/// Words of a seat, in the order of their offsets.
#[derive(Clone, Copy)]
enum Word {
    State,
    Pid,
    Host,
    DoorbellPort,
    /// The first and the second half of the doorbell's IPv6 address, or of the IPv4 address mapped to one.
    DoorbellHigh,
    DoorbellLow,
    ProbeAddress,
    ProbeValue,
}

/// The seat at an offset of the region's fixed part.
pub(crate) struct SeatAt<'a> {
    pub fixed: &'a Mapping,
    pub offset: u64,
}

impl SeatAt<'_> {
    fn word(&self, word: Word) -> &std::sync::atomic::AtomicU64 {
        self.fixed.word(self.offset + word as u64 * 8)
    }

    pub(crate) fn state(&self) -> SeatState {
        match self.word(Word::State).load(Ordering::Acquire) {
            EMPTY => SeatState::Empty,
            OPEN => SeatState::Open,
            _ => SeatState::Closed,
        }
    }

    /// Publishes an endpoint in this seat. Only for the seat's owner.
    pub(crate) fn take(&self, seat: &Seat) {
        let put = |word, value| self.word(word).store(value, Ordering::Relaxed);
        put(Word::Pid, seat.pid.into());
        put(Word::Host, seat.host.0);
        let ip = match seat.doorbell.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        put(Word::DoorbellPort, seat.doorbell.port().into());
        put(Word::DoorbellHigh, (ip.to_bits() >> 64) as u64);
        put(Word::DoorbellLow, ip.to_bits() as u64);
        put(Word::ProbeAddress, seat.probe.0);
        put(Word::ProbeValue, seat.probe.1);
        self.word(Word::State).store(OPEN, Ordering::Release);
    }

    /// Closes the seat. Only for the seat's owner.
    pub(crate) fn leave(&self) {
        self.word(Word::State).store(OPEN + 1, Ordering::Release);
    }

    /// The endpoint that its owner published; meaningless while the state is [`SeatState::Empty`].
    pub(crate) fn read(&self) -> Seat {
        let get = |word| self.word(word).load(Ordering::Relaxed);
        let ip = u128::from(get(Word::DoorbellHigh)) << 64 | u128::from(get(Word::DoorbellLow));
        let ip = IpAddr::V6(Ipv6Addr::from_bits(ip)).to_canonical();
        Seat {
            pid: get(Word::Pid) as u32,
            host: HostId(get(Word::Host)),
            doorbell: SocketAddr::new(ip, get(Word::DoorbellPort) as u16),
            probe: (get(Word::ProbeAddress), get(Word::ProbeValue)),
        }
    }

    /// Publishes the owner's current nap, 0 if awake. Only for the owner, which checks its rings once more before it
    /// sleeps: the fence orders that check after this store.
    pub(crate) fn set_nap(&self, nap: u64) {
        self.fixed.word(self.offset + LINE).store(nap, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner's current nap, 0 if awake. A sleeping owner needs the doorbell to notice records published before this
    /// call. The fence orders their publication before this check, so at least one of the two sides sees the other's
    /// store.
    pub(crate) fn nap(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.fixed.word(self.offset + LINE).load(Ordering::Relaxed)
    }
}
