//! Opening connections to ranks of the same site: dialling, accepting, the handshake.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use member::handshake::{Acceptor, Answer};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{SocketFlags, SocketType, sockopt};
use types::Address;
use wire::FrameHeader;
use wire::frame::{FrameKind, MAX_PAYLOAD};
use wire::handshake::{Handshake, Refusal, RefusalCode};

use super::SiteLink;
use super::connection::{Phase, SiteConnection};
use super::life::{self, Life};
use crate::handshake;
use crate::link::{Misbehaved, Sink};
use crate::operation::PeerId;
use crate::reader::{Broken, FrameReader};
use crate::stream::{Stream, family};
use crate::writer::Writer;

impl SiteLink {
    fn add(&mut self, stream: Stream, phase: Phase, flags: EventFlags) -> std::io::Result<usize> {
        life::watch(&stream)?;
        let life = Life::new(self.now_ns());
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        epoll::add(&self.epoll, &stream, EventData::new_u64(key as u64), flags)?;
        entry.insert(SiteConnection {
            stream,
            phase,
            peer: None,
            reader: FrameReader::new(MAX_PAYLOAD),
            writer: Writer::new(MAX_PAYLOAD),
            queue: VecDeque::new(),
            wants_write: flags.contains(EventFlags::OUT),
            blocked: false,
            held: false,
            fruitless: 0,
            deadline: Instant::now() + self.connect_timeout,
            goodbye: false,
            lane: None,
            life,
        });
        self.opening += 1;
        Ok(key)
    }

