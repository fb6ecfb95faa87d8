//! Shares: frames for several receivers, and the recovery from their losses.

use std::hash::Hash;

use channel::Route;
use types::{Identity, SiteId, Slot};
use wire::many::{Astray, Why};
use wire::{FrameHeader, FrameKind};

use super::{ASKS_BELOW, Carrier, Conversations, SHARES_NS, Settings, stalls, tell};
use crate::conversation::{Conversation, PeerQueue, Stall};
use crate::routes::Routes;
use crate::share::{
    BAN_NS, Bans, STRAY_AGAIN_NS, Share, ShareId, ShareReceiver, ShareSource, ShareTree, Ways, flow, gateway_of, mark,
    route_of,
};

/// A receiver that no copy reaches, and that has had no room for this time, leaves the share.
const UNREACHED_NS: u64 = 100_000_000;

/// The result of trying to send one frame of a share.
enum SendOutcome {
    Sent,
    /// The whole share was sent.
    Done,
    /// A receiver, or the budget, has no room.
    Blocked,
    /// No gateway takes a frame at present, or none is connected.
    Full,
}

/// A member's view of the paths for its shares.
struct View<'a, K, F, Q: PeerQueue> {
    root: SiteId,
    routes: &'a Routes,
    bans: &'a Bans,
    peers: &'a rustc_hash::FxHashMap<K, Conversation<F, Q>>,
}

impl<K: Copy + Eq + Hash, F, Q: PeerQueue> Ways<K> for View<'_, K, F, Q> {
    fn root(&self) -> SiteId {
        self.root
    }

    fn reaches(&self, route: Route, site: SiteId) -> bool {
        self.routes.reaches(route, site)
    }

    fn is_banned(&self, route: Route, from: SiteId, to: SiteId) -> bool {
        self.bans.holds(route, from, to)
    }

    fn is_stray(&self, route: Route, key: K) -> bool {
        let flows = self.peers.get(&key).and_then(|peer| peer.flows.as_ref());
        flows.is_some_and(|flows| flows.stray & route.bit() != 0)
    }
}

impl<K: Copy + Eq + Hash, F: Clone, Q: PeerQueue + Default> Conversations<K, F, Q> {
    /// Starts to send a share to these peers along these trees, at least one. Every tree begins at this member's site
    /// and contains the site of every peer. [`Conversations::shared`] returns the share once it was sent.
    pub fn share(&mut self, source: Q::Share, to: &[(K, Identity)], trees: Vec<ShareTree>) -> ShareId {
        let id = ShareId(self.next_share);
        self.next_share += 1;
        let all: f64 = trees.iter().map(|tree| tree.weight).sum();
        let (count, gateways) = (trees.len() as f64, self.routes.count());
        let trees: Vec<_> = trees.into_iter().map(|tree| (self.trees.number(&tree), tree)).collect();
        for (key, identity) in to {
            let peer = self.peer(*key, *identity);
            let flows = peer.flows.get_or_insert_default();
            for (number, tree) in &trees {
                let share = if all > 0.0 { tree.weight / all * count } else { 1.0 };
                (0..gateways).for_each(|at| flows.stripe.expect(flow(*number, Route(at as u8), gateways), share));
            }
            if peer.outbound.in_flight() == 0
                && let Some(flows) = &mut peer.flows
            {
                flows.stripe.settle();
            }
        }
        let receivers = to.iter().map(|(key, at)| ShareReceiver { key: *key, at: *at, blocked_ns: None });
        self.shares.push_back(Share::new(id, source, receivers.collect(), trees));
        self.shares_ready = true;
        id
    }

    /// Returns a share that was sent or queued completely, or whose receivers are all gone.
    pub fn shared(&mut self) -> Option<(ShareId, Q::Share)> {
        self.finished.pop()
    }

    /// Notes that a peer will send shares: this member may be the only one to notice a loss of them.
    pub fn expect_shares(&mut self, key: K, identity: Identity) {
        self.peer(key, identity).shares = true;
    }

    /// Processes a gateway's report that a copy for a peer was dropped. `route`: the `route` field of the frame.
    pub fn astray(&mut self, route: u16, key: K, astray: Astray, now_ns: u64) {
        let by = gateway_of(route);
        let own = self.settings.me.site;
        let Some(peer) = self.peers.get_mut(&key).filter(|peer| !peer.gone) else { return };
        // One report may stand for several: all copies on that path are lost, through any gateway.
        let is_lost = |_, through: u64| astray.at == own || through & mark(astray.at) != 0;
        peer.lost_through(is_lost);
        match astray.why {
            Why::Absent => {
                let flows = peer.flows.get_or_insert_default();
                flows.stray |= by.bit();
                flows.stray_ns = now_ns;
            }
            Why::Away => self.bans.add(by, astray.at, astray.towards, now_ns + BAN_NS),
            Why::Refused => self.refused(by, key, now_ns),
        }
        self.reconsider(false);
        self.wake(key);
    }

