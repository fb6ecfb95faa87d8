//! The connection to one gateway.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use member::Pulse;
use member::handshake::{Answer, Initiator};
use member::last_route::AGAIN;
use member::pulse::GATEWAY_SILENCE_S;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, connect, socket_with, sockopt};

use types::sites::Keys;

use crate::config::SiteGateway;
use crate::handshake::{self, Credentials};
use crate::link::Sink;
use crate::reader::{Broken, FrameReader, Frames};
use crate::stream::{Expected, Stream, family};

/// Limit of queued bytes. Nothing more is queued beyond it until the socket has taken some.
const QUEUED: usize = 96 << 10;
const MAX_SLICES: usize = 16;

pub(super) struct GatewayConnection {
    pub gateway: SiteGateway,
    /// The keys of its site, one of which it must present; `None`: no TLS.
    keys: Option<Keys>,
    state: DialState,
    pub reader: FrameReader,
    /// Whole frames; part of the first may have been sent.
    queue: VecDeque<Arc<Vec<u8>>>,
    /// Bytes of the first frame that have been sent.
    written: usize,
    queued: usize,
    wants_write: bool,
    /// Signs of life of the gateway.
    pub pulse: Pulse,
}

enum DialState {
    Dialling { stream: Stream, initiator: Box<Initiator>, deadline: Instant },
    Open { stream: Stream },
    Lost { reason: String, again: Instant },
}

impl GatewayConnection {
    /// A connection that is not open yet.
    pub(super) fn new(gateway: SiteGateway, keys: Option<Keys>) -> GatewayConnection {
        GatewayConnection {
            gateway,
            keys,
            state: DialState::Lost { reason: "not dialled yet".into(), again: Instant::now() },
            reader: FrameReader::new(wire::frame::MAX_PAYLOAD),
            queue: VecDeque::new(),
            written: 0,
            queued: 0,
            wants_write: true,
            pulse: Pulse::new(GATEWAY_SILENCE_S, 0),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, DialState::Open { .. })
    }

