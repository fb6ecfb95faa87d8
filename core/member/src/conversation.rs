//! A conversation with one peer behind gateways: both halves of its channel, its queue, and the notices due to it.

use channel::{Inbound, Outbound, Route};
use types::Identity;

use crate::share::{Flows, ShareSource};
use crate::stripe::Stripe;

/// A peer's queue, in the caller's own form.
pub trait PeerQueue {
    /// The source of a share's pieces; [`std::convert::Infallible`] for a member without shares.
    type Share: ShareSource;
    /// Returns true if the queue is empty.
    fn is_empty(&self) -> bool;
    /// Unsent bytes of the first message.
    fn left(&self) -> u64;
    /// Bytes of the next frame, header included, with a payload of at most `max_payload`.
    fn next_len(&self, max_payload: u32) -> u32;
}

/// The inquiry about unacknowledged copies for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// The copies have not waited long.
    None,
    /// An acknowledgement was requested.
    Asked,
    /// The peer has answered, but perhaps only to acknowledge frames that had arrived long before.
    Answered,
    AskedAgain,
    /// It has answered the second request too, without acknowledging any frame in flight.
    Certain,
}

/// Most unanswered requests remembered per route.
const MOST_ASKED: usize = 32;

/// A request for an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckRequest {
    route: Route,
    mark: u8,
    /// Number of transmissions before it.
    sends: u64,
}

/// A conversation; see the module docs. `F` is a frame in a form that can be retransmitted, `Q` the peer's queue.
#[derive(Debug)]
pub struct Conversation<F, Q> {
    pub identity: Identity,
    /// The peer's queue; call [`crate::Conversations::queued`] after adding to it.
    pub queue: Q,
    pub(crate) outbound: Outbound<F>,
    /// Payloads that arrived early; true marks a copy.
    pub(crate) inbound: Inbound<(Vec<u8>, bool)>,
    pub(crate) stripe: Stripe,
    /// The flows of shares to it.
    pub(crate) flows: Option<Box<Flows>>,
    /// It has sent copies: only their receivers may notice that a gateway has lost some.
    pub(crate) shares: bool,
    /// It is in the list of peers with new frames to send.
    pub(crate) is_ready: bool,
    /// It is in the list of peers with frames to retransmit.
    pub(crate) is_again: bool,
    /// It is in the list of peers with a notice due.
    pub(crate) is_told: bool,
    /// An acknowledgement request to it is due, on any route.
    pub(crate) asks: bool,
    /// Acknowledgement requests to it are due on these routes, one bit each: a request covers only the frames sent
    /// before it on its own route.
    pub(crate) asks_by: u64,
    /// A request to it to retransmit all unacknowledged frames is due.
    pub(crate) asks_again: bool,
    /// The route of its last data: acknowledgements return that way, because it works.
    pub(crate) data_by: Option<Route>,
    /// Its acknowledgement requests: the route on which each arrived, and the request's `route` field.
    pub(crate) questions: Vec<(Route, u16)>,
    /// Our unanswered requests, the oldest first.
    pub(crate) asked: Vec<AckRequest>,
    /// The mark of the next request.
    mark: u8,
    /// It is in the list of peers to which frames were sent since the last request.
    pub(crate) is_unsolicited: bool,
    /// A request was sent because its window is full, and no frame since.
    pub(crate) nudged: bool,
    /// Routes that do not reach it, one bit each.
    pub(crate) barred: u64,
    /// It is lost, or has sent a goodbye.
    pub(crate) gone: bool,
    /// Bytes received from it that the caller still keeps.
    pub(crate) held: u64,
    /// While more bytes than this are kept, no frame is acknowledged.
    pub(crate) hold_limit: u64,
    /// The last acknowledgement.
    pub(crate) acknowledged: u32,
    /// Start of the present silence, in which no frame in flight was acknowledged, and the number of requests in it.
    pub(crate) silent_since_ns: u64,
    pub(crate) silences: u32,
    /// Start of the present wait for an acknowledgement, and the inquiry about stalled copies.
    pub(crate) waits_since_ns: u64,
    pub(crate) stall: Stall,
    /// After a refusal, or when no gateway delivers: nothing is sent before this time.
    pub(crate) retry_ns: Option<u64>,
    /// Number of consecutive refusals, and of consecutive attempts that no gateway could deliver.
    pub(crate) refusals: u32,
    pub(crate) strays: u32,
}

impl<F, Q: PeerQueue> Conversation<F, Q> {
    pub(crate) fn new(identity: Identity, queue: Q, outbound: Outbound<F>, window: u32, stripe: Stripe) -> Self {
        Conversation {
            identity,
            queue,
            outbound,
            inbound: Inbound::new(window),
            stripe,
            flows: None,
            shares: false,
            is_ready: false,
            is_again: false,
            is_told: false,
            asks: false,
            asks_by: 0,
            asks_again: false,
            data_by: None,
            questions: Vec::new(),
            asked: Vec::new(),
            mark: 0,
            is_unsolicited: false,
            nudged: false,
            barred: 0,
            gone: false,
            held: 0,
            hold_limit: u64::from(window / 4),
            acknowledged: 0,
            silent_since_ns: 0,
            silences: 0,
            waits_since_ns: 0,
            stall: Stall::None,
            retry_ns: None,
            refusals: 0,
            strays: 0,
        }
    }

