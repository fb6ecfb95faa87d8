//! Events that end a sleep: datagrams to a socket of ours, and the end of a neighbour's process.

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const BELL: u64 = u64::MAX;
const EVENTS: usize = 16;
/// Datagrams taken after a sleep; any further ones only shorten the next sleep.
const RINGS: usize = 32;

pub(super) struct Doorbell {
    socket: UdpSocket,
    address: SocketAddr,
    epoll: OwnedFd,
}

/// The watch over a process's end.
#[derive(Debug)]
pub(super) enum ProcessWatch {
    /// Its end is reported, as long as this is open.
    Yes(#[expect(dead_code, reason = "open is all it has to be")] OwnedFd),
    /// It has already ended.
    Ended,
    /// The system does not report it (before Linux 5.3): the job's agent notices instead.
    No,
}

impl Doorbell {
    /// Binds a doorbell at an address of this node.
    pub(super) fn bind(address: IpAddr) -> std::io::Result<Doorbell> {
        let socket = UdpSocket::bind(SocketAddr::new(address, 0))?;
        socket.set_nonblocking(true)?;
        let address = SocketAddr::new(address, socket.local_addr()?.port());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Doorbell { socket, address, epoll })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Rings another endpoint's doorbell. A lost ring costs the rest of a nap.
    pub(super) fn ring(&self, other: SocketAddr) {
        let _ = self.socket.send_to(&[], other);
    }

    /// Discards all rings.
    pub(super) fn silence(&self) {
        let mut nothing = [0; 1];
        for _ in 0..RINGS {
            if self.socket.recv(&mut nothing).is_err() {
                return;
            }
        }
    }

    /// Watches a process: after its end, `name` is among [`Doorbell::ended`].
    pub(super) fn watch(&self, pid: u32, name: u64) -> ProcessWatch {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return ProcessWatch::Ended };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => match epoll::add(&self.epoll, &process, EventData::new_u64(name), EventFlags::IN) {
                Ok(()) => ProcessWatch::Yes(process),
                Err(_) => ProcessWatch::No,
            },
            Err(rustix::io::Errno::SRCH) => ProcessWatch::Ended,
            Err(_) => ProcessWatch::No,
        }
    }

    /// Names of the watched processes that have ended.
    pub(super) fn ended(&self) -> Vec<u64> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call found nothing.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&zero)) else { return Vec::new() };
        ready.iter().map(|event| event.data.u64()).filter(|name| *name != BELL).collect()
    }
}
