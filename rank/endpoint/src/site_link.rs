//! The site link: one TCP connection between two ranks of a site, dialled by the one that sends first. If the site has
//! its own network (`native`), frames go through that, and TCP remains for the handshake and to notice that a peer is
//! gone.
//!
//! If both dial at once, the connection of the smaller address stays. The other one is refused as a duplicate, or
//! dropped, before anything but handshakes was sent on it. (Two one-way connections would work, but then TCP could not
//! piggyback acknowledgements on answers: half a segment and two microseconds more per short message.) Recently active
//! connections are read without asking epoll first, which saves a system call per message.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use libfabric::Port;
use rustc_hash::FxHashMap;
use rustix::event::epoll::{self, EventData, EventFlags};
use slab::Slab;
use types::Address;
use wire::FrameHeader;
use wire::frame::FrameKind;

mod connection;
mod driving;
mod lane;
mod life;
mod losses;
mod native;
mod opening;
mod sealing;
mod tally;

use connection::{PeerFrames, Phase, Said, SiteConnection};
use native::Native;
use sealing::Sealing;

use crate::handshake::Credentials;
use crate::link::{Link, Outgoing, Sink};
use crate::operation::PeerId;
use crate::reader::Broken;

/// Maximum number of connections that may be silent for longer than the connect timeout: ranks that dialled and then
/// computed, or strangers.
const MAX_SILENT: usize = 256;
const LISTENER: u64 = u64::MAX;
const PORT: u64 = u64::MAX - 1;
/// Maximum number of events taken from epoll at once.
const EVENTS: usize = 32;
/// Number of connections that are read without asking epoll.
const HOT: usize = 4;
/// After this many fruitless reads a connection is no longer hot.
const COLD_AFTER: u32 = 200;
/// Intervals, in calls, at which epoll is asked about the others while some are hot: if the call moved nothing, and if
/// it moved something.
const ASK_WHEN_FRUITLESS: u32 = 4;
const ASK_ALWAYS: u32 = 64;

pub(crate) struct SiteLink {
    listener: TcpListener,
    own: Credentials,
    epoll: OwnedFd,
    connections: Slab<SiteConnection>,
    sending: FxHashMap<PeerId, usize>,
    hot: Vec<usize>,
    turn: u32,
    /// Bytes of our own copies in queues.
    buffered: u64,
    connect_timeout: Duration,
    /// Connections that are not open yet.
    opening: usize,
    /// Items for peers that we expect to dial us, each with the time limit for that.
    parked: FxHashMap<PeerId, (Instant, VecDeque<Outgoing>)>,
    /// The site's own network, if it has one. TCP then only introduces peers, and shows that they are gone.
    native: Option<Native>,
    /// A peer that was lost although its process may still be running, and the reason, until it is reported.
    trouble: Option<(Address, String)>,
    started: Instant,
    /// Time of the last check for signs of life.
    looked: Instant,
    /// The key with which connections use TLS; `None`: no TLS.
    sealing: Option<Sealing>,
}

