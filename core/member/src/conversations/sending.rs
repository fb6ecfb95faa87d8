//! Sending: retransmissions, new frames as windows, the budget and the carrier allow, and notices.

use std::collections::VecDeque;
use std::hash::Hash;

use channel::Route;
use wire::{FrameHeader, FrameKind};

use super::{ASKS_BELOW, Carrier, Conversations, Settings, enter, tell};
use crate::conversation::{Conversation, PeerQueue};
use crate::routes::Routes;

/// Number of share frames sent before messages to single peers.
const FIRST: usize = 2;

impl<K: Copy + Eq + Hash, F: Clone, Q: PeerQueue + Default> Conversations<K, F, Q> {
    /// Sends as much as windows, the budget and the carrier allow.
    pub fn send<C: Carrier<F, Q>>(&mut self, carrier: &mut C, now_ns: u64) {
        self.send_again(carrier, now_ns);
        if self.shares_ready {
            // Some first, so that messages to single peers do not hold shares up; the rest after those messages.
            self.send_shares(carrier, now_ns, FIRST);
        }
        self.send_new(carrier, now_ns);
        if self.shares_ready {
            self.send_shares(carrier, now_ns, usize::MAX);
        }
        if !self.told.is_empty() {
            self.send_notices(carrier);
        }
    }

    /// Sends the last notices of a leaving member: acknowledges all frames that have arrived, because the member cannot
    /// answer later.
    pub fn farewell(&mut self, notice_by: &mut dyn FnMut(Route, FrameHeader, &[u8])) {
        for peer in self.peers.values_mut().filter(|peer| !peer.gone && peer.inbound.has_unacknowledged()) {
            if let Some(route) = choose(&self.routes, peer) {
                let header = FrameHeader { route: route.0.into(), ..notice(&self.settings, FrameKind::Ack, peer) };
                notice_by(route, header, &peer.stripe.receipt());
            }
        }
    }

    fn send_again<C: Carrier<F, Q>>(&mut self, carrier: &mut C, now_ns: u64) {
        let mut full = VecDeque::new();
        while let Some(key) = self.again.pop_front() {
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            peer.is_again = false;
            if peer.gone || peer.retry_ns.is_some_and(|at| at > now_ns) {
                continue;
            }
            match route_for_data(&self.routes, peer, carrier) {
                NextRoute::None => continue,
                NextRoute::Full => {
                    peer.is_again = true;
                    if !has_room(&self.routes, carrier) {
                        self.again.push_front(key);
                        break;
                    }
                    full.push_back(key);
                    continue;
                }
                NextRoute::By(route, _) => {
                    if let Some(frame) = peer.outbound.resend(route) {
                        // Not counted by the stripe: the header names the frame's first route.
                        carrier.put(route, frame.clone());
                    }
                }
            }
            enter(key, peer, &mut self.again, &mut self.ready, &mut self.told);
        }
        self.again.append(&mut full);
    }

    fn send_new<C: Carrier<F, Q>>(&mut self, carrier: &mut C, now_ns: u64) {
        let mut full = VecDeque::new();
        while let Some(key) = self.ready.pop_front() {
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            peer.is_ready = false;
            if peer.gone || peer.queue.is_empty() || peer.retry_ns.is_some_and(|at| at > now_ns) {
                continue;
            }
            let (route, most) = match route_for_data(&self.routes, peer, carrier) {
                NextRoute::None => continue,
                NextRoute::Full => {
                    peer.is_ready = true;
                    if !has_room(&self.routes, carrier) {
                        self.ready.push_front(key);
                        break;
                    }
                    full.push_back(key);
                    continue;
                }
                NextRoute::By(route, most) => (route, most),
            };
            let bytes = peer.queue.next_len(most);
            if !self.budget.may_send(bytes.into()) {
                // Acknowledgements free budget, but receivers of small amounts send none without a request.
                peer.is_ready = true;
                self.ready.push_front(key);
                self.solicit();
                break;
            }
            if !peer.outbound.may_send(bytes) {
                // An acknowledgement adds it to the list again.
                let nudges = super::rule!(self, ask_when_full) && !peer.nudged;
                if nudges && !peer.outbound.has_missing() && peer.outbound.room() < ASKS_BELOW {
                    (peer.nudged, peer.asks) = (true, true);
                    tell(key, peer, &mut self.told);
                }
                continue;
            }
            let (sequence, ack) = (peer.outbound.next(), peer.acknowledge());
            let Settings { job, me, .. } = self.settings;
            let plain = FrameHeader::plain(FrameKind::Data, job, me, peer.identity);
            let header = FrameHeader { route: route.0.into(), sequence, ack, ..plain };
            let (frame, bytes) = carrier.cut(&mut peer.queue, header, most);
            if peer.outbound.in_flight() == 0 {
                peer.begins_to_wait(now_ns);
            }
            peer.stripe.sent(usize::from(route.0), bytes as usize);
            peer.outbound.at(now_ns).sent(route, bytes, frame.clone());
            self.budget.sent(bytes.into());
            peer.nudged = false;
            if !std::mem::replace(&mut peer.is_unsolicited, true) {
                self.unsolicited.push(key);
            }
            carrier.put(route, frame);
            peer.asks |= self.leaving && peer.queue.is_empty();
            enter(key, peer, &mut self.again, &mut self.ready, &mut self.told);
        }
        self.ready.append(&mut full);
    }

