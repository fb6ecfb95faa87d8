//! A conversation with one peer behind gateways: both halves of its channel, what is queued, and what the peer must be
//! told.

use channel::{Inbound, Outbound, Route};
use types::Identity;

use crate::share::{Flows, Pieces};
use crate::stripe::Stripe;

/// What is queued for a peer, in the caller's own form.
pub trait Queue {
    /// What shares are cut from; [`std::convert::Infallible`] for a member without any.
    type Share: Pieces;
    /// Whether nothing is queued.
    fn is_empty(&self) -> bool;
    /// Bytes of the first message that have not been sent.
    fn left(&self) -> u64;
    /// Bytes of the next frame, header included, with a payload of at most `max_payload`.
    fn next_len(&self, max_payload: u32) -> u32;
}

/// What is known of copies for a peer that are not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// They have not waited long.
    None,
    /// The peer was asked.
    Asked,
    /// It has answered: it may have acknowledged what had arrived long before.
    Answered,
    AskedAgain,
    /// It has answered twice, and nothing has arrived in between.
    Certain,
}

/// Most requests on one route that are remembered until they are answered.
const MOST_ASKED: usize = 32;

/// A request for an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    route: Route,
    mark: u8,
    /// How often frames had been sent by then.
    sends: u64,
}

/// See the module docs. `F` is a frame in a form that can be retransmitted, `Q` what is queued.
#[derive(Debug)]
pub struct Conversation<F, Q> {
    pub identity: Identity,
    /// What is queued; call [`crate::Conversations::queued`] when something was added.
    pub queue: Q,
    pub(crate) outbound: Outbound<F>,
    /// Payloads that arrived early, and whether they are copies.
    pub(crate) inbound: Inbound<(Vec<u8>, bool)>,
    pub(crate) stripe: Stripe,
    /// What goes to it in shares.
    pub(crate) flows: Option<Box<Flows>>,
    /// It has sent copies: what gateways lose of them, only their receivers may notice.
    pub(crate) shares: bool,
    /// It is in the list of peers with new frames to send.
    pub(crate) is_ready: bool,
    /// It is in the list of peers with frames to retransmit.
    pub(crate) is_again: bool,
    /// It is in the list of peers to be sent a notice.
    pub(crate) is_told: bool,
    /// Request an acknowledgement from it, on any route.
    pub(crate) asks: bool,
    /// Request acknowledgements on these routes, one bit each, because each request covers what went before it on its
    /// route.
    pub(crate) asks_by: u64,
    /// It must retransmit what we have not acknowledged.
    pub(crate) asks_again: bool,
    /// The route on which its last data arrived: acknowledgements return that way, because it works.
    pub(crate) data_by: Option<Route>,
    /// Its acknowledgement requests: the route on which each arrived, and what it has as its route.
    pub(crate) questions: Vec<(Route, u16)>,
    /// Our requests that are not answered yet, the oldest first.
    pub(crate) asked: Vec<Asked>,
    /// The mark of the next one.
    mark: u8,
    /// It is in the list of peers that were sent something and no request since.
    pub(crate) is_unsolicited: bool,
    /// It was sent a request because its window is full, and nothing since.
    pub(crate) nudged: bool,
    /// Routes by which it cannot be reached, one bit each.
    pub(crate) barred: u64,
    /// It is lost, or has said goodbye.
    pub(crate) gone: bool,
    /// Bytes received from it that the caller keeps.
    pub(crate) held: u64,
    /// When more than this is kept, nothing more is acknowledged.
    pub(crate) hold_limit: u64,
    /// The last acknowledgement.
    pub(crate) acknowledged: u32,
    /// Since when nothing in flight was acknowledged, and how often that was requested.
    pub(crate) silent_since_ns: u64,
    pub(crate) silences: u32,
    /// Since when nothing in flight was acknowledged, and what asking about it has come to.
    pub(crate) waits_since_ns: u64,
    pub(crate) stall: Stall,
    /// A gateway refused frames, or none delivers them: nothing is sent before this time.
    pub(crate) retry_ns: Option<u64>,
    /// Number of consecutive refusals, and of consecutive attempts in which no gateway delivered.
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

    /// Whether it is lost, or has said goodbye.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Bytes sent and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.outbound.in_flight()
    }

    /// Whether there are frames to send or retransmit.
    pub fn has_something(&self) -> bool {
        !self.queue.is_empty() || self.outbound.has_missing()
    }

    /// Whether everything sent to it has arrived, or never will.
    pub fn is_settled(&self) -> bool {
        self.gone || (self.queue.is_empty() && self.outbound.in_flight() == 0)
    }

    pub(crate) fn may_acknowledge(&self) -> bool {
        self.held < self.hold_limit
    }

    pub(crate) fn owes_ack(&self) -> bool {
        self.may_acknowledge() && (self.inbound.ack_is_due() || self.stripe.receipt_is_due())
    }

    /// Whether it must be sent a notice in a frame of its own.
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

    /// What was in flight on this route, in either direction, will not arrive.
    pub(crate) fn lost_by(&mut self, route: Route) {
        self.outbound.lost(route);
        self.stripe.lost(usize::from(route.0));
        self.inbound.ack_lost();
        self.asked.retain(|asked| asked.route != route);
        self.asks |= self.outbound.in_flight() > 0;
    }

    /// It is sent an acknowledgement request on this route. Returns what that has as its route: several may be on their
    /// way, and the answer repeats it.
    pub(crate) fn ask_by(&mut self, route: Route) -> u16 {
        if self.unanswered(route) >= MOST_ASKED
            && let Some(oldest) = self.asked.iter().position(|asked| asked.route == route)
        {
            self.asked.remove(oldest);
        }
        let mark = self.mark;
        self.mark = mark.wrapping_add(1);
        self.asked.push(Asked { route, mark, sends: self.outbound.sends() });
        u16::from_le_bytes([route.0, mark])
    }

    /// How many requests on this route are not answered.
    pub(crate) fn unanswered(&self, route: Route) -> usize {
        self.asked.iter().filter(|asked| asked.route == route).count()
    }

    /// It has answered the request that had this as its route, when it expected this frame next.
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

    /// Something is in flight to it from now on.
    pub(crate) fn begins_to_wait(&mut self, now_ns: u64) {
        (self.silent_since_ns, self.silences) = (now_ns, 0);
        self.waits_again(now_ns);
    }

    pub(crate) fn waits_again(&mut self, now_ns: u64) {
        (self.waits_since_ns, self.stall) = (now_ns, Stall::None);
    }

    /// Something has arrived from it, and acknowledges something in flight if `freed`.
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

    /// Whatever went through something that is lost, if `which` says so of its route and mark, must be retransmitted.
    pub(crate) fn lost_through(&mut self, which: impl FnMut(Route, u64) -> bool) -> bool {
        let any = self.outbound.lost_through(which);
        if let Some(flows) = self.flows.as_mut().filter(|_| any) {
            flows.stripe.settle();
        }
        any
    }

    /// An acknowledgement request arrived on `route`, which is `theirs` in the peer's numbering.
    pub(crate) fn asked_by(&mut self, route: Route, theirs: u16) {
        self.questions.retain(|(by, _)| *by != route);
        self.questions.push((route, theirs));
    }
}
