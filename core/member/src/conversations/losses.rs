//! Routes and peers that open, break or are lost.

use std::hash::Hash;

use channel::Route;
use types::SiteId;
use wire::Passage;

use super::{Conversations, MOST_DOUBLINGS, MOST_LEAVING, RETRY_NS, STRAY_NS};
use crate::conversation::PeerQueue;

impl<K: Copy + Eq + Hash, F: Clone, Q: PeerQueue + Default> Conversations<K, F, Q> {
    /// Notes that a gateway is connected, for the first time or again.
    pub fn route_open(&mut self, route: Route) {
        self.routes.opened(route);
        self.reconsider(true);
        for peer in self.peers.values_mut() {
            peer.barred &= !route.bit();
            // Other gateways' reports about copies may have gone to the old connection after this end had lost it.
            peer.lost_through(|_, _| true);
            if rule!(self, ask_on_return) && peer.outbound.in_flight() > 0 {
                // On the new route, so that the peer learns about it; and on any route, which may be quicker.
                peer.asks = true;
                peer.asks_by |= route.bit();
            }
            // While the gateway was away, no notice could arrive of copies from other sites that it lost.
            peer.asks_again |= peer.shares && rule!(self, again_on_return);
        }
        self.wake_all(|_| true);
    }

    /// Notes that a gateway is no longer connected: all frames in flight through it are lost, in both directions.
    pub fn route_lost(&mut self, route: Route) {
        self.routes.lost(route);
        self.reconsider(false);
        for peer in self.peers.values_mut() {
            peer.lost_by(route);
            // Other gateways' reports about copies may have been lost with it.
            if peer.lost_through(|_, _| true) {
                peer.asks = true;
            }
            peer.asks &= rule!(self, ask_on_loss);
            // Frames from peers through this gateway may be lost as well, and only this member knows.
            peer.asks_again = rule!(self, again_on_loss);
            peer.barred &= !route.bit();
        }
        self.wake_all(|_| true);
    }

    /// Notes a change of a gateway's trunks to a site, which the gateway reports.
    pub fn passage(&mut self, route: Route, site: SiteId, passage: &Passage) {
        match passage {
            Passage::Open => {
                self.routes.back(route, site);
                self.reconsider(true);
                for peer in self.peers.values_mut().filter(|peer| peer.identity.site == site) {
                    peer.barred &= !route.bit();
                }
            }
            Passage::Away(reason) => {
                self.routes.away(route, site, reason);
                self.broken(route, site);
            }
            Passage::Broken => self.broken(route, site),
        }
        self.wake_all(|_| true);
    }

    fn broken(&mut self, route: Route, site: SiteId) {
        for peer in self.peers.values_mut().filter(|peer| peer.identity.site == site) {
            peer.lost_by(route);
            peer.asks &= rule!(self, ask_on_loss);
        }
        self.broken_below(site);
    }

    /// Notes that a gateway could not deliver a frame, because the peer is not connected at the frame's last gateway.
    /// If no route is left, all are retried for a while. Returns true if frames for the peer remain and the retries are
    /// exhausted: the caller then [loses](Conversations::lose) the peer.
    pub fn undeliverable(&mut self, route: Route, key: K, now_ns: u64) -> bool {
        let Some(peer) = self.peers.get_mut(&key).filter(|peer| !peer.gone) else { return false };
        peer.lost_by(route);
        peer.asks &= rule!(self, ask_on_loss);
        peer.barred |= route.bit();
        if self.routes.open().any(|route| peer.barred & route.bit() == 0) {
            self.wake(key);
            return false;
        }
        if !peer.has_something() && peer.outbound.in_flight() == 0 {
            // The peer has left, or will send a frame itself: the next frame for it tries all gateways again.
            peer.barred = 0;
            return false;
        }
        if peer.strays >= if self.leaving { MOST_LEAVING } else { self.settings.attempts } {
            return true;
        }
        if peer.retry_ns.is_none() {
            let at = now_ns + (STRAY_NS << peer.strays.min(MOST_DOUBLINGS));
            peer.strays += 1;
            self.retry(key, at);
        }
        false
    }

    /// Notes that a gateway was short of memory and dropped frames to a peer.
    pub fn refused(&mut self, route: Route, key: K, now_ns: u64) {
        self.budget.refused(now_ns);
        let Some(peer) = self.peers.get_mut(&key).filter(|peer| !peer.gone) else { return };
        peer.outbound.lost(route);
        peer.stripe.lost(usize::from(route.0));
        if peer.retry_ns.is_none() {
            // Once for all frames affected by one shortage.
            peer.outbound.refused(route);
            let at = now_ns + (RETRY_NS << peer.refusals.min(7));
            peer.refusals += 1;
            self.retry(key, at);
        }
    }

    /// Delays all frames for a peer until this time.
    pub(super) fn retry(&mut self, key: K, at_ns: u64) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.retry_ns = Some(at_ns);
        self.refused.push(key);
        self.retry_ns = self.retry_ns.min(at_ns);
    }

    /// Marks a peer as lost, or as gone after a goodbye. Returns its queue.
    pub fn lose(&mut self, key: K) -> Option<Q> {
        let peer = self.peers.get_mut(&key).filter(|peer| !peer.gone)?;
        peer.gone = true;
        self.shares_ready = true;
        self.budget.forgotten(peer.outbound.in_flight());
        Some(std::mem::take(&mut peer.queue))
    }

    /// Starts leaving: nothing more will be sent. Requests acknowledgements from all peers, and repeats the requests
    /// until everything is acknowledged.
    pub fn leave(&mut self, now_ns: u64) {
        self.leaving = true;
        self.asked_ns = now_ns;
        for peer in self.peers.values_mut().filter(|peer| !peer.is_settled()) {
            peer.asks = true;
        }
        self.wake_all(|_| true);
    }
}