    /// The reason for its loss, if it is lost.
    pub(super) fn lost(&self) -> Option<&str> {
        match &self.state {
            DialState::Lost { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Starts the pulse of a connection that has just opened.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.pulse = Pulse::new(GATEWAY_SILENCE_S, now_ns);
    }

    /// True if it is lost and due to be dialled again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(&self.state, DialState::Lost { again, .. } if *again <= now)
    }

    pub(super) fn is_dialling(&self) -> bool {
        matches!(self.state, DialState::Dialling { .. })
    }

    fn stream(&self) -> Option<&Stream> {
        match &self.state {
            DialState::Dialling { stream, .. } | DialState::Open { stream } => Some(stream),
            DialState::Lost { .. } => None,
        }
    }

    /// Starts dialling; [`GatewayConnection::shake_hands`] continues.
    pub(super) fn dial(
        &mut self,
        own: &Credentials,
        epoll: &OwnedFd,
        at: usize,
        timeout: Duration,
    ) -> Result<(), Broken> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(family(self.gateway.address), SocketType::STREAM, flags, None).map_err(io::Error::from)?;
        sockopt::set_tcp_nodelay(&socket, true).map_err(io::Error::from)?;
        match connect(&socket, &self.gateway.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let stream = match self.keys {
            None => Stream::from(socket),
            Some(keys) => {
                let session = tls::dial_without_key(Some(&own.token(&self.gateway)?)).map_err(io::Error::other)?;
                Stream::sealed(socket, session, Expected::Site(keys))?
            }
        };
        let data = EventData::new_u64(at as u64);
        epoll::add(epoll, &stream, data, EventFlags::IN | EventFlags::OUT).map_err(io::Error::from)?;
        let (initiator, hello) = own.dial_gateway(&self.gateway)?;
        let deadline = Instant::now() + timeout;
        *self = GatewayConnection::new(self.gateway.clone(), self.keys);
        self.push(Arc::new(hello.encode()));
        self.state = DialState::Dialling { stream, initiator: Box::new(initiator), deadline };
        Ok(())
    }

    /// Continues the handshake. Returns true once it is done.
    pub(super) fn shake_hands(&mut self, epoll: &OwnedFd, at: usize) -> Result<bool, Broken> {
        loop {
            self.write()?;
            // Let epoll wake a process that sleeps until the next answer.
            self.watch(epoll, at)?;
            let DialState::Dialling { stream, initiator, deadline } = &mut self.state else { return Ok(true) };
            let Some(message) = self.reader.handshake(false)? else {
                if self.reader.fill(stream)? {
                    continue;
                }
                if *deadline <= Instant::now() {
                    let text = "no answer to our hello: is a Landbridge gateway on this port?";
                    return Err(Broken::Refused(text.into()));
                }
                return Ok(false);
            };
            match initiator.inside(stream.key()).step(message)? {
                Answer::Send(reply) => self.push(Arc::new(reply.encode())),
                Answer::Open(welcome) => {
                    handshake::check(&welcome)?;
                    self.reader.take_whole(welcome.max_payload)?;
                    let lost = DialState::Lost { reason: String::new(), again: Instant::now() };
                    if let DialState::Dialling { stream, .. } = std::mem::replace(&mut self.state, lost) {
                        self.state = DialState::Open { stream };
                    }
                    return Ok(true);
                }
            }
        }
    }

    /// Takes the frames that have arrived.
    pub(super) fn receive(&mut self, frames: &mut dyn Frames, sink: &mut dyn Sink) -> Result<bool, Broken> {
        match &mut self.state {
            DialState::Open { stream } => self.reader.pump(stream, frames, sink),
            _ => Ok(false),
        }
    }

    /// The longest payload of a frame, in bytes.
    pub(super) fn max_payload(&self) -> u32 {
        self.reader.max_payload
    }

    pub(super) fn push(&mut self, frame: Arc<Vec<u8>>) {
        self.queued += frame.len();
        self.queue.push_back(frame);
    }

    pub(super) fn has_room(&self) -> bool {
        self.queued < QUEUED
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.has_unsent()
    }

    fn has_unsent(&self) -> bool {
        self.stream().is_some_and(Stream::has_unsent)
    }

    /// Closes the connection until it is dialled again.
    pub(super) fn lose(&mut self, reason: String) {
        // This closes its descriptor, so epoll no longer watches it.
        self.state = DialState::Lost { reason, again: Instant::now() + AGAIN };
        self.queue.clear();
        (self.queued, self.written) = (0, 0);
    }

    /// Has the lost connection dialled again at once.
    pub(super) fn dial_soon(&mut self) {
        if let DialState::Lost { again, .. } = &mut self.state {
            *again = Instant::now();
        }
    }

    /// Sends a goodbye and closes for writing. A gateway that does not read the goodbye sees the connection close.
    pub(super) fn close(&mut self, goodbye: Arc<Vec<u8>>) {
        self.push(goodbye);
        let _ = self.write();
        if let Some(stream) = self.stream() {
            let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
        }
    }

    /// Sends queued frames as far as the socket takes them, and has `epoll` watch for the rest. Returns true if
    /// anything was sent.
    pub(super) fn send(&mut self, epoll: &OwnedFd, at: usize) -> Result<bool, Broken> {
        if !self.is_open() || (self.is_empty() && !self.wants_write) {
            return Ok(false);
        }
        let moved = self.write()?;
        self.watch(epoll, at)?;
        Ok(moved)
    }

    /// Has `epoll` report room in the socket as long as there is more to send.
    fn watch(&mut self, epoll: &OwnedFd, at: usize) -> Result<(), Broken> {
        let wants = self.stream().is_some_and(|stream| stream.wants_write(!self.queue.is_empty()));
        if let Some(stream) = self.stream().filter(|_| wants != self.wants_write) {
            let flags = if wants { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(at as u64);
            epoll::modify(epoll, stream, data, flags).map_err(io::Error::from)?;
            self.wants_write = wants;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<bool, Broken> {
        let (DialState::Dialling { stream, .. } | DialState::Open { stream }) = &mut self.state else {
            return Ok(false);
        };
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
            let Some(sent) = stream.send(&slices[..count])? else { return Ok(moved) };
            consume(&mut self.queue, &mut self.written, &mut self.queued, sent);
            moved = true;
        }
        stream.flush()?;
        Ok(moved)
    }
}

/// Removes sent bytes from the front of a queue.
fn consume(queue: &mut VecDeque<Arc<Vec<u8>>>, written: &mut usize, queued: &mut usize, mut sent: usize) {
    *queued -= sent;
    while let Some(frame) = queue.front() {
        let left = frame.len() - *written;
        if sent < left {
            *written += sent;
            return;
        }
        sent -= left;
        *written = 0;
        queue.pop_front();
    }
}
