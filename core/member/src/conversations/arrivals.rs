//! Frames and acknowledgements that arrive.

use std::hash::Hash;

use channel::{Arrival, Route};
use wire::frame::HEADER_LEN;
use wire::{FrameHeader, FrameKind};

use super::Conversations;
use crate::Misbehaved;
use crate::conversation::PeerQueue;
use crate::share::split;

impl<K: Copy + Eq + Hash, F: Clone, Q: PeerQueue + Default> Conversations<K, F, Q> {
    /// Processes an acknowledging frame without data from a peer, with its receipt.
    ///
    /// # Errors
    /// The peer violated the rules of the channel, or its receipt is invalid.
    pub fn heard(
        &mut self,
        route: Route,
        key: K,
        header: &FrameHeader,
        payload: &[u8],
        now_ns: u64,
    ) -> Result<(), Misbehaved> {
        let receipt = wire::receipt::decode(payload)?;
        self.acknowledged(route, key, header, now_ns)?;
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let (gateways, by_flow) = split(receipt);
        peer.stripe.arrived(&gateways);
        if let Some(flows) = &mut peer.flows {
            flows.stripe.arrived(&by_flow);
        }
        match header.kind {
            FrameKind::Ask => peer.asked_by(route, header.route),
            FrameKind::Again => {
                peer.outbound.lost_all();
                peer.asks |= peer.outbound.in_flight() > 0;
                let site = peer.identity.site;
                self.lost_below(site);
            }
            FrameKind::Answer => peer.answered(header.route, header.sequence),
            _ => {}
        }
        self.wake(key);
        Ok(())
    }

    /// Processes a data frame from a peer. Passes each payload that is now in order to `deliver`, with true if it is a
    /// copy of a frame for several receivers, which may have passed through another site.
    ///
    /// # Errors
    /// The peer violated the rules of the channel, or an error of `deliver`.
    pub fn data<E: From<Misbehaved>>(
        &mut self,
        route: Route,
        key: K,
        header: &FrameHeader,
        payload: &[u8],
        now_ns: u64,
        mut deliver: impl FnMut(&[u8], bool) -> Result<(), E>,
    ) -> Result<(), E> {
        if header.relayed {
            // It neither acknowledges frames nor shows that this route reaches the peer.
            self.peer(key, header.from).shares = true;
        } else {
            self.acknowledged(route, key, header, now_ns)?;
        }
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let bytes = HEADER_LEN as u32 + header.length;
        peer.stripe.came(header.route as u8, bytes);
        peer.data_by = Some(route);
        match peer.inbound.received(header.sequence, bytes).map_err(Misbehaved::from)? {
            Arrival::Next => {
                deliver(payload, header.relayed)?;
                while let Some((early, relayed)) = peer.inbound.next_early() {
                    deliver(&early, relayed)?;
                }
            }
            Arrival::Early => peer.inbound.keep(header.sequence, bytes, (payload.to_vec(), header.relayed)),
            // It would not have been retransmitted if the sender had received our acknowledgement.
            Arrival::Again => peer.inbound.ack_now(),
        }
        self.wake(key);
        Ok(())
    }

    /// Processes the acknowledgement in any frame of a peer. The frame's arrival shows that `route` reaches the peer.
    pub(super) fn acknowledged(
        &mut self,
        route: Route,
        key: K,
        header: &FrameHeader,
        now_ns: u64,
    ) -> Result<(), Misbehaved> {
        let leaving = self.leaving;
        self.peer(key, header.from);
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        peer.barred &= !route.bit();
        peer.strays = 0;
        if let Some(flows) = peer.flows.as_mut().filter(|flows| flows.stray & route.bit() != 0) {
            flows.stray &= !route.bit();
            self.epoch += 1;
        }
        if peer.gone {
            return Ok(());
        }
        let before = peer.outbound.in_flight();
        peer.outbound.at(now_ns).acknowledged(header.ack)?;
        let freed = before - peer.outbound.in_flight();
        peer.answers(freed > 0, now_ns);
        if freed > 0 {
            self.budget.acknowledged(freed);
            peer.silent_since_ns = now_ns;
            (peer.silences, peer.refusals) = (0, 0);
            peer.retry_ns = None;
            self.shares_ready = true;
            if let Some(flows) = peer.flows.as_mut().filter(|_| peer.outbound.in_flight() == 0) {
                flows.stripe.settle();
            }
        }
        // A request may have overtaken the frames that it concerns.
        peer.asks |= leaving && !peer.is_settled();
        Ok(())
    }

    /// Notes that bytes from a peer are kept here; beyond a quarter of the window, no frame is acknowledged.
    pub fn hold(&mut self, key: K, bytes: u64) {
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.held += bytes;
        }
    }

    /// Notes that kept bytes are released.
    pub fn release(&mut self, key: K, bytes: u64) {
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.held = peer.held.saturating_sub(bytes);
            self.wake(key);
        }
    }
}
