//! The gateway link: one connection to each gateway of the site, shared by all peers of other sites.
//!
//! Each peer has a channel (sequence, window, acknowledgement) and a queue; queues take turns frame by frame, so a long
//! message to one peer does not hold up the others. What a lost way took with it is sent again: `gateway/remote.rs` is what is
//! known of a peer, `gateway/arrival.rs` what gateways send, `gateway/connection.rs` the sockets.

mod arrival;
mod connection;
mod remote;

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use channel::Route;
use rustc_hash::FxHashMap;
use rustix::event::epoll::{self, EventData, EventFlags};
use types::{Identity, SiteId};
use wire::FrameHeader;
use wire::frame::FrameKind;

use self::arrival::{GatewayFrames, News};
use self::connection::Connection;
use self::remote::Remote;
use crate::endpoint::OpenError;
use crate::handshake::Credentials;
use crate::link::{Link, Outgoing, Sink};
use crate::operation::PeerId;
use crate::reader::Broken;

/// Most gateways of a site that a rank connects to.
pub(crate) const MAX_GATEWAYS: usize = 64;

pub(crate) struct GatewayLink {
    own: Credentials,
    window: u32,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    peers: FxHashMap<PeerId, Remote>,
    /// Peers with something to send, and perhaps the window to send it.
    ready: VecDeque<PeerId>,
    /// Peers to be told something with a frame of their own.
    told: Vec<PeerId>,
    /// Nothing more will be sent; what was is to be acknowledged.
    leaving: bool,
    /// Bytes of our own copies in queues.
    buffered: u64,
}

