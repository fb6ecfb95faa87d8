//! The gateway link: one connection to each gateway of the site, shared by all peers of other sites.
//!
//! Each peer has a channel (sequence, window, acknowledgement) and a queue; queues take turns frame by frame, so a long
//! message to one peer does not hold up the others. What a lost way took with it is sent again: `gateway_link/remote.rs` is what is
//! known of a peer, `gateway_link/arrival.rs` what gateways send, `gateway_link/connection.rs` the sockets.

mod arrival;
mod connection;
mod flows;
mod remote;

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use channel::Route;
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use types::id::SlotKind;
use types::{Identity, SiteId};
use wire::FrameHeader;
use wire::frame::FrameKind;

use self::arrival::{GatewayFrames, News};
use self::connection::Connection;
use self::remote::{Remote, Way};
use crate::endpoint::OpenError;
use crate::handshake::Credentials;
use crate::link::{Link, Outgoing, Sink};
use crate::operation::PeerId;
use crate::reader::Broken;

/// Most gateways of a site that a rank connects to.
pub(crate) const MAX_GATEWAYS: usize = wire::receipt::MAX_ROUTES;
/// How long the others may take once one gateway is there.
const MOMENT: Duration = Duration::from_secs(1);
/// How long an acknowledgement that was asked for is waited for before it is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long a gateway may take that is dialled again.
const REDIAL: Duration = Duration::from_secs(5);

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
    /// When that was asked for last.
    asked: Instant,
    opened: Instant,
    /// Bytes of our own copies in queues.
    buffered: u64,
}

