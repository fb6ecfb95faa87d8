//! A peer behind gateways.

use std::collections::VecDeque;
use std::sync::Arc;

use channel::{Inbound, Outbound};
use types::Identity;
use wire::FrameKind;

use super::connection::Connection;
use crate::link::Outgoing;
use crate::operation::PeerId;

pub(super) struct Remote {
    pub identity: Identity,
    pub outbound: Outbound<Arc<Vec<u8>>>,
    pub inbound: Inbound<Vec<u8>>,
    pub queue: VecDeque<Outgoing>,
    /// It is among those that are ready.
    pub is_ready: bool,
    /// It is among those to be told something.
    pub is_told: bool,
    /// It is to acknowledge at once.
    pub asks: bool,
    /// It is to send again what we have not acknowledged.
    pub asks_again: bool,
    /// Gateways by which it cannot be reached, a bit each.
    pub barred: u64,
    /// It is lost, or has said goodbye.
    pub gone: bool,
}

impl Remote {
    pub fn new(identity: Identity, window: u32) -> Remote {
        Remote {
            identity,
            outbound: Outbound::new(window),
            inbound: Inbound::new(window),
            queue: VecDeque::new(),
            is_ready: false,
            is_told: false,
            asks: false,
            asks_again: false,
            barred: 0,
            gone: false,
        }
    }

    /// The gateway to send by: always the same of those that get there, so that frames need not overtake each other.
    pub fn way(&self, connections: &[Connection]) -> Option<usize> {
        let usable = |at: &usize| {
            let connection = &connections[*at];
            self.barred & (1 << at) == 0
                && connection.lost.is_none()
                && !connection.away.contains_key(&self.identity.site)
        };
        let first = self.identity.slot.0 as usize;
        (0..connections.len()).map(|step| (first + step) % connections.len()).find(usable)
    }

    /// Whether there are frames to be sent, for the first time or again.
    pub fn has_something(&self) -> bool {
        !self.queue.is_empty() || self.outbound.has_missing()
    }

    /// Whether all that it was sent has arrived, or never will.
    pub fn is_settled(&self) -> bool {
        self.gone || (self.queue.is_empty() && self.outbound.in_flight() == 0)
    }

    /// Enters it where it has something to do.
    pub fn wake(&mut self, peer: PeerId, ready: &mut VecDeque<PeerId>, told: &mut Vec<PeerId>) {
        if self.gone {
            return;
        }
        if self.has_something() && !self.is_ready {
            self.is_ready = true;
            ready.push_back(peer);
        }
        if (self.inbound.ack_is_due() || self.asks || self.asks_again) && !self.is_told {
            self.is_told = true;
            told.push(peer);
        }
    }

    /// What kind of frame it is to be told in, if in any.
    pub fn next_notice(&mut self) -> Option<FrameKind> {
        if self.gone {
            None
        } else if std::mem::take(&mut self.asks_again) {
            Some(FrameKind::Again)
        } else if std::mem::take(&mut self.asks) {
            Some(FrameKind::Ask)
        } else {
            self.inbound.ack_is_due().then_some(FrameKind::Ack)
        }
    }
}
