//! Messages between launcher and agents, cut into frames, in a channel per correspondent. No sockets, no clocks.
//! What is lost with a link between gateways is sent again.
//!
//! The channel's window bounds what is under way. A receiver may *hold* acknowledgements back while it cannot get rid of
//! what it was sent; the sender then sees its window fill up and stops producing.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use channel::{Arrival, ChannelError, Inbound, Outbound, Route};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use types::{Identity, JobId, SiteId};
use wire::frame::HEADER_LEN;
use wire::{FrameHeader, FrameKind, Passage};

/// Bytes (headers and payloads) under way between two correspondents. Both ends use this constant.
pub const WINDOW: u32 = 256 << 10;

/// The longest message in bytes.
pub const MAX_MESSAGE: usize = 32 << 20;

/// A correspondent broke the rules.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// Of the channel.
    #[error("{from}: {source}")]
    Channel {
        /// Who.
        from: Identity,
        /// What.
        source: ChannelError,
    },
    /// A message longer than allowed.
    #[error("{from}: a message of {length} bytes; at most {MAX_MESSAGE} are allowed")]
    TooLong {
        /// Who (or for whom).
        from: Identity,
        /// How long.
        length: usize,
    },
    /// A message that is none.
    #[error("{from}: unreadable message: {problem}")]
    Unreadable {
        /// Who.
        from: Identity,
        /// What the decoder said.
        problem: String,
    },
}

/// Everything one member has under way with its correspondents.
#[derive(Debug)]
pub struct Post {
    job: JobId,
    me: Identity,
    max_payload: usize,
    lanes: HashMap<Identity, Lane>,
    order: Vec<Identity>,
    turn: usize,
    /// Gateways that are connected.
    open: BTreeSet<Route>,
    /// Sites that cannot be reached by a gateway at the moment.
    away: HashSet<(Route, SiteId)>,
}

#[derive(Debug)]
struct Lane {
    outbound: Outbound<(FrameHeader, Vec<u8>)>,
    inbound: Inbound<Vec<u8>>,
    queue: VecDeque<Vec<u8>>,
    queued: u64,
    partial: Vec<u8>,
    acknowledged: u32,
    held: u64,
    /// Gateways by which the correspondent cannot be reached.
    barred: HashSet<Route>,
    /// It is to send again what we have not acknowledged.
    asks_again: bool,
}

impl Lane {
    fn may_acknowledge(&self) -> bool {
        self.held < u64::from(WINDOW / 4)
    }

    /// Takes the next bytes, and gives the messages they complete.
    fn take<M: DeserializeOwned>(
        &mut self,
        from: Identity,
        payload: &[u8],
        messages: &mut Vec<M>,
    ) -> Result<(), PostError> {
        self.partial.extend_from_slice(payload);
        let mut at = 0;
        while let Some(head) = self.partial.get(at..at + 4) {
            let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length > MAX_MESSAGE {
                return Err(PostError::TooLong { from, length });
            }
            let Some(body) = self.partial.get(at + 4..at + 4 + length) else { break };
            let message =
                postcard::from_bytes(body).map_err(|e| PostError::Unreadable { from, problem: e.to_string() })?;
            messages.push(message);
            at += 4 + length;
        }
        self.partial.drain(..at);
        Ok(())
    }
}

impl Post {
    /// The post of `me`, on a connection with this longest payload in bytes.
    pub fn new(job: JobId, me: Identity, max_payload: u32) -> Post {
        let max_payload = (max_payload as usize).clamp(64, (WINDOW / 8) as usize);
        Post {
            job,
            me,
            max_payload,
            lanes: HashMap::new(),
            order: Vec::new(),
            turn: 0,
            open: BTreeSet::new(),
            away: HashSet::new(),
        }
    }

    fn lane(&mut self, peer: Identity) -> &mut Lane {
        self.lanes.entry(peer).or_insert_with(|| {
            self.order.push(peer);
            Lane {
                outbound: Outbound::new(WINDOW),
                inbound: Inbound::new(WINDOW),
                queue: VecDeque::new(),
                queued: 0,
                partial: Vec::new(),
                acknowledged: 0,
                held: 0,
                barred: HashSet::new(),
                asks_again: false,
            }
        })
    }