impl GatewayLink {
    /// Connects to the gateways of the site: waits at most `timeout` for the first, and a moment for the others, which are
    /// tried again later.
    pub fn open(
        own: Credentials,
        addresses: &[SocketAddrV4],
        window: u32,
        timeout: Duration,
    ) -> Result<GatewayLink, OpenError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(OpenError::io)?;
        let mut connections: Vec<Connection> =
            addresses.iter().take(MAX_GATEWAYS).map(|address| Connection::new(*address)).collect();
        for (at, connection) in connections.iter_mut().enumerate() {
            if let Err(broken) = connection.dial(&own, &epoll, at, timeout) {
                connection.lose(broken.to_string());
            }
        }
        let mut moment = None;
        loop {
            for connection in connections.iter_mut().filter(|connection| connection.is_dialling()) {
                if let Err(broken) = connection.shake_hands(window) {
                    connection.lose(broken.to_string());
                }
            }
            if connections.iter().any(Connection::is_open) {
                moment.get_or_insert_with(|| Instant::now() + MOMENT);
            }
            let late = moment.is_some_and(|moment| moment <= Instant::now());
            if late || !connections.iter().any(Connection::is_dialling) {
                break;
            }
            let nap = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let mut fds = [PollFd::new(&epoll, PollFlags::IN)];
            // An interrupted or failed wait is a short one.
            let _ = poll(&mut fds, Some(&nap));
        }
        let open = connections.iter().any(Connection::is_open);
        if let Some(first) = connections.first().filter(|_| !open) {
            let reason = first.lost().unwrap_or("no answer").to_owned();
            return Err(OpenError::Gateway { address: first.address, reason });
        }
        Ok(GatewayLink {
            own,
            window,
            epoll,
            connections,
            peers: FxHashMap::default(),
            ready: VecDeque::new(),
            told: Vec::new(),
            leaving: false,
            asked: Instant::now(),
            opened: Instant::now(),
            buffered: 0,
        })
    }

    /// Readable when `progress` has something to do.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Asks all peers to acknowledge what they have not: nothing more will be sent. Asks again every now and then, for a question
    /// that comes while a peer closes is lost, and the next one shows that it is gone.
    pub fn leave(&mut self, sink: &mut dyn Sink) {
        self.leaving = true;
        self.asked = Instant::now();
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

    /// The gateway that frames take first: another for each rank, so that little messages of all do not meet at one.
    fn first(&self) -> usize {
        match self.own.me.identity.slot.kind() {
            SlotKind::Rank(rank, _) => rank.0 as usize % self.connections.len().max(1),
            _ => 0,
        }
    }

    fn alive(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|connection| connection.is_open())
    }

    fn receive(&mut self, at: usize, sink: &mut dyn Sink) -> bool {
        let first = self.first();
        let connection = &mut self.connections[at];
        if !connection.is_open() {
            return self.revive(at);
        }
        let mut frames = GatewayFrames {
            own: &self.own,
            window: self.window,
            first,
            now_ns: nanoseconds(self.opened),
            peers: &mut self.peers,
            ready: &mut self.ready,
            told: &mut self.told,
            leaving: self.leaving,
            gateway: at,
            news: Vec::new(),
            pongs: Vec::new(),
        };
        let moved = connection.receive(&mut frames, sink);
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

    /// Dials a gateway again that is not there, if there are others: without any, everything is lost already. Whether it is
    /// there now.
    fn revive(&mut self, at: usize) -> bool {
        let alone = self.alive().next().is_none();
        let connection = &mut self.connections[at];
        let result = if connection.is_dialling() {
            connection.shake_hands(self.window)
        } else if alone || self.leaving || !connection.is_due(Instant::now()) {
            return false;
        } else {
            connection.dial(&self.own, &self.epoll, at, REDIAL).map(|()| false)
        };
        match result {
            Ok(true) => {
                self.peers.values_mut().for_each(|remote| remote.barred &= !(1 << at));
                self.wake(|_| true);
                true
            }
            Ok(false) => false,
            Err(broken) => {
                connection.lose(broken.to_string());
                false
            }
        }
    }

    /// What was under way to these peers by a gateway is lost, in both directions.
    fn broken(&mut self, at: usize, which: impl Fn(&Remote) -> bool) {
        for remote in self.peers.values_mut().filter(|remote| which(remote)) {
            remote.lost_by(at);
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
        let Some(remote) = self.peers.get_mut(&peer).filter(|remote| !remote.gone) else { return };
        remote.barred |= 1 << at;
        remote.lost_by(at);
        remote.wake(peer, &mut self.ready, &mut self.told);
        let barred = remote.barred;
        let left = |(at, connection): (usize, &Connection)| connection.is_open() && barred & (1 << at) == 0;
        if !self.connections.iter().enumerate().any(left) {
            self.lose(peer, Some(reason), sink);
        }
    }

    /// A gateway's connection is broken. Other gateways take over what it carried; without any, all peers are lost.
    fn lose_connection(&mut self, at: usize, broken: &Broken, sink: &mut dyn Sink) {
        let connection = &mut self.connections[at];
        let reason = format!("gateway {}: {broken}", connection.address);
        connection.lose(reason.clone());
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
        let now_ns = if self.ready.is_empty() { 0 } else { nanoseconds(self.opened) };
        while let Some(peer) = self.ready.pop_front() {
            let Some(remote) = self.peers.get_mut(&peer) else { continue };
            remote.is_ready = false;
            let at = match remote.way_for_data(&self.connections) {
                Way::None => continue,
                Way::Full => {
                    remote.is_ready = true;
                    full.push_back(peer);
                    continue;
                }
                Way::By(at) => at,
            };
            let connection = &mut self.connections[at];
            let route = Route(at as u8);
            if let Some(frame) = remote.outbound.resend(route) {
                // Not counted as under way here: its header names the route that it took first.
                connection.push(frame.clone());
            } else if let (alone, Some(item)) = (remote.queue.len() == 1, remote.queue.front_mut()) {
                let most = if alone { item.pipelined(connection.max_payload()) } else { connection.max_payload() };
                let bytes = item.next_frame_len(most);
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
                let done = item.cut_frame(most, header, sink.regions(), &mut frame);
                let frame = Arc::new(frame);
                connection.push(frame.clone());
                remote.flows.sent(at, frame.len());
                remote.outbound.at(now_ns).sent(route, frame.len() as u32, frame);
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
            let receipt = remote.flows.receipt();
            let (length, ack) = (receipt.len() as u32, remote.inbound.acknowledge());
            let header = FrameHeader { route: at as u16, length, ack, ..plain };
            let mut frame = header.encode().to_vec();
            frame.extend_from_slice(&receipt);
            self.connections[at].push(Arc::new(frame));
        }
    }
}

/// Since then, for channels.
fn nanoseconds(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

impl Link for GatewayLink {
    fn send(&mut self, to: PeerId, mut item: Outgoing, _more: bool, sink: &mut dyn Sink) {
        let Some(address) = sink.address(to) else { return };
        let lost = match self.connections.last() {
            None => Some("this rank has no gateway (LANDBRIDGE_GATEWAYS is empty)".to_owned()),
            Some(last) if self.alive().next().is_none() => Some(last.lost().unwrap_or("no gateway is left").to_owned()),
            Some(_) => None,
        };
        if lost.is_some() {
            sink.lost(to, lost);
            item.sent.into_iter().for_each(|sent| sink.unsent(to, sent));
            return;
        }
        let (window, first) = (self.window, self.first());
        let remote = self.peers.entry(to).or_insert_with(|| Remote::new(address.identity, window, first));
        let idle = remote.way(&self.connections).is_some_and(|at| self.connections[at].is_empty());
        let waits = remote.has_something() || !idle;
        let detach = item.detach;
        if detach {
            self.buffered += item.end;
            if waits {
                item.detach_now();
            }
        }
        if !remote.has_something() {
            remote.flows.begin(remote.outbound.in_flight());
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
        if self.leaving && self.asked.elapsed() > ASK_AGAIN && !self.is_settled() {
            self.leave(sink);
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
        // The last word: what has come from peers that ask later, when nobody is here.
        for (peer, remote) in self.peers.iter_mut().filter(|(_, remote)| remote.inbound.has_unacknowledged()) {
            remote.inbound.ack_now();
            remote.wake(*peer, &mut self.ready, &mut self.told);
        }
        self.stage_acks();
        let me = self.own.me.identity;
        let to = Identity { slot: types::Slot::GATEWAY, ..me };
        let goodbye = Arc::new(FrameHeader::plain(FrameKind::Bye, self.own.job, me, to).encode().to_vec());
        self.connections.iter_mut().filter(|c| c.is_open()).for_each(|connection| connection.close(goodbye.clone()));
        self.connections.clear();
    }
}
