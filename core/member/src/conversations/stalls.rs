//! Stalled copies of which no gateway has reported a loss: a site that should pass them on stands still, but the
//! receivers behind it can be reached without it.
//!
//! A root asks such receivers directly, twice, because the first answer may acknowledge frames that had arrived long
//! before. If a receiver answers, the root retransmits copies for it that went through other sites, or through a
//! gateway by which it does not answer. For a while, silent sites pass nothing on, and such a gateway is not used for
//! that receiver.

use std::hash::Hash;

use channel::Route;
use types::SiteId;

use super::Conversations;
use crate::conversation::{Conversation, PeerQueue, Stall};
use crate::share::mark;

/// Copies count as stalled when no frame was acknowledged for two round trips, and for at least this time. The root
/// asks their receiver after half of that time, and again after three quarters.
const STALL_NS: u64 = 500_000_000;
/// Time for which an edge with stalled copies is not used: longer than gateways take to notice that another one is
/// silent.
const STALL_BAN_NS: u64 = 4_000_000_000;

/// Time after which a peer's copies count as stalled.
pub(super) fn patience_ns<F, Q: PeerQueue>(peer: &Conversation<F, Q>) -> u64 {
    peer.outbound.round_trip_ns().map_or(0, |trip| 2 * trip).max(STALL_NS)
}

impl<K: Copy + Eq + Hash, F: Clone, Q: PeerQueue + Default> Conversations<K, F, Q> {
    /// Asks receivers whose copies may be stalled, and sends stalled copies another way.
    pub(super) fn look_for_stalls(&mut self, now_ns: u64) {
        let gets_copies =
            |peer: &Conversation<F, Q>| peer.flows.is_some() && !peer.gone && peer.outbound.goes_through();
        let mut held_up = Vec::new();
        for (key, peer) in &mut self.peers {
            if !gets_copies(peer) {
                continue;
            }
            let (waits_ns, patience_ns) = (now_ns.saturating_sub(peer.waits_since_ns), patience_ns(peer));
            let asked = match peer.stall {
                Stall::None if waits_ns >= patience_ns / 2 => Stall::Asked,
                Stall::Answered if waits_ns >= patience_ns / 4 * 3 => Stall::AskedAgain,
                Stall::Certain if waits_ns >= patience_ns => {
                    held_up.push(*key);
                    continue;
                }
                _ => continue,
            };
            peer.stall = asked;
            peer.asks_by |= self.routes.open().fold(0, |routes, route| routes | route.bit());
        }
        if held_up.is_empty() {
            return;
        }
        let silent = self.silent_sites();
        let mut any = false;
        for key in held_up {
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            let own = peer.identity.site;
            // Gateways through which it has answered neither request, although it has through others.
            let is_quiet = |route: &Route| peer.unanswered(*route) > 1;
            let quiet = self.routes.open().filter(is_quiet).fold(0, |routes, route| routes | route.bit());
            let mut by_others = 0;
            let is_lost = peer.lost_through(|route, through| {
                let relayed = through & !mark(own) != 0;
                by_others |= if relayed { route.bit() } else { 0 };
                relayed || quiet & route.bit() != 0
            });
            if !is_lost {
                continue;
            }
            any = true;
            peer.waits_again(now_ns);
            for route in self.routes.open() {
                if quiet & route.bit() != 0 {
                    peer.lost_by(route);
                    let barred = peer.barred | route.bit();
                    if self.routes.to(own).any(|other| barred & other.bit() == 0) {
                        peer.barred = barred;
                    }
                    self.bans.add(route, self.settings.me.site, own, now_ns + STALL_BAN_NS);
                }
                if by_others & route.bit() != 0 {
                    let above = silent.iter().filter(|site| **site != own);
                    above.for_each(|site| self.bans.add(route, *site, own, now_ns + STALL_BAN_NS));
                }
            }
            peer.asks = true;
        }
        if any {
            self.reconsider(false);
        }
    }

    /// Sites at which every receiver that waits for an acknowledgement was asked and has not answered.
    fn silent_sites(&self) -> Vec<SiteId> {
        let waits = |peer: &&Conversation<F, Q>| !peer.gone && peer.flows.is_some() && peer.outbound.in_flight() > 0;
        let mut sites: Vec<(SiteId, bool)> = Vec::new();
        for peer in self.peers.values().filter(waits) {
            let (site, is_silent) = (peer.identity.site, peer.stall == Stall::Asked);
            match sites.iter_mut().find(|(known, _)| *known == site) {
                Some((_, all)) => *all &= is_silent,
                None => sites.push((site, is_silent)),
            }
        }
        sites.into_iter().filter(|(_, is_silent)| *is_silent).map(|(site, _)| site).collect()
    }
}