    /// Queues a message.
    ///
    /// # Errors
    /// It is longer than [`MAX_MESSAGE`].
    pub fn send<M: Serialize>(&mut self, to: Identity, message: &M) -> Result<(), PostError> {
        let body =
            postcard::to_stdvec(message).map_err(|e| PostError::Unreadable { from: to, problem: e.to_string() })?;
        if body.len() > MAX_MESSAGE {
            return Err(PostError::TooLong { from: to, length: body.len() });
        }
        let mut bytes = Vec::with_capacity(body.len() + 4);
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        let max = self.max_payload;
        let lane = self.lane(to);
        for chunk in bytes.chunks(max) {
            lane.queued += chunk.len() as u64;
            lane.queue.push_back(chunk.to_vec());
        }
        Ok(())
    }

    /// Bytes for `to` that wait here or are under way.
    pub fn backlog(&self, to: Identity) -> u64 {
        self.lanes.get(&to).map_or(0, |lane| lane.queued + lane.outbound.in_flight())
    }

    /// Whether output for `to` may be produced: less than half the window is taken, the rest is for messages that
    /// must not wait.
    pub fn has_room(&self, to: Identity) -> bool {
        self.backlog(to) < u64::from(WINDOW / 2)
    }

    /// A gateway is connected.
    pub fn way_open(&mut self, route: Route) {
        self.open.insert(route);
        self.away.retain(|(of, _)| *of != route);
        self.lanes.values_mut().for_each(|lane| lane.barred.clear());
    }

    /// A gateway is not connected any more: what was under way by it is lost, in both directions.
    pub fn way_lost(&mut self, route: Route) {
        self.open.remove(&route);
        for lane in self.lanes.values_mut() {
            lane.outbound.lost(route);
            lane.inbound.ack_lost();
            lane.asks_again = true;
            lane.barred.clear();
        }
    }

    /// A correspondent is not connected to the gateway at which this one's frames arrive.
    pub fn undeliverable(&mut self, route: Route, peer: Identity) {
        if let Some(lane) = self.lanes.get_mut(&peer) {
            lane.outbound.lost(route);
            lane.barred.insert(route);
        }
    }

    fn way(&self, peer: Identity) -> Option<Route> {
        let barred = |route: &Route| self.lanes.get(&peer).is_some_and(|lane| lane.barred.contains(route));
        self.open.iter().find(|route| !self.away.contains(&(**route, peer.site)) && !barred(route)).copied()
    }

    /// The next frame to write, if one may go now, and the gateway for it. Correspondents take turns.
    pub fn next_frame(&mut self) -> Option<(Route, FrameHeader, Vec<u8>)> {
        for step in 0..self.order.len() {
            let at = (self.turn + step) % self.order.len();
            if let Some(frame) = self.frame_for(self.order[at]) {
                self.turn = at + 1;
                return Some(frame);
            }
        }
        None
    }

    fn frame_for(&mut self, peer: Identity) -> Option<(Route, FrameHeader, Vec<u8>)> {
        let (job, me) = (self.job, self.me);
        let route = self.way(peer)?;
        let lane = self.lanes.get_mut(&peer)?;
        if std::mem::take(&mut lane.asks_again) {
            let header = FrameHeader { ack: lane.acknowledged, ..FrameHeader::plain(FrameKind::Again, job, me, peer) };
            return Some((route, header, Vec::new()));
        }
        if let Some((header, payload)) = lane.outbound.resend(route).cloned() {
            return Some((route, header, payload));
        }
        let size = |payload: &Vec<u8>| (HEADER_LEN + payload.len()) as u32;
        let data = lane.queue.front().is_some_and(|payload| lane.outbound.may_send(size(payload)));
        let ack_due = lane.inbound.ack_is_due() && lane.may_acknowledge();
        if !data && !ack_due {
            return None;
        }
        if lane.may_acknowledge() {
            lane.acknowledged = lane.inbound.acknowledge();
        }
        let payload = if data { lane.queue.pop_front().unwrap_or_default() } else { Vec::new() };
        lane.queued -= payload.len() as u64;
        let kind = if data { FrameKind::Data } else { FrameKind::Ack };
        let sequence = if data { lane.outbound.next() } else { 0 };
        let header = FrameHeader { sequence, ack: lane.acknowledged, ..FrameHeader::plain(kind, job, me, peer) };
        if data {
            lane.outbound.sent(route, size(&payload), (header, payload.clone()));
        }
        Some((route, header, payload))
    }