    pub(super) fn dial(&mut self, to: PeerId, sink: &dyn Sink) -> Result<usize, Broken> {
        let address = sink.address(to).ok_or_else(|| Broken::Refused("no such peer".into()))?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family(address.socket), SocketType::STREAM, flags, None)
            .map_err(std::io::Error::from)?;
        sockopt::set_tcp_nodelay(&socket, true).map_err(std::io::Error::from)?;
        match rustix::net::connect(&socket, &address.socket) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(e) => return Err(std::io::Error::from(e).into()),
        }
        let stream = match &mut self.sealing {
            None => Stream::from(socket),
            Some(sealing) => sealing.dial(socket)?,
        };
        let (initiator, hello) = self.own.dial(address)?;
        let key = self.add(stream, Phase::Connecting(initiator), EventFlags::IN | EventFlags::OUT)?;
        self.connections[key].peer = Some(to);
        self.connections[key].writer.stage(&hello.encode());
        self.sending.insert(to, key);
        Ok(key)
    }

    pub(super) fn accept(&mut self) -> bool {
        let mut any = false;
        while let Ok((stream, _)) = self.listener.accept() {
            any = true;
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            let stream = ready.and_then(|()| match &mut self.sealing {
                None => Ok(Stream::from(OwnedFd::from(stream))),
                Some(sealing) => sealing.accept(stream.into()),
            });
            if let Ok(stream) = stream {
                // If epoll accepts no more descriptors, the connection closes, and the peer notices that.
                let _ = self.add(stream, Phase::Accepting(Acceptor::default()), EventFlags::IN);
            }
        }
        any
    }

    /// Continues the handshake.
    pub(super) fn open(&mut self, key: usize, sink: &mut dyn Sink) -> Result<bool, Broken> {
        let connection = &mut self.connections[key];
        if let Phase::Connecting(_) = connection.phase {
            sockopt::socket_error(&connection.stream).map_err(std::io::Error::from)?.map_err(std::io::Error::from)?;
            if rustix::net::getpeername(&connection.stream).is_err() {
                return Ok(false);
            }
            if let Phase::Connecting(initiator) = std::mem::replace(&mut connection.phase, Phase::Open) {
                connection.phase = Phase::Initiating(initiator);
            }
        }
        connection.writer.send(&mut connection.stream, None)?;
        let mut moved = match connection.reader.fill(&mut connection.stream) {
            Err(_) if connection.stream.in_clear() => return Err(self.refuse_in_clear(key)),
            filled => filled?,
        };
        // Send the bytes that were queued until both ends had their keys.
        connection.writer.send(&mut connection.stream, None)?;
        loop {
            let connection = &mut self.connections[key];
            let first = matches!(&connection.phase, Phase::Accepting(acceptor) if acceptor.is_first());
            let Some(message) = connection.reader.handshake(first)? else { break };
            moved = true;
            if let Handshake::Hello(hello) = &message {
                self.refuse_duplicate(key, hello.from, sink)?;
            }
            let connection = &mut self.connections[key];
            let (reply, done) = match &mut connection.phase {
                Phase::Initiating(initiator) => match initiator.inside(connection.stream.key()).step(message)? {
                    Answer::Send(reply) => (Some(reply), None),
                    Answer::Open(welcome) => {
                        handshake::check(&welcome)?;
                        (None, Some(Ok(initiator.hello().to)))
                    }
                },
                Phase::Accepting(acceptor) => handshake::accept(acceptor, message, &self.own, connection.stream.key())?,
                Phase::Connecting(_) | Phase::Open => break,
            };
            // We may have dialled since the peer sent its hello.
            if let (Phase::Accepting(_), Some(Ok(address))) = (&connection.phase, &done) {
                self.refuse_duplicate(key, *address, sink)?;
            }
            let connection = &mut self.connections[key];
            if let Some(reply) = reply {
                connection.writer.stage(&reply.encode());
                connection.writer.send(&mut connection.stream, None)?;
            }
            match done {
                None => continue,
                Some(Err(refusal)) => return Err(refusal.into()),
                Some(Ok(address)) => {
                    let peer = connection.peer.unwrap_or_else(|| sink.peer(address));
                    connection.peer = Some(peer);
                    connection.phase = Phase::Open;
                    self.opening -= 1;
                    if let Some(native) = &mut self.native {
                        let (lane, introduction) = native.lane(key)?;
                        let me = self.own.me.identity;
                        let header = FrameHeader::plain(FrameKind::Introduction, self.own.job, me, me);
                        let connection = &mut self.connections[key];
                        connection.lane = Some(lane);
                        connection
                            .writer
                            .stage(&header.with_payload(&introduction.encode()).map_err(Misbehaved::from)?);
                    }
                    self.adopt(peer, key);
                    self.flush(key, sink)?;
                    return Ok(true);
                }
            }
        }
        self.update_interest(key)?;
        Ok(moved)
    }

    /// Refuses a connection that this peer dialled if we have, or will have, another one. When two ranks dial each
    /// other at once, the connection of the lower address is kept. Both ends have to agree on this until the very end
    /// of the handshake, or each closes the connection that the other keeps.
    fn refuse_duplicate(&mut self, key: usize, from: Address, sink: &dyn Sink) -> Result<(), Broken> {
        let existing = sink.known(from).and_then(|peer| self.sending.get(&peer));
        let is_kept =
            |key: &usize| matches!(self.connections[*key].phase, Phase::Open) || self.own.me.key() < from.key();
        if !existing.is_some_and(is_kept) {
            return Ok(());
        }
        let connection = &mut self.connections[key];
        let refusal = Refusal::new(RefusalCode::Duplicate, "this rank has already dialled yours");
        connection.writer.stage(&Handshake::Refuse(refusal.clone()).encode());
        connection.writer.send(&mut connection.stream, None)?;
        Err(refusal.into())
    }

    /// Sends the reason for its refusal to a peer that does not use TLS.
    fn refuse_in_clear(&mut self, key: usize) -> Broken {
        let text = "ranks of this site must use TLS (`inside = \"encrypted\"`), but this one connected without TLS";
        let refusal = Refusal::new(RefusalCode::Purpose, text);
        self.connections[key].stream.refuse_in_clear(&Handshake::Refuse(refusal.clone()).encode());
        refusal.into()
    }

    /// Gives an open connection the items queued for its peer, unless another open one already has them.
    pub(super) fn adopt(&mut self, peer: PeerId, key: usize) {
        let before = self.sending.get(&peer).copied().filter(|before| *before != key);
        if before.is_some_and(|before| matches!(self.connections[before].phase, Phase::Open)) {
            return;
        }
        if let Some((_, items)) = self.parked.remove(&peer) {
            self.connections[key].queue.extend(items);
        }
        if let Some(before) = before {
            let mut dialling = self.connections.remove(before);
            self.hot.retain(|hot| *hot != before);
            self.opening -= 1;
            self.connections[key].queue.append(&mut dialling.queue);
        }
        self.sending.insert(peer, key);
    }
}