impl SiteLink {
    /// `port` is on the site's own network, if it has one. `encrypted`: connections use TLS; there is no port then,
    /// because its traffic cannot be encrypted.
    pub(crate) fn new(
        listener: TcpListener,
        own: Credentials,
        connect_timeout: Duration,
        port: Option<Port>,
        encrypted: bool,
    ) -> std::io::Result<SiteLink> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let native = port.map(Native::new);
        if let Some(fd) = native.as_ref().and_then(Native::wait_fd) {
            epoll::add(&epoll, fd, EventData::new_u64(PORT), EventFlags::IN)?;
        }
        Ok(SiteLink {
            listener,
            own,
            epoll,
            connections: Slab::new(),
            sending: FxHashMap::default(),
            hot: Vec::new(),
            turn: 0,
            buffered: 0,
            connect_timeout,
            opening: 0,
            parked: FxHashMap::default(),
            native,
            trouble: None,
            started: Instant::now(),
            looked: Instant::now(),
            sealing: encrypted.then(Sealing::default),
        })
    }

    /// Readable when `progress` has something to do, within [`SiteLink::longest_sleep`].
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The site's own network, in readable form.
    pub(crate) fn fabric(&self) -> Option<String> {
        self.native.as_ref().map(Native::describe)
    }

    /// Longest time that a waiting thread may sleep on `poll_fd`; `None`: unlimited.
    pub(crate) fn longest_sleep(&self) -> Option<Duration> {
        let until_look = (!self.connections.is_empty()).then_some(life::LOOK);
        let of_native = self.native.as_ref().and_then(Native::longest_sleep);
        of_native.map_or(until_look, |of_native| Some(until_look.map_or(of_native, |look| look.min(of_native))))
    }

    /// A peer that cannot be reached for a reason other than its end, with that reason. Reported once.
    pub(crate) fn take_trouble(&mut self) -> Option<(Address, String)> {
        self.trouble.take()
    }

    #[cfg(test)]
    pub(crate) fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Makes the next `progress` ask epoll: something may have arrived while we slept.
    pub(crate) fn ask_soon(&mut self) {
        self.turn = u32::MAX;
    }

    /// Reads and writes as much as possible on one connection.
    fn turn(&mut self, key: usize, sink: &mut dyn Sink) -> bool {
        match self.try_turn(key, sink) {
            Ok(moved) => moved,
            Err(broken) => {
                self.lose_connection(key, broken, sink);
                true
            }
        }
    }

    fn try_turn(&mut self, key: usize, sink: &mut dyn Sink) -> Result<bool, Broken> {
        let mut moved = false;
        if !matches!(self.connections[key].phase, Phase::Open) {
            moved |= self.open(key, sink)?;
        }
        let connection = &mut self.connections[key];
        if matches!(connection.phase, Phase::Open) {
            let Some(peer) = connection.peer else { return Ok(moved) };
            let mut of_lane = Said::default();
            let said = self.native.is_some().then_some(&mut of_lane);
            let mut frames = PeerFrames { peer, own: &self.own, goodbye: &mut connection.goodbye, said };
            moved |= connection.reader.pump(&mut connection.stream, &mut frames, sink)?;
            if let (Some(native), Some(lane)) = (&mut self.native, &mut connection.lane) {
                if let Some(introduction) = of_lane.introduction {
                    native.introduced(lane, &introduction)?;
                }
                if let Some(sent) = of_lane.tally {
                    native.hear(lane, sent);
                }
            }
            if !connection.blocked && (connection.has_to_send() || !connection.queue.is_empty()) {
                moved |= self.flush(key, sink)?;
            }
        }
        Ok(moved)
    }

    /// Sends queued items as far as the socket takes them. Returns true if anything was sent.
    fn flush(&mut self, key: usize, sink: &mut dyn Sink) -> Result<bool, Broken> {
        let connection = &mut self.connections[key];
        let mut moved = false;
        if let Some(native) = &mut self.native {
            moved |= !connection.writer.is_empty();
            connection.writer.send(&mut connection.stream, None)?;
            moved |= native.flush(key, connection, &mut self.buffered, sink)?;
            self.update_interest(key)?;
            return Ok(moved);
        }
        let me = self.own.me.identity;
        let plain = FrameHeader::plain(FrameKind::Data, self.own.job, me, me);
        let header = |length| FrameHeader { length, ..plain };
        loop {
            while connection.writer.has_room() {
                let Some(item) = connection.queue.front_mut() else { break };
                if connection.writer.stage_frame(item, header, sink) {
                    moved = true;
                    connection.finish_front(&mut self.buffered, sink);
                }
            }
            if connection.writer.is_empty() {
                connection.blocked |= !connection.stream.flush()?;
                break;
            }
            match connection.writer.send(&mut connection.stream, connection.queue.front_mut())? {
                None => {
                    connection.blocked = true;
                    break;
                }
                Some(finished) => {
                    moved = true;
                    if finished {
                        connection.finish_front(&mut self.buffered, sink);
                    }
                }
            }
        }
        self.update_interest(key)?;
        Ok(moved)
    }

    fn update_interest(&mut self, key: usize) -> Result<(), Broken> {
        let connection = &mut self.connections[key];
        let waiting = !connection.writer.is_empty();
        let wants = connection.stream.wants_write(waiting) || matches!(connection.phase, Phase::Connecting(_));
        if wants != connection.wants_write {
            connection.wants_write = wants;
            let flags = if wants { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &connection.stream, EventData::new_u64(key as u64), flags)
                .map_err(std::io::Error::from)?;
        }
        Ok(())
    }

    fn ask_epoll(&mut self, sink: &mut dyn Sink) -> bool {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call found nothing.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&zero)) else { return false };
        let mut moved = false;
        for event in ready {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == LISTENER {
                moved |= self.accept();
            } else if data == PORT {
                // The port is polled on every call.
            } else if let Some(connection) = self.connections.get_mut(data as usize) {
                connection.blocked &= !flags.contains(EventFlags::OUT);
                let key = data as usize;
                moved |= self.turn(key, sink);
                self.warm(key);
            }
        }
        moved
    }

    fn warm(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.fruitless = 0;
        if !self.hot.contains(&key) {
            if self.hot.len() == HOT {
                self.hot.remove(0);
            }
            self.hot.push(key);
        }
    }
}