    /// Takes note of what became of a gateway's way to a site.
    pub fn passage(&mut self, route: Route, site: SiteId, passage: &Passage) {
        let lanes = self.lanes.iter_mut().filter(|(peer, _)| peer.site == site).map(|(_, lane)| lane);
        match passage {
            Passage::Open => {
                self.away.remove(&(route, site));
                lanes.for_each(|lane| lane.barred.clear());
                return;
            }
            Passage::Away(_) => {
                self.away.insert((route, site));
            }
            Passage::Broken => {}
        }
        for lane in lanes {
            lane.outbound.lost(route);
            lane.inbound.ack_lost();
        }
    }

    /// Takes a frame of a correspondent (its kind acknowledges) that came by this gateway, and gives the messages it completes.
    ///
    /// # Errors
    /// The correspondent broke the rules of the channel or sent something that is no message.
    pub fn receive<M: DeserializeOwned>(
        &mut self,
        route: Route,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Vec<M>, PostError> {
        let from = header.from;
        let lane = self.lane(from);
        lane.barred.remove(&route);
        let channel = |source| PostError::Channel { from, source };
        lane.outbound.acknowledged(header.ack).map_err(channel)?;
        match header.kind {
            FrameKind::Data => {}
            FrameKind::Ask => {
                lane.inbound.ack_now();
                return Ok(Vec::new());
            }
            FrameKind::Again => {
                lane.outbound.lost_all();
                return Ok(Vec::new());
            }
            _ => return Ok(Vec::new()),
        }
        let mut messages = Vec::new();
        let bytes = (HEADER_LEN + payload.len()) as u32;
        match lane.inbound.received(header.sequence, bytes).map_err(channel)? {
            Arrival::Next => {
                lane.take(from, payload, &mut messages)?;
                while let Some(early) = lane.inbound.next_early() {
                    lane.take(from, &early, &mut messages)?;
                }
            }
            Arrival::Early => lane.inbound.keep(header.sequence, bytes, payload.to_vec()),
            Arrival::Again => lane.inbound.ack_now(),
        }
        Ok(messages)
    }

    /// Notes that `bytes` from a correspondent are kept here; past a quarter of the window nothing more is acknowledged.
    pub fn hold(&mut self, from: Identity, bytes: u64) {
        self.lane(from).held += bytes;
    }

    /// Notes that `bytes` held are gone.
    pub fn release(&mut self, from: Identity, bytes: u64) {
        let lane = self.lane(from);
        lane.held = lane.held.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::{NodeId, SiteId, Slot};

    const GATEWAY: Route = Route(0);
    const OTHER: Route = Route(1);
    const LAUNCHER: Identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };

    fn agent() -> Identity {
        Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() }
    }