    /// Returns true if the peer is lost or has sent a goodbye.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Bytes sent and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.outbound.in_flight()
    }

    /// Returns true if frames wait to be sent or retransmitted.
    pub fn has_something(&self) -> bool {
        !self.queue.is_empty() || self.outbound.has_missing()
    }

    /// Returns true if everything sent to it has arrived, or never will.
    pub fn is_settled(&self) -> bool {
        self.gone || (self.queue.is_empty() && self.outbound.in_flight() == 0)
    }

    pub(crate) fn may_acknowledge(&self) -> bool {
        self.held < self.hold_limit
    }

    pub(crate) fn owes_ack(&self) -> bool {
        self.may_acknowledge() && (self.inbound.ack_is_due() || self.stripe.receipt_is_due())
    }

    /// Returns true if a notice to it is due.
    pub(crate) fn has_notice(&self) -> bool {
        self.asks || self.asks_by != 0 || self.asks_again || !self.questions.is_empty() || self.owes_ack()
    }

    /// The acknowledgement for a frame that is being sent now.
    pub(crate) fn acknowledge(&mut self) -> u32 {
        if self.may_acknowledge() {
            self.acknowledged = self.inbound.acknowledge();
        }
        self.acknowledged
    }

    /// Counts all frames in flight on this route, in either direction, as lost.
    pub(crate) fn lost_by(&mut self, route: Route) {
        self.outbound.lost(route);
        self.stripe.lost(usize::from(route.0));
        self.inbound.ack_lost();
        self.asked.retain(|asked| asked.route != route);
        self.asks |= self.outbound.in_flight() > 0;
    }

    /// Notes an acknowledgement request that is being sent on this route. Returns the request's `route` field, which
    /// the answer repeats, because several requests may be in flight.
    pub(crate) fn ask_by(&mut self, route: Route) -> u16 {
        if self.unanswered(route) >= MOST_ASKED
            && let Some(oldest) = self.asked.iter().position(|asked| asked.route == route)
        {
            self.asked.remove(oldest);
        }
        let mark = self.mark;
        self.mark = mark.wrapping_add(1);
        self.asked.push(AckRequest { route, mark, sends: self.outbound.sends() });
        u16::from_le_bytes([route.0, mark])
    }

    /// Number of unanswered requests on this route.
    pub(crate) fn unanswered(&self, route: Route) -> usize {
        self.asked.iter().filter(|asked| asked.route == route).count()
    }

    /// Processes the answer to the request with this `route` field; the peer expected the frame `expected` next.
    pub(crate) fn answered(&mut self, by: u16, expected: u32) {
        let [route, mark] = by.to_le_bytes();
        let route = Route(route);
        let Some(at) = self.asked.iter().position(|asked| asked.route == route && asked.mark == mark) else { return };
        let sends = self.asked[at].sends;
        let mut place = 0;
        self.asked.retain(|asked| {
            place += 1;
            place > at + 1 || asked.route != route
        });
        if let Some(other) = self.outbound.answered(route, sends, expected) {
            self.asks_by |= other.bit();
        }
    }

    /// Starts the wait for an acknowledgement: from now on, frames are in flight.
    pub(crate) fn begins_to_wait(&mut self, now_ns: u64) {
        (self.silent_since_ns, self.silences) = (now_ns, 0);
        self.waits_again(now_ns);
    }

    pub(crate) fn waits_again(&mut self, now_ns: u64) {
        (self.waits_since_ns, self.stall) = (now_ns, Stall::None);
    }

    /// Notes a frame from the peer. `freed`: it acknowledges frames in flight.
    pub(crate) fn answers(&mut self, freed: bool, now_ns: u64) {
        self.stall = match self.stall {
            Stall::Asked => return self.stall = Stall::Answered,
            Stall::AskedAgain if !freed => Stall::Certain,
            other if !freed => other,
            _ => Stall::None,
        };
        if freed {
            self.waits_since_ns = now_ns;
        }
    }

    /// Counts copies as lost if `which` returns true for their route and mark. Returns true if there were any.
    pub(crate) fn lost_through(&mut self, which: impl FnMut(Route, u64) -> bool) -> bool {
        let any = self.outbound.lost_through(which);
        if let Some(flows) = self.flows.as_mut().filter(|_| any) {
            flows.stripe.settle();
        }
        any
    }

    /// Notes an acknowledgement request that arrived on `route`. `theirs`: the request's `route` field.
    pub(crate) fn asked_by(&mut self, route: Route, theirs: u16) {
        self.questions.retain(|(by, _)| *by != route);
        self.questions.push((route, theirs));
    }
}