    /// Notes that the paths of shares' frames may have changed. `anew`: a connection is back.
    pub(super) fn reconsider(&mut self, anew: bool) {
        self.epoch += 1;
        self.shares_ready = true;
        if anew {
            self.bans.clear();
            self.peers.values_mut().filter_map(|peer| peer.flows.as_mut()).for_each(|flows| flows.stray = 0);
        }
    }

    /// A gateway lost its frames in flight to a site. Lost with them are frames that were to go on from there, reports
    /// about lost copies that took any gateway, and frames that others sent to this member through there.
    pub(super) fn broken_below(&mut self, site: SiteId) {
        self.reconsider(false);
        for peer in self.peers.values_mut() {
            if peer.lost_through(|_, through| through & mark(site) != 0) {
                peer.asks |= rule!(self, ask_on_loss);
            }
            peer.asks_again |= peer.shares && rule!(self, again_on_passage);
        }
    }

    /// Counts copies that went through a site as lost, because they may be.
    pub(super) fn lost_below(&mut self, site: SiteId) {
        if !rule!(self, again_below) {
            return;
        }
        let mut any = false;
        for peer in self.peers.values_mut() {
            if peer.lost_through(|_, through| through & mark(site) != 0) {
                peer.asks |= rule!(self, ask_on_loss);
                any = true;
            }
        }
        if any {
            self.wake_all(|_| true);
        }
    }

    /// Retries receivers that were left out of shares, and shares that wait.
    pub(super) fn tick_shares(&mut self, now_ns: u64) {
        if self.shares.is_empty() || now_ns.saturating_sub(self.shares_ns) < SHARES_NS {
            return;
        }
        (self.shares_ns, self.shares_ready) = (now_ns, true);
        if self.bans.expire(now_ns) {
            self.epoch += 1;
        }
        for peer in self.peers.values_mut() {
            if let Some(flows) = peer.flows.as_mut().filter(|flows| flows.stray != 0)
                && now_ns.saturating_sub(flows.stray_ns) >= STRAY_AGAIN_NS
            {
                flows.stray = 0;
                self.epoch += 1;
            }
        }
    }

    /// Sends at most this many frames of shares. Shares take turns.
    pub(super) fn send_shares<C: Carrier<F, Q>>(&mut self, carrier: &mut C, now_ns: u64, most: usize) {
        let (mut sent, mut blocked) = (0, 0);
        while sent < most && blocked < self.shares.len() {
            let Some(mut share) = self.shares.pop_front() else { break };
            match self.send_share(&mut share, carrier, now_ns) {
                SendOutcome::Done => {
                    self.finished.push((share.id, share.source));
                    continue;
                }
                SendOutcome::Sent => (sent, blocked) = (sent + 1, 0),
                SendOutcome::Blocked => blocked += 1,
                SendOutcome::Full => {
                    self.shares.push_front(share);
                    return;
                }
            }
            self.shares.push_back(share);
        }
        self.shares_ready = sent >= most;
    }

    fn send_share<C: Carrier<F, Q>>(
        &mut self,
        share: &mut Share<K, Q::Share>,
        carrier: &mut C,
        now_ns: u64,
    ) -> SendOutcome {
        let gone = |receiver: &ShareReceiver<K>| self.peers.get(&receiver.key).is_none_or(|peer| peer.gone);
        let gone: Vec<K> = share.receivers.iter().filter(|receiver| gone(receiver)).map(|r| r.key).collect();
        gone.into_iter().for_each(|key| share.forget(key));
        if share.source.is_done() || share.receivers.is_empty() {
            return SendOutcome::Done;
        }
        let Some((tree, route, most)) = self.choose_flow(share, carrier) else { return SendOutcome::Full };
        let (number, gateways) = (share.trees[tree].0, self.routes.count());
        let flow = flow(number, route, gateways);
        let view = View { root: self.settings.me.site, routes: &self.routes, bans: &self.bans, peers: &self.peers };
        let plan = share.plan(tree, route, self.epoch, &view);
        let block = plan.template.as_ref().map_or(0, |template| template.length() as u32);
        let unreached = plan.unreached.clone();
        let most = most.saturating_sub(block).max(1);
        let bytes = share.source.next_len(most);
        if !self.has_room_for(share, carrier, &unreached, bytes, now_ns) {
            return SendOutcome::Blocked;
        }
        let total = u64::from(bytes) * share.receivers.len() as u64;
        if !self.budget.may_send(total) {
            self.solicit();
            return SendOutcome::Blocked;
        }
        let payload = carrier.cut_share(&mut share.source, most);
        let bytes = wire::frame::HEADER_LEN as u32 + payload.len() as u32;
        let Settings { job, me, .. } = self.settings;
        let view = View { root: me.site, routes: &self.routes, bans: &self.bans, peers: &self.peers };
        // Receivers may have left meanwhile.
        let plan = share.plan(tree, route, self.epoch, &view);
        let ways = plan.reached.iter().map(|(key, through)| (*key, Some(*through)));
        let ways: Vec<_> = ways.chain(plan.unreached.iter().map(|key| (*key, None))).collect();
        let mut sequences = Vec::with_capacity(ways.len());
        for (key, through) in ways {
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            let sequence = peer.outbound.next();
            let plain = FrameHeader::plain(FrameKind::Data, job, me, peer.identity);
            let header = FrameHeader { route: route_of(flow, route), sequence, ..plain };
            if peer.outbound.in_flight() == 0 {
                peer.begins_to_wait(now_ns);
            }
            let frame = carrier.framed(header, &payload);
            peer.outbound.at(now_ns).sent_through(through.map(|_| route), through.unwrap_or(0), bytes, frame);
            if let Some(flows) = &mut peer.flows {
                flows.stripe.sent(flow, bytes as usize);
            }
            self.budget.sent(bytes.into());
            peer.nudged = false;
            if !std::mem::replace(&mut peer.is_unsolicited, true) {
                self.unsolicited.push(key);
            }
            if through.is_some() {
                sequences.push(sequence);
            } else {
                // It goes to this receiver alone, from the list of frames to retransmit.
                super::enter(key, peer, &mut self.again, &mut self.ready, &mut self.told);
            }
        }
        if let Some(template) = &mut plan.template {
            let to = Identity { slot: Slot::GATEWAY, ..me };
            let header = FrameHeader::plain(FrameKind::Many, job, me, to);
            let header = FrameHeader { route: route_of(flow, route), ..header };
            carrier.put_many(route, header, template.fill(sequences), &payload);
        }
        if share.source.is_done() { SendOutcome::Done } else { SendOutcome::Sent }
    }

