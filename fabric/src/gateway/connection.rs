//! The connection to one gateway.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use types::SiteId;
use wire::handshake::{Purpose, Welcome};

use crate::handshake::{Credentials, Initiator, Step};
use crate::reader::{Broken, Reader};

/// Nothing more is queued beyond this before the socket has taken some.
const QUEUED: usize = 64 << 10;
const MAX_SLICES: usize = 16;

pub(super) struct Connection {
    pub address: SocketAddrV4,
    pub socket: OwnedFd,
    pub reader: Reader,
    /// Whole frames; the first may have left in part.
    queue: VecDeque<Arc<Vec<u8>>>,
    /// Bytes of the first that have left.
    written: usize,
    queued: usize,
    wants_write: bool,
    /// Sites that cannot be reached by it at the moment, and why.
    pub away: FxHashMap<SiteId, String>,
    pub lost: Option<String>,
}

impl Connection {
    pub fn dial(address: SocketAddrV4, own: &Credentials, timeout: Duration) -> Result<(Connection, Welcome), Broken> {
        let deadline = Instant::now() + timeout;
        let stream = TcpStream::connect_timeout(&address.into(), timeout)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let socket = OwnedFd::from(stream);
        let mut connection = Connection {
            address,
            socket,
            reader: Reader::new(wire::frame::MAX_PAYLOAD),
            queue: VecDeque::new(),
            written: 0,
            queued: 0,
            wants_write: false,
            away: FxHashMap::default(),
            lost: None,
        };
        let (mut initiator, hello) = Initiator::new(own.hello(Purpose::Member, own.me));
        connection.push(Arc::new(hello.encode()));
        let welcome = loop {
            connection.write()?;
            match connection.reader.handshake(false)? {
                None => wait_readable(&connection.socket, deadline)?,
                Some(message) => match initiator.step(message, &own.secret)? {
                    Step::Reply(reply) => connection.push(Arc::new(reply.encode())),
                    Step::Open { welcome, .. } => break welcome,
                    Step::Refused { reason, .. } => return Err(Broken::Refused(reason)),
                },
            }
            connection.reader.fill(connection.socket.as_fd())?;
        };
        connection.reader.take_whole(welcome.max_payload)?;
        Ok((connection, welcome))
    }

    /// The longest payload of a frame, in bytes.
    pub fn max_payload(&self) -> u32 {
        self.reader.max_payload
    }

    pub fn push(&mut self, frame: Arc<Vec<u8>>) {
        self.queued += frame.len();
        self.queue.push_back(frame);
    }

    pub fn has_room(&self) -> bool {
        self.queued < QUEUED
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Nothing more comes or goes by it.
    pub fn lose(&mut self, reason: String) {
        self.lost = Some(reason);
        self.queue.clear();
        self.queued = 0;
    }

    /// Sends what is queued as far as the socket takes it, and has `epoll` watch it for the rest. Whether anything left.
    pub fn send(&mut self, epoll: &OwnedFd, at: usize) -> Result<bool, Broken> {
        if self.lost.is_some() || (self.queue.is_empty() && !self.wants_write) {
            return Ok(false);
        }
        let moved = self.write()?;
        let wants = !self.queue.is_empty();
        if wants != self.wants_write {
            self.wants_write = wants;
            let flags = if wants { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(at as u64);
            epoll::modify(epoll, &self.socket, data, flags).map_err(std::io::Error::from)?;
        }
        Ok(moved)
    }

    fn write(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        while !self.queue.is_empty() {
            let empty: &[u8] = &[];
            let mut slices = [IoSlice::new(empty); MAX_SLICES];
            let mut count = 0;
            for (slice, frame) in slices.iter_mut().zip(&self.queue) {
                let skip = if count == 0 { self.written } else { 0 };
                *slice = IoSlice::new(&frame[skip..]);
                count += 1;
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let result = match &slices[..count] {
                [one] => send(&self.socket, one, flags),
                several => sendmsg(&self.socket, several, &mut SendAncillaryBuffer::default(), flags),
            };
            match result {
                Ok(sent) => self.consume(sent),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
            moved = true;
        }
        Ok(moved)
    }

    fn consume(&mut self, mut sent: usize) {
        self.queued -= sent;
        while let Some(frame) = self.queue.front() {
            let left = frame.len() - self.written;
            if sent < left {
                self.written += sent;
                return;
            }
            sent -= left;
            self.written = 0;
            self.queue.pop_front();
        }
    }
}

fn wait_readable(socket: &OwnedFd, deadline: Instant) -> Result<(), Broken> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Broken::Refused("no answer to our hello: is this port a Landbridge gateway?".into()));
    }
    let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(std::io::Error::from(e).into()),
    }
}
