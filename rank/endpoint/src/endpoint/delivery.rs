//! Delivery of items to the link that reaches their peer, or to this rank itself.

use super::Endpoint;
use crate::link::{Bytes, Link, Outgoing, Sink};
use crate::operation::PeerId;

/// The link that carries items to a peer. It is chosen with the first item and then kept, because different links do
/// not keep the order of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Own,
    Memory,
    Site,
    Gateway,
}

const SELF_FRAME: u64 = 1 << 30;

impl Endpoint {
    /// The link to a peer.
    pub(super) fn route(&mut self, to: PeerId) -> Route {
        let index = to.0 as usize;
        if let Some(Some(route)) = self.routes.get(index) {
            return *route;
        }
        let Some(address) = self.protocol.address(to) else { return Route::Site };
        let route = if to == self.own_peer {
            Route::Own
        } else if self.memory.as_ref().is_some_and(|memory| memory.reaches(address)) {
            self.protocol.set_eager(to, self.limits.eager_memory);
            Route::Memory
        } else if self.gateway.is_some() && address.identity.site != self.me.identity.site {
            Route::Gateway
        } else {
            Route::Site
        };
        if self.routes.len() <= index {
            self.routes.resize(index + 1, None);
        }
        self.routes[index] = Some(route);
        route
    }

    /// Hands the protocol's outgoing items to the links.
    pub(super) fn drain(&mut self) {
        loop {
            while let Some((to, item)) = self.protocol.outbox.pop_front() {
                let route = self.route(to);
                let (link, carried): (&mut dyn Link, _) = match (route, &mut self.memory, &mut self.gateway) {
                    (Route::Own, ..) => {
                        self.looped.push_back(item);
                        continue;
                    }
                    (Route::Memory, Some(memory), _) => (memory, &mut self.traffic.memory),
                    (Route::Gateway, _, Some(gateway)) => (gateway, &mut self.traffic.gateway),
                    _ => (&mut self.site, &mut self.traffic.site),
                };
                carried.items += 1;
                carried.bytes += item.left();
                let more = self.protocol.outbox.front().is_some_and(|(next, _)| *next == to);
                link.send(to, item, more, &mut self.protocol);
            }
            for (number, op) in std::mem::take(&mut self.protocol.sharing.begin) {
                if let Some(gateway) = &mut self.gateway {
                    gateway.share(number, op, &mut self.protocol);
                }
            }
            let Some(item) = self.looped.pop_front() else { return };
            self.deliver_to_self(item);
        }
    }

    /// Delivers an item to ourselves at once.
    fn deliver_to_self(&mut self, mut item: Outgoing) {
        let count = item.left().min(SELF_FRAME);
        let message = item.head.unwrap_or(wire::Message::More { id: item.id, offset: item.at, reply: item.reply });
        let mut region = Vec::new();
        let failed = item.is_region() && item.copy_to(count, self.protocol.regions(), &mut region).is_err();
        if failed {
            let status = wire::message::Status::UnknownKey;
            item = Outgoing::header(wire::Message::Fetched { id: item.id, status });
            return self.deliver_to_self(item);
        }
        // We follow our own protocol, so this cannot fail; if it did, the transfer would fail like one to a lost peer.
        let place = match self.protocol.begin(self.own_peer, message, count as u32) {
            Ok(place) => place,
            Err(error) => return self.protocol.lost(self.own_peer, Some(error.to_string())),
        };
        let mut place = place;
        match item.bytes {
            Bytes::Region { .. } => self.protocol.put(&mut place, &region),
            _ => item.slices(count).for_each(|slice| self.protocol.put(&mut place, slice)),
        }
        self.protocol.end(place);
        if item.advance(count) {
            item.sent.into_iter().for_each(|sent| self.protocol.sent(sent));
        } else {
            self.looped.push_front(item);
        }
    }
}