    /// The tree and the gateway for the next frame, and the longest payload there. First comes the number of receivers
    /// reached, then the lowest load, where the receiver with the highest load counts. `None`: no such gateway takes a
    /// frame now.
    fn choose_flow<C: Carrier<F, Q>>(
        &self,
        share: &mut Share<K, Q::Share>,
        carrier: &C,
    ) -> Option<(usize, Route, u32)> {
        let view = View { root: self.settings.me.site, routes: &self.routes, bans: &self.bans, peers: &self.peers };
        let gateways = self.routes.count();
        let (mut fewest, mut least, mut best) = (usize::MAX, u64::MAX, None);
        for route in self.routes.open() {
            let room = carrier.room(route);
            for tree in 0..share.trees.len() {
                let unreached = share.plan(tree, route, self.epoch, &view).unreached.len();
                if unreached < fewest {
                    (fewest, least, best) = (unreached, u64::MAX, None);
                }
                let Some(most) = room.filter(|_| unreached == fewest) else { continue };
                let flow = flow(share.trees[tree].0, route, gateways);
                let load = share.receivers.iter().filter_map(|receiver| {
                    let flows = self.peers.get(&receiver.key)?.flows.as_ref()?;
                    Some(flows.stripe.load(flow))
                });
                let load = load.max().unwrap_or(0);
                if best.is_none() || load < least {
                    (least, best) = (load, Some((tree, route, most)));
                }
            }
        }
        best
    }

    /// Returns true if every receiver has room for a frame of `bytes`. A receiver that holds the others up, because it
    /// does not answer or no copy reaches it, leaves the share and gets the rest of it alone. If all receivers are held
    /// up alike, none leaves, because nobody would gain by that.
    fn has_room_for<C: Carrier<F, Q>>(
        &mut self,
        share: &mut Share<K, Q::Share>,
        carrier: &mut C,
        unreached: &[K],
        bytes: u32,
        now_ns: u64,
    ) -> bool {
        let (mut all, mut leave) = (true, Vec::new());
        for receiver in &mut share.receivers {
            let Some(peer) = self.peers.get_mut(&receiver.key) else { continue };
            let waits = peer.retry_ns.is_some_and(|at| at > now_ns);
            if !waits && peer.outbound.may_send(bytes) {
                receiver.blocked_ns = None;
                continue;
            }
            all = false;
            let since_ns = *receiver.blocked_ns.get_or_insert(now_ns);
            let is_unreached = unreached.contains(&receiver.key);
            let patience_ns = if is_unreached { UNREACHED_NS } else { stalls::patience_ns(peer) };
            let is_quiet = is_unreached || matches!(peer.stall, Stall::None | Stall::Asked);
            if is_quiet && now_ns.saturating_sub(since_ns.max(peer.waits_since_ns)) > patience_ns {
                leave.push(receiver.key);
            }
            if rule!(self, ask_when_full)
                && !peer.nudged
                && !peer.outbound.has_missing()
                && peer.outbound.room() < ASKS_BELOW
            {
                (peer.nudged, peer.asks) = (true, true);
                tell(receiver.key, peer, &mut self.told);
            }
        }
        if leave.len() == share.receivers.len() {
            return all;
        }
        for key in leave {
            share.forget(key);
            if let Some(peer) = self.peers.get_mut(&key) {
                let was_empty = !peer.has_something();
                carrier.alone(&share.source, &mut peer.queue);
                self.queued(key, was_empty);
            }
        }
        all
    }
}
