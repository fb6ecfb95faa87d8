//! A conversation with one peer behind gateways: both halves of its channel, what waits, and what is to be said.

use channel::{Inbound, Outbound, Route};
use types::Identity;

use crate::stripe::Stripe;

/// What waits to be sent to a peer, in the caller's own form.
pub trait Queue {
    /// Whether nothing waits.
    fn is_empty(&self) -> bool;
    /// Bytes of the first message that have not left.
    fn left(&self) -> u64;
    /// Bytes of the next frame, header included, where a payload may have at most so many.
    fn next_len(&self, max_payload: u32) -> u32;
}

/// See the module. `F` is a frame as it can be sent again, `Q` what waits.
#[derive(Debug)]
pub struct Conversation<F, Q> {
    /// The peer.
    pub identity: Identity,
    /// What waits; tell [`crate::Conversations::queued`] when something was added.
    pub queue: Q,
    pub(crate) outbound: Outbound<F>,
    pub(crate) inbound: Inbound<Vec<u8>>,
    pub(crate) stripe: Stripe,
    /// It is in the list of those with new frames to send.
    pub(crate) is_ready: bool,
    /// It is in the list of those with frames to send again.
    pub(crate) is_again: bool,
    /// It is in the list of those to be told something.
    pub(crate) is_told: bool,
    /// Ask it what has arrived, by any route.
    pub(crate) asks: bool,
    /// Ask it by these routes, a bit each, for each is asked of what went by it.
    pub(crate) asks_by: u64,
    /// It is to send again what we have not acknowledged.
    pub(crate) asks_again: bool,
    /// Its questions: the route each came by, and what the peer calls its own.
    pub(crate) questions: Vec<(Route, u16)>,
    /// Our questions that have no answer yet: the route, and the next number when it was asked.
    pub(crate) asked: Vec<(Route, u32)>,
    /// It is in the list of those that were sent something and not asked since.
    pub(crate) is_unsolicited: bool,
    /// It was asked because its window is full, and was sent nothing since.
    pub(crate) nudged: bool,
    /// Routes by which it cannot be reached, a bit each.
    pub(crate) barred: u64,
    /// It is lost, or has said goodbye.
    pub(crate) gone: bool,
    /// Bytes that came from it and are kept by the caller.
    pub(crate) held: u64,
    /// Past so many nothing more is acknowledged.
    pub(crate) hold_limit: u64,
    /// What was acknowledged last.
    pub(crate) acknowledged: u32,
    /// Since when nothing was acknowledged of what is in flight, and how often it was asked for.
    pub(crate) silent_since_ns: u64,
    pub(crate) silences: u32,
    /// A gateway refused frames, or none delivers them: nothing is sent before this time.
    pub(crate) retry_ns: Option<u64>,
    /// How often in a row frames were refused, and how often no gateway delivered.
    pub(crate) refusals: u32,
    pub(crate) strays: u32,
}

impl<F, Q: Queue> Conversation<F, Q> {
    pub(crate) fn new(identity: Identity, queue: Q, outbound: Outbound<F>, window: u32, stripe: Stripe) -> Self {
        Conversation {
            identity,
            queue,
            outbound,
            inbound: Inbound::new(window),
            stripe,
            is_ready: false,
            is_again: false,
            is_told: false,
            asks: false,
            asks_by: 0,
            asks_again: false,
            questions: Vec::new(),
            asked: Vec::new(),
            is_unsolicited: false,
            nudged: false,
            barred: 0,
            gone: false,
            held: 0,
            hold_limit: u64::from(window / 4),
            acknowledged: 0,
            silent_since_ns: 0,
            silences: 0,
            retry_ns: None,
            refusals: 0,
            strays: 0,
        }
    }

    /// Whether it is lost, or has said goodbye.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Bytes sent and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.outbound.in_flight()
    }

    /// Whether there are frames to be sent, for the first time or again.
    pub fn has_something(&self) -> bool {
        !self.queue.is_empty() || self.outbound.has_missing()
    }

    /// Whether all that it was sent has arrived, or never will.
    pub fn is_settled(&self) -> bool {
        self.gone || (self.queue.is_empty() && self.outbound.in_flight() == 0)
    }

    pub(crate) fn may_acknowledge(&self) -> bool {
        self.held < self.hold_limit
    }

    pub(crate) fn owes_ack(&self) -> bool {
        self.may_acknowledge() && (self.inbound.ack_is_due() || self.stripe.receipt_is_due())
    }

    /// Whether it is to be told something with a frame of its own.
    pub(crate) fn has_notice(&self) -> bool {
        self.asks || self.asks_by != 0 || self.asks_again || !self.questions.is_empty() || self.owes_ack()
    }

    /// The acknowledgement to put into a frame that is being sent now.
    pub(crate) fn acknowledge(&mut self) -> u32 {
        if self.may_acknowledge() {
            self.acknowledged = self.inbound.acknowledge();
        }
        self.acknowledged
    }

    /// What was in flight on this route will not arrive, in either direction.
    pub(crate) fn lost_by(&mut self, route: Route) {
        self.outbound.lost(route);
        self.stripe.lost(usize::from(route.0));
        self.inbound.ack_lost();
        self.asked.retain(|(by, _)| *by != route);
        self.asks |= self.outbound.in_flight() > 0;
    }

    /// A question came by `route`, which the peer calls `theirs`.
    pub(crate) fn asked_by(&mut self, route: Route, theirs: u16) {
        self.questions.retain(|(by, _)| *by != route);
        self.questions.push((route, theirs));
    }
}
