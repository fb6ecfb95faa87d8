//! A peer behind gateways.

use std::collections::VecDeque;
use std::sync::Arc;

use channel::{Inbound, Outbound, Route};
use types::Identity;
use wire::FrameKind;

use super::connection::Connection;
use super::flows::Flows;
use crate::link::Outgoing;
use crate::operation::PeerId;

/// How data can get to a peer.
pub(super) enum Way {
    /// By this gateway.
    By(usize),
    /// By none before it has sent what it was given.
    Full,
    /// By none.
    None,
}

pub(super) struct Remote {
    pub identity: Identity,
    pub outbound: Outbound<Arc<Vec<u8>>>,
    pub inbound: Inbound<Vec<u8>>,
    pub queue: VecDeque<Outgoing>,
    pub flows: Flows,
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
    /// `first`: the gateway that frames to it take first.
    pub fn new(identity: Identity, window: u32, first: usize) -> Remote {
        Remote {
            identity,
            outbound: Outbound::adapting(window),
            inbound: Inbound::new(window),
            queue: VecDeque::new(),
            flows: Flows::starting_with(first),
            is_ready: false,
            is_told: false,
            asks: false,
            asks_again: false,
            barred: 0,
            gone: false,
        }
    }

    /// The gateways that get there.
    fn ways<'a>(&self, connections: &'a [Connection]) -> impl Iterator<Item = (usize, &'a Connection)> + use<'a> {
        let (barred, site) = (self.barred, self.identity.site);
        connections.iter().enumerate().filter(move |(at, connection)| {
            barred & (1 << at) == 0 && connection.is_open() && !connection.away.contains_key(&site)
        })
    }

    /// A gateway that gets there.
    pub fn way(&self, connections: &[Connection]) -> Option<usize> {
        self.flows.choose(self.ways(connections).map(|(at, _)| at), 0)
    }

    /// The gateway for the next data.
    pub fn way_for_data(&self, connections: &[Connection]) -> Way {
        let left = self.queue.front().map_or(0, Outgoing::left);
        match self.flows.choose(self.ways(connections).filter(|(_, c)| c.has_room()).map(|(at, _)| at), left) {
            Some(at) => Way::By(at),
            None if self.ways(connections).next().is_some() => Way::Full,
            None => Way::None,
        }
    }

    fn owes_ack(&self) -> bool {
        self.inbound.ack_is_due() || self.flows.receipt_is_due()
    }

    /// What was under way by this gateway will not arrive.
    pub fn lost_by(&mut self, gateway: usize) {
        self.outbound.lost(Route(gateway as u8));
        self.flows.lost(gateway);
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
        if (self.owes_ack() || self.asks || self.asks_again) && !self.is_told {
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
            self.owes_ack().then_some(FrameKind::Ack)
        }
    }
}