impl GatewayLink {
    /// Connects to all gateways of the site; waits at most `timeout` for each.
    pub fn open(
        own: Credentials,
        addresses: &[SocketAddrV4],
        window: u32,
        timeout: Duration,
    ) -> Result<GatewayLink, OpenError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(OpenError::io)?;
        let mut connections = Vec::new();
        let mut least = window;
        for address in addresses.iter().take(MAX_GATEWAYS) {
            let (connection, welcome) = Connection::dial(*address, &own, timeout)
                .map_err(|broken| OpenError::Gateway { address: *address, reason: broken.to_string() })?;
            least = least.min(welcome.window);
            let data = EventData::new_u64(connections.len() as u64);
            epoll::add(&epoll, &connection.socket, data, EventFlags::IN).map_err(OpenError::io)?;
            connections.push(connection);
        }
        let (peers, ready, told) = (FxHashMap::default(), VecDeque::new(), Vec::new());
        Ok(GatewayLink { own, window: least, epoll, connections, peers, ready, told, leaving: false, buffered: 0 })
    }

    /// Readable when `progress` has something to do.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Asks all peers to acknowledge what they have not: nothing more will be sent.
    pub fn leave(&mut self, sink: &mut dyn Sink) {
        self.leaving = true;
        self.wake(|_| true);
        self.flush(sink);
    }

    /// Whether every peer that is still there has all that it was sent.
    pub fn is_settled(&self) -> bool {
        self.peers.values().all(Remote::is_settled)
    }

    /// Whether a peer's site cannot be reached at the moment. That has an end: its gateway loses patience.
    pub fn is_cut_off(&self) -> bool {
        let away = |site: &SiteId| self.alive().all(|connection| connection.away.contains_key(site));
        self.alive().next().is_some() && self.peers.values().any(|remote| !remote.gone && away(&remote.identity.site))
    }

    fn alive(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|connection| connection.lost.is_none())
    }

    fn receive(&mut self, at: usize, sink: &mut dyn Sink) -> bool {
        let connection = &mut self.connections[at];
        if connection.lost.is_some() {
            return false;
        }
        let mut frames = GatewayFrames {
            own: &self.own,
            window: self.window,
            peers: &mut self.peers,
            ready: &mut self.ready,
            told: &mut self.told,
            leaving: self.leaving,
            news: Vec::new(),
            pongs: Vec::new(),
        };
        let moved = connection.reader.pump(connection.socket.as_fd(), &mut frames, sink);
        let GatewayFrames { news, pongs, .. } = frames;
        pongs.into_iter().for_each(|pong| connection.push(Arc::new(pong)));
        for item in news {
            match item {
                News::Undeliverable(peer, reason) => self.bar(peer, at, reason, sink),
                News::Away(site, reason) => {
                    self.connections[at].away.insert(site, reason);
                    self.broken(at, |remote| remote.identity.site == site);
                }
                News::Broken(site) => self.broken(at, |remote| remote.identity.site == site),
                News::Open(site) => {
                    self.connections[at].away.remove(&site);
                    self.wake(|remote| remote.identity.site == site);
                }
            }
        }
        match moved {
            Ok(moved) => moved,
            Err(broken) => {
                self.lose_connection(at, &broken, sink);
                true
            }
        }
    }

    /// What was under way to these peers by a gateway is lost, in both directions.
    fn broken(&mut self, at: usize, which: impl Fn(&Remote) -> bool) {
        for remote in self.peers.values_mut().filter(|remote| which(remote)) {
            remote.outbound.lost(Route(at as u8));
            remote.inbound.ack_lost();
        }
        self.wake(which);
    }

    /// These peers may have a way again.
    fn wake(&mut self, which: impl Fn(&Remote) -> bool) {
        for (peer, remote) in self.peers.iter_mut().filter(|(_, remote)| which(remote)) {
            remote.asks |= self.leaving && !remote.is_settled();
            remote.wake(*peer, &mut self.ready, &mut self.told);
        }
    }

    /// A peer is not connected to the gateway at the other end of this one's trunk.
    fn bar(&mut self, peer: PeerId, at: usize, reason: String, sink: &mut dyn Sink) {
        let Some(remote) = self.peers.get_mut(&peer) else { return };
        remote.barred |= 1 << at;
        remote.outbound.lost(Route(at as u8));
        remote.wake(peer, &mut self.ready, &mut self.told);
        let barred = remote.barred;
        let left = |(at, connection): (usize, &Connection)| connection.lost.is_none() && barred & (1 << at) == 0;
        if !self.connections.iter().enumerate().any(left) {
            self.lose(peer, Some(reason), sink);
        }
    }

    /// A gateway's connection is broken. Other gateways take over what it carried; without any, all peers are lost.
    fn lose_connection(&mut self, at: usize, broken: &Broken, sink: &mut dyn Sink) {
        let connection = &mut self.connections[at];
        let reason = format!("gateway {}: {broken}", connection.address);
        connection.lose(reason.clone());
        // A descriptor that epoll no longer watches cannot be removed twice; nothing else can go wrong here.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        if self.alive().next().is_none() {
            let peers: Vec<PeerId> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.lose(peer, Some(reason.clone()), sink));
            return;
        }
        // What peers sent us by this gateway may be lost as well, and nobody but us knows.
        self.peers.values_mut().for_each(|remote| remote.asks_again = true);
        self.broken(at, |_| true);
    }

    fn lose(&mut self, peer: PeerId, reason: Option<String>, sink: &mut dyn Sink) {
        sink.lost(peer, reason);
        if let Some(remote) = self.peers.get_mut(&peer) {
            remote.gone = true;
            for item in std::mem::take(&mut remote.queue) {
                if item.detach {
                    self.buffered -= item.end;
                }
                item.sent.into_iter().for_each(|sent| sink.unsent(peer, sent));
            }
        }
    }

    /// Sends frames as far as windows and sockets allow.
    fn flush(&mut self, sink: &mut dyn Sink) -> bool {
        let mut moved = false;
        loop {
            self.stage_data(sink);
            self.stage_acks();
            let mut sent = false;
            for at in 0..self.connections.len() {
                let result = self.connections[at].send(&self.epoll, at);
                match result {
                    Ok(some) => sent |= some,
                    Err(broken) => self.lose_connection(at, &broken, sink),
                }
            }
            if !sent {
                return moved;
            }
            moved = true;
        }
    }

    fn stage_data(&mut self, sink: &mut dyn Sink) {
        let mut full = VecDeque::new();
        while let Some(peer) = self.ready.pop_front() {
            let Some(remote) = self.peers.get_mut(&peer) else { continue };
            remote.is_ready = false;
            let Some(at) = remote.way(&self.connections) else { continue };
            let connection = &mut self.connections[at];
            if !connection.has_room() {
                remote.is_ready = true;
                full.push_back(peer);
                continue;
            }
            let route = Route(at as u8);
            if let Some(frame) = remote.outbound.resend(route) {
                connection.push(frame.clone());
            } else if let Some(item) = remote.queue.front_mut() {
                let bytes = item.next_frame_len(connection.max_payload());
                if !remote.outbound.may_send(bytes) {
                    continue;
                }
                let (sequence, ack, to) = (remote.outbound.next(), remote.inbound.acknowledge(), remote.identity);
                let own = &self.own;
                let header = |length| FrameHeader {
                    route: at as u16,
                    length,
                    sequence,
                    ack,
                    ..FrameHeader::plain(FrameKind::Data, own.job, own.me.identity, to)
                };
                let mut frame = Vec::with_capacity(bytes as usize);
                let done = item.cut_frame(connection.max_payload(), header, sink.regions(), &mut frame);
                let frame = Arc::new(frame);
                connection.push(frame.clone());
                remote.outbound.sent(route, frame.len() as u32, frame);
                if done && let Some(item) = remote.queue.pop_front() {
                    if item.detach {
                        self.buffered -= item.end;
                    }
                    item.sent.into_iter().for_each(|sent| sink.sent(sent));
                }
            }
            if remote.has_something() {
                remote.is_ready = true;
                self.ready.push_back(peer);
            }
        }
        self.ready = full;
    }

    /// Tells peers what has arrived, where no data does.
    fn stage_acks(&mut self) {
        for peer in std::mem::take(&mut self.told) {
            let Some(remote) = self.peers.get_mut(&peer) else { continue };
            remote.is_told = false;
            let Some(at) = remote.way(&self.connections) else { continue };
            if remote.asks && remote.has_something() {
                // The question comes after what it is about.
                remote.is_told = true;
                self.told.push(peer);
                continue;
            }
            let Some(kind) = remote.next_notice() else { continue };
            let own = &self.own;
            let plain = FrameHeader::plain(kind, own.job, own.me.identity, remote.identity);
            let header = FrameHeader { route: at as u16, ack: remote.inbound.acknowledge(), ..plain };
            self.connections[at].push(Arc::new(header.encode().to_vec()));
        }
    }
}