    fn carry(from: &mut Post, to: &mut Post) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        while let Some((route, header, payload)) = from.next_frame() {
            got.extend(to.receive::<Vec<u8>>(route, &header, &payload).unwrap());
        }
        got
    }

    fn pair() -> (Post, Post) {
        let (mut a, mut b) = (Post::new(JobId(1), agent(), 1000), Post::new(JobId(1), LAUNCHER, 1000));
        a.way_open(GATEWAY);
        b.way_open(GATEWAY);
        (a, b)
    }

    #[test]
    fn a_sender_stops_when_the_receiver_holds() {
        let (mut a, mut b) = pair();
        let mut sent = 0u64;
        for _ in 0..1000 {
            if a.has_room(LAUNCHER) {
                a.send(LAUNCHER, &vec![7u8; 900]).unwrap();
                sent += 900;
            }
            for message in carry(&mut a, &mut b) {
                b.hold(agent(), message.len() as u64);
            }
            carry(&mut b, &mut a);
        }
        assert!(sent < u64::from(WINDOW), "{sent} bytes sent without an end");
        assert!(!a.has_room(LAUNCHER));
        b.release(agent(), u64::MAX);
        carry(&mut b, &mut a);
        assert!(a.has_room(LAUNCHER));
    }

    #[test]
    fn garbage_is_refused() {
        let (mut a, mut b) = pair();
        a.send(LAUNCHER, &vec![1u8; 5]).unwrap();
        let (_, header, mut payload) = a.next_frame().unwrap();
        payload[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let refused = b.receive::<Vec<u8>>(GATEWAY, &header, &payload);
        assert!(matches!(refused, Err(PostError::TooLong { .. })));
        let beyond = FrameHeader { sequence: WINDOW * 2, ..header };
        assert!(matches!(b.receive::<Vec<u8>>(GATEWAY, &beyond, &[]), Err(PostError::Channel { .. })));
    }

    #[test]
    fn another_gateway_takes_over() {
        let (mut a, mut b) = pair();
        a.way_open(OTHER);
        b.way_open(OTHER);
        let sent: Vec<Vec<u8>> = (0..3).map(|n| vec![n; 2500]).collect();
        let mut got = Vec::new();
        a.send(LAUNCHER, &sent[0]).unwrap();
        got.extend(carry(&mut a, &mut b));
        a.send(LAUNCHER, &sent[1]).unwrap();
        // The gateway dies with what it was given, and with what it had for us.
        b.send(agent(), &vec![9u8; 10]).unwrap();
        while a.next_frame().is_some() {}
        while b.next_frame().is_some() {}
        a.way_lost(GATEWAY);
        got.extend(carry(&mut a, &mut b));
        // b has not noticed, but is asked to send again, and what it sends by the same gateway does not come.
        assert!(b.next_frame().is_some_and(|(route, _, _)| route == GATEWAY));
        while b.next_frame().is_some() {}
        b.undeliverable(GATEWAY, agent());
        let back = std::iter::from_fn(|| b.next_frame());
        let back: Vec<_> = back.collect();
        assert!(back.iter().all(|(route, _, _)| *route == OTHER));
        let heard: Vec<Vec<u8>> = back
            .iter()
            .flat_map(|(route, header, payload)| a.receive::<Vec<u8>>(*route, header, payload).unwrap())
            .collect();
        assert_eq!(heard, [vec![9u8; 10]]);
        a.send(LAUNCHER, &sent[2]).unwrap();
        got.extend(carry(&mut a, &mut b));
        assert_eq!(got, sent);
    }

    #[test]
    fn what_a_broken_way_took_arrives_once() {
        let (mut a, mut b) = pair();
        let sent: Vec<Vec<u8>> = (0..40).map(|n| vec![n; 2500]).collect();
        let mut got = Vec::new();
        for (n, message) in sent.iter().enumerate() {
            a.send(LAUNCHER, message).unwrap();
            match n % 4 {
                // Frames that leave and never arrive.
                1 => {
                    while a.next_frame().is_some() {}
                    a.passage(GATEWAY, LAUNCHER.site, &Passage::Away("a blackout".into()));
                    b.passage(GATEWAY, agent().site, &Passage::Away("a blackout".into()));
                    assert!(a.next_frame().is_none() && b.next_frame().is_none());
                }
                3 => {
                    a.passage(GATEWAY, LAUNCHER.site, &Passage::Open);
                    b.passage(GATEWAY, agent().site, &Passage::Open);
                    // Frames that arrive and are sent again all the same.
                    got.extend(carry(&mut a, &mut b));
                    a.passage(GATEWAY, LAUNCHER.site, &Passage::Broken);
                    b.passage(GATEWAY, agent().site, &Passage::Broken);
                    got.extend(carry(&mut a, &mut b));
                    carry(&mut b, &mut a);
                }
                _ => got.extend(carry(&mut a, &mut b)),
            }
        }
        assert_eq!(got, sent);
        assert_eq!(a.backlog(LAUNCHER), 0, "acknowledged, though it was said when the way was broken");
    }

    proptest! {
        #[test]
        fn messages_arrive_whole_and_in_order(sizes in prop::collection::vec(0usize..60_000, 1..12)) {
            let (mut a, mut b) = pair();
            let sent: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(n, size)| vec![n as u8; *size]).collect();
            for message in &sent {
                a.send(LAUNCHER, message).unwrap();
            }
            let mut got = Vec::new();
            for _ in 0..1000 {
                got.extend(carry(&mut a, &mut b));
                carry(&mut b, &mut a);
            }
            prop_assert_eq!(got, sent);
        }
    }
}