impl Link for SiteLink {
    fn send(&mut self, to: PeerId, item: Outgoing, more: bool, sink: &mut dyn Sink) {
        if let Some((_, items)) = self.parked.get_mut(&to) {
            let mut item = item;
            if item.detach {
                item.detach_now();
                self.buffered += item.end;
            }
            items.push_back(item);
            return;
        }
        let key = match self.sending.get(&to) {
            Some(key) => *key,
            None => match self.dial(to, sink) {
                Ok(key) => key,
                Err(broken) => {
                    sink.lost(to, Some(broken.to_string()));
                    item.sent.into_iter().for_each(|sent| sink.unsent(to, sent));
                    return;
                }
            },
        };
        let detach = item.detach;
        if detach {
            self.buffered += item.end;
        }
        let connection = &mut self.connections[key];
        // Otherwise it is sent after the items queued before it.
        let is_next = connection.queue.is_empty() || connection.held;
        connection.queue.push_back(item);
        connection.held = is_next && more;
        if matches!(connection.phase, Phase::Open)
            && is_next
            && !more
            && let Err(broken) = self.flush(key, sink)
        {
            self.lose_connection(key, broken, sink);
        }
        if detach && let Some(item) = self.connections.get_mut(key).and_then(|c| c.queue.back_mut()) {
            item.detach_now();
        }
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> bool {
        let mut moved = self.native.is_some() && self.drive_port(sink);
        let mut at = 0;
        while let Some(key) = self.hot.get(at).copied() {
            if self.turn(key, sink) {
                moved = true;
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.fruitless = 0;
                }
            } else if let Some(connection) = self.connections.get_mut(key) {
                connection.fruitless += 1;
                if connection.fruitless > COLD_AFTER {
                    self.hot.remove(at);
                    continue;
                }
            }
            at += 1;
        }
        self.turn = self.turn.wrapping_add(1);
        let every = if moved { ASK_ALWAYS } else { ASK_WHEN_FRUITLESS };
        if !moved && self.hot.is_empty() || self.turn.is_multiple_of(every) {
            moved |= self.ask_epoll(sink);
            if self.opening > 0 || !self.parked.is_empty() {
                self.expire(sink);
            }
            self.listen_for_silence(sink);
        }
        moved
    }

    fn is_idle(&self) -> bool {
        let is_idle = |c: &SiteConnection| {
            c.queue.is_empty() && !c.has_to_send() && c.lane.as_ref().is_none_or(|lane| lane.is_idle())
        };
        self.parked.is_empty() && self.connections.iter().all(|(_, connection)| is_idle(connection))
    }

    fn buffered(&self) -> u64 {
        self.buffered
    }

    fn close(&mut self) {
        self.leave_lanes();
        let me = self.own.me.identity;
        let header = FrameHeader::plain(FrameKind::Bye, self.own.job, me, me);
        for connection in self.connections.drain() {
            let mut connection = connection;
            if matches!(connection.phase, Phase::Open) && connection.queue.is_empty() {
                if connection.lane.is_none() {
                    connection.writer.stage(&header.encode());
                }
                // A peer that does not read our goodbye sees the connection close instead.
                let _ = connection.writer.send(&mut connection.stream, None);
                let _ = rustix::net::shutdown(&connection.stream, rustix::net::Shutdown::Write);
            }
        }
        self.sending.clear();
        self.hot.clear();
        self.opening = 0;
        self.native = None;
    }
}