    /// Requests acknowledgements from peers with frames in flight and no request since.
    pub(super) fn solicit(&mut self) {
        for key in std::mem::take(&mut self.unsolicited) {
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            peer.is_unsolicited = false;
            if peer.outbound.in_flight() > 0 && !peer.gone {
                peer.asks = true;
                tell(key, peer, &mut self.told);
            }
        }
    }

    fn send_notices<C: Carrier<F, Q>>(&mut self, carrier: &mut C) {
        for key in std::mem::take(&mut self.told) {
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            peer.is_told = false;
            if peer.gone {
                continue;
            }
            for (route, theirs) in std::mem::take(&mut peer.questions) {
                if super::rule!(self, answer_by_route) && self.routes.is_open(route) {
                    let sequence = peer.inbound.expected();
                    let header =
                        FrameHeader { route: theirs, sequence, ..notice(&self.settings, FrameKind::Answer, peer) };
                    carrier.notice(route, header, &peer.stripe.receipt());
                } else {
                    peer.inbound.ack_now();
                }
            }
            let asks_by = std::mem::take(&mut peer.asks_by);
            for route in self.routes.to(peer.identity.site).filter(|route| asks_by & route.bit() != 0) {
                ask(&self.settings, route, peer, carrier);
            }
            let Some(route) = choose(&self.routes, peer) else { continue };
            if std::mem::take(&mut peer.asks_again) {
                let header = FrameHeader { route: route.0.into(), ..notice(&self.settings, FrameKind::Again, peer) };
                carrier.notice(route, header, &peer.stripe.receipt());
            }
            // A request follows the frames that it concerns.
            if peer.asks && !peer.outbound.has_missing() {
                peer.asks = false;
                ask(&self.settings, route, peer, carrier);
            }
            if peer.owes_ack() {
                let by = peer.data_by.filter(|by| usable(&self.routes, peer).any(|usable| usable == *by));
                let route = by.unwrap_or(route);
                let header = FrameHeader { route: route.0.into(), ..notice(&self.settings, FrameKind::Ack, peer) };
                carrier.notice(route, header, &peer.stripe.receipt());
            }
            if peer.asks {
                peer.is_told = true;
                self.told.push(key);
            }
        }
    }
}

/// The header of a notice to a peer; it acknowledges the frames that have arrived.
fn notice<F, Q: PeerQueue>(settings: &Settings, kind: FrameKind, peer: &mut Conversation<F, Q>) -> FrameHeader {
    let ack = peer.acknowledge();
    FrameHeader { ack, ..FrameHeader::plain(kind, settings.job, settings.me, peer.identity) }
}

fn ask<F, Q: PeerQueue>(
    settings: &Settings,
    route: Route,
    peer: &mut Conversation<F, Q>,
    carrier: &mut impl Carrier<F, Q>,
) {
    let (sequence, by) = (peer.outbound.next(), peer.ask_by(route));
    let header = FrameHeader { route: by, sequence, ..notice(settings, FrameKind::Ask, peer) };
    carrier.notice(route, header, &peer.stripe.receipt());
}

/// The way for the next data frame to a peer.
enum NextRoute {
    /// Through this gateway, with a payload of at most this many bytes.
    By(Route, u32),
    /// Through no gateway until one has sent the frames it has.
    Full,
    None,
}

/// Returns true if any gateway takes a frame now. If none does, examining further peers would cost a member with a
/// thousand of them more than the sending itself.
fn has_room<F, Q: PeerQueue>(routes: &Routes, carrier: &impl Carrier<F, Q>) -> bool {
    routes.open().any(|route| carrier.room(route).is_some())
}

fn route_for_data<F, Q: PeerQueue>(
    routes: &Routes,
    peer: &Conversation<F, Q>,
    carrier: &impl Carrier<F, Q>,
) -> NextRoute {
    let left = if peer.queue.is_empty() { 0 } else { peer.queue.left() };
    let (mut any, mut chosen) = (false, None);
    let usable = usable(routes, peer).inspect(|_| any = true).filter(|route| carrier.room(*route).is_some());
    if let Some(at) = peer.stripe.choose(usable.map(|route| usize::from(route.0)), left) {
        let route = Route(at as u8);
        chosen = carrier.room(route).map(|most| NextRoute::By(route, most));
    }
    chosen.unwrap_or(if any { NextRoute::Full } else { NextRoute::None })
}

/// The gateways that reach a peer.
fn usable<'a, F, Q>(routes: &'a Routes, peer: &Conversation<F, Q>) -> impl Iterator<Item = Route> + use<'a, F, Q> {
    let barred = peer.barred;
    routes.to(peer.identity.site).filter(move |route| barred & route.bit() == 0)
}

/// A gateway that reaches a peer.
pub(super) fn choose<F, Q>(routes: &Routes, peer: &Conversation<F, Q>) -> Option<Route> {
    let at = peer.stripe.choose(usable(routes, peer).map(|route| usize::from(route.0)), 0)?;
    Some(Route(at as u8))
}