impl Link for GatewayLink {
    fn send(&mut self, to: PeerId, mut item: Outgoing, _more: bool, sink: &mut dyn Sink) {
        let Some(address) = sink.address(to) else { return };
        let lost = match self.connections.last() {
            None => Some("this rank has no gateway (LANDBRIDGE_GATEWAYS is empty)".to_owned()),
            Some(last) if self.alive().next().is_none() => last.lost.clone(),
            Some(_) => None,
        };
        if lost.is_some() {
            sink.lost(to, lost);
            item.sent.into_iter().for_each(|sent| sink.unsent(to, sent));
            return;
        }
        let window = self.window;
        let remote = self.peers.entry(to).or_insert_with(|| Remote::new(address.identity, window));
        let idle = remote.way(&self.connections).is_some_and(|at| self.connections[at].is_empty());
        let waits = remote.has_something() || !idle;
        let detach = item.detach;
        if detach {
            self.buffered += item.end;
            if waits {
                item.detach_now();
            }
        }
        remote.queue.push_back(item);
        remote.wake(to, &mut self.ready, &mut self.told);
        if waits {
            return;
        }
        self.flush(sink);
        if detach && let Some(item) = self.peers.get_mut(&to).and_then(|remote| remote.queue.back_mut()) {
            item.detach_now();
        }
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> bool {
        let mut moved = false;
        for at in 0..self.connections.len() {
            moved |= self.receive(at, sink);
        }
        self.flush(sink) || moved
    }

    fn is_idle(&self) -> bool {
        self.alive().all(Connection::is_empty)
            && self.peers.values().all(|remote| remote.gone || !remote.has_something())
    }

    fn buffered(&self) -> u64 {
        self.buffered
    }

    fn close(&mut self) {
        let me = self.own.me.identity;
        let to = Identity { slot: types::Slot::GATEWAY, ..me };
        let goodbye = Arc::new(FrameHeader::plain(FrameKind::Bye, self.own.job, me, to).encode().to_vec());
        for (at, connection) in self.connections.iter_mut().enumerate().filter(|(_, c)| c.lost.is_none()) {
            connection.push(goodbye.clone());
            // A gateway that does not take our goodbye sees the connection close instead.
            let _ = connection.send(&self.epoll, at);
            let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Write);
        }
        self.connections.clear();
    }
}
