//! All that a member has in flight with its peers, and the recovery from losses.
//!
//! A sender keeps each frame until its receiver has acknowledged it. The member that notices a loss acts:
//!
//! | event at a member | it retransmits its frames in flight on that route, and |
//! |---|---|
//! | its connection to a gateway is lost | requests all peers to retransmit ([`FrameKind::Again`]), and asks them which frames have arrived |
//! | its connection to a gateway is back | asks peers with unacknowledged frames, on the new route too |
//! | a gateway's trunk to a site broke, or is down ([`Passage`]) | asks peers of that site |
//! | a gateway could not deliver a frame | does not use that gateway for the peer until a frame from the peer arrives through it |
//!
//! Frames for several receivers ([`FrameKind::Many`]) are kept in the channel of each receiver, with a mark of the
//! sites on their path. The root's own gateways cannot report every loss of such frames:
//!
//! | event at a member | action |
//! |---|---|
//! | a gateway's trunk to a site broke, or is down | as a root, it retransmits frames that went through that site; as a receiver, it requests every root to retransmit, whatever the site |
//! | its connection to a gateway is lost, or back | as a root, it retransmits all copies, because reports may be lost with the connection; as a receiver, it requests every root to retransmit |
//! | a receiver requests retransmission | as a root, it also retransmits copies for others that went through the receiver's site |
//! | a copy went astray where no report could reach its root | as a receiver there, it gets notice of a break, and requests every root to retransmit |
//! | a copy went astray ([`FrameKind::Astray`]) | as a root, it retransmits copies for that receiver that went through that site, and does not use the edge for a while |
//! | copies for a receiver that answers are not acknowledged | as a root, it retransmits them, and for a while sends nothing on from silent sites |
//!
//! So each site on a path needs a receiver, and no frame passes through a site without one. A retransmission goes to
//! one receiver, like any data frame.
//!
//! A peer answers an acknowledgement request ([`FrameKind::Ask`]) at once through the gateway that delivered it, so the
//! answer does not depend on the peer's view of its routes. Because a route delivers in order, the answer also shows
//! which frames were lost before the request. If all of that misses a loss, a sender without an acknowledgement for a
//! second sends requests on every route on which it has frames in flight, so no wait depends on a single notice. One
//! loss goes unreported: the first frames from a peer the receiver does not know yet.
//!
//! [`FrameKind::Again`]: wire::FrameKind::Again
//! [`Passage`]: wire::Passage
//! [`FrameKind::Many`]: wire::FrameKind::Many
//! [`FrameKind::Astray`]: wire::FrameKind::Astray
//! [`FrameKind::Ask`]: wire::FrameKind::Ask

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;

use channel::{Outbound, Route};
use rustc_hash::FxHashMap;
use types::Identity;
use wire::FrameHeader;

use crate::budget::Budget;
use crate::conversation::{Conversation, PeerQueue};
use crate::routes::Routes;
use crate::share::{Bans, Share, ShareId, Trees};
use crate::stripe::Stripe;
use sending::choose;
pub use settings::{Settings, Striping, Window};

/// A sender that waits this long for an acknowledgement requests it, and again each time the wait has doubled, up to
/// [`LONGEST_NS`].
const SILENCE_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 8_000_000_000;
/// Interval at which shares are examined whose receivers have no room.
const SHARES_NS: u64 = 10_000_000;
/// Interval of the checks for silent peers and stalled copies.
const LOOK_NS: u64 = 100_000_000;
/// Interval of a leaving member's requests.
const LEAVING_NS: u64 = 50_000_000;
/// Delay of retransmissions after a refusal; the backoff doubles it up to seven times.
const RETRY_NS: u64 = 5_000_000;
/// When no gateway delivers, all are tried again after this time, which doubles with each attempt, up to 32 times it.
const STRAY_NS: u64 = 50_000_000;
const MOST_DOUBLINGS: u32 = 5;
/// Attempts to reach a peer that was connected when the job began: 3 s.
pub const ATTEMPTS: u32 = 6;
/// Attempts to reach a peer that may connect after this member: 13 s.
pub const ATTEMPTS_AT_A_LATE_PEER: u32 = 12;
/// Most attempts of a leaving member, whose peers may have left before it.
const MOST_LEAVING: u32 = 3;
/// With a window below this, in bytes, a sender cannot wait until the receiver acknowledges without a request.
const ASKS_BELOW: u32 = 512 << 10;

/// True if a rule applies: always, except in tests that turn a rule off to show its purpose.
macro_rules! rule {
    ($self:ident, $name:ident) => {{
        #[cfg(test)]
        let holds = $self.rules.$name;
        #[cfg(not(test))]
        let holds = true;
        holds
    }};
}
pub(crate) use rule;

mod arrivals;
mod losses;
mod sending;
mod settings;
mod sharing;
mod stalls;

/// The carrier of frames for [`Conversations::send`].
pub trait Carrier<F, Q: PeerQueue> {
    /// The longest payload of a frame on this route, in bytes; `None`: the route must first send the frames it has.
    fn room(&self, route: Route) -> Option<u32>;
    /// Takes the next frame off a queue. `header` is complete except for its length; the payload may have at most
    /// `most` bytes. Returns the frame, and its length including the header.
    fn cut(&mut self, queue: &mut Q, header: FrameHeader, most: u32) -> (F, u32);
    /// Sends a frame on a route.
    fn put(&mut self, route: Route, frame: F);
    /// Sends a frame that is not kept.
    fn notice(&mut self, route: Route, header: FrameHeader, payload: &[u8]);
    /// Takes the next payload off a share, of at most `most` bytes.
    fn cut_share(&mut self, share: &mut Q::Share, most: u32) -> Arc<Vec<u8>>;
    /// Makes a frame of a share for one receiver: `header` is complete except for its length.
    fn framed(&self, header: FrameHeader, payload: &Arc<Vec<u8>>) -> F;
    /// Sends a frame of a share for several receivers: `header` is complete except for its length.
    fn put_many(&mut self, route: Route, header: FrameHeader, block: &[u8], payload: &Arc<Vec<u8>>);
    /// Lets one receiver leave a share: adds the rest of the share to the receiver's own queue.
    fn alone(&mut self, share: &Q::Share, queue: &mut Q);
}

/// A member's conversations; see the module docs. `K` names a peer, `F` is a frame in a form that can be retransmitted,
/// `Q` is a peer's queue.
#[derive(Debug)]
pub struct Conversations<K, F, Q: PeerQueue> {
    settings: Settings,
    budget: Budget,
    routes: Routes,
    peers: FxHashMap<K, Conversation<F, Q>>,
    /// Peers with frames to retransmit, with new frames, and with a notice due.
    again: VecDeque<K>,
    ready: VecDeque<K>,
    told: Vec<K>,
    /// Peers to which frames were sent since the last request to them.
    unsolicited: Vec<K>,
    /// Peers with a delayed retry, and the earliest time of a retry.
    refused: Vec<K>,
    retry_ns: u64,
    /// Nothing more will be sent; only acknowledgements are outstanding.
    leaving: bool,
    asked_ns: u64,
    looked_ns: u64,
    shares: VecDeque<Share<K, Q::Share>>,
    /// A share may have a frame to send.
    shares_ready: bool,
    shares_ns: u64,
    /// Shares that were sent completely.
    finished: Vec<(ShareId, Q::Share)>,
    next_share: u64,
    trees: Trees,
    bans: Bans,
    /// Changes whenever the paths of shares' frames may change.
    epoch: u64,
    #[cfg(test)]
    pub(crate) rules: tests::Rules,
}

impl<K: Copy + Eq + Hash, F: Clone, Q: PeerQueue + Default> Conversations<K, F, Q> {
    /// A member without routes and peers.
    pub fn new(settings: Settings, budget: Budget) -> Self {
        Conversations {
            settings,
            budget,
            routes: Routes::default(),
            peers: FxHashMap::default(),
            again: VecDeque::new(),
            ready: VecDeque::new(),
            told: Vec::new(),
            unsolicited: Vec::new(),
            refused: Vec::new(),
            retry_ns: u64::MAX,
            leaving: false,
            asked_ns: 0,
            looked_ns: 0,
            shares: VecDeque::new(),
            shares_ready: false,
            shares_ns: 0,
            finished: Vec::new(),
            next_share: 0,
            trees: Trees::default(),
            bans: Bans::default(),
            epoch: 1,
            #[cfg(test)]
            rules: tests::Rules::default(),
        }
    }

    /// The gateways and the sites they reach.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// The bytes in flight in total, and their limit.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// All conversations.
    pub fn iter(&self) -> impl Iterator<Item = (K, &Conversation<F, Q>)> {
        self.peers.iter().map(|(key, peer)| (*key, peer))
    }

    /// The conversation with a peer, if there is one.
    pub fn get(&self, key: K) -> Option<&Conversation<F, Q>> {
        self.peers.get(&key)
    }

    /// Returns the conversation with a peer; starts it if there is none.
    pub fn peer(&mut self, key: K, identity: Identity) -> &mut Conversation<F, Q> {
        let settings = self.settings;
        self.peers.entry(key).or_insert_with(|| {
            let window = settings.window.bytes();
            let outbound = match settings.window {
                Window::Adapting(window) => Outbound::adapting(window),
                Window::Fixed(window) => Outbound::new(window),
            };
            let stripe = match settings.striping {
                Striping::Adaptive { first } => Stripe::starting_with(first),
                Striping::First => Stripe::first(),
            };
            Conversation::new(identity, Q::default(), outbound, window, stripe)
        })
    }

    /// Returns true if every peer that still exists has received everything sent to it.
    pub fn is_settled(&self) -> bool {
        self.shares.is_empty() && self.peers.values().all(Conversation::is_settled)
    }

    /// Returns true if no frame waits to be sent or retransmitted to any peer.
    pub fn is_idle(&self) -> bool {
        self.shares.is_empty() && self.peers.values().all(|peer| peer.gone || !peer.has_something())
    }

    /// Returns true if the site of a peer cannot be reached through any gateway at present. This state ends at the
    /// latest when the gateway's patience does.
    pub fn is_cut_off(&self) -> bool {
        let cut_off = |peer: &Conversation<F, Q>| !peer.gone && self.routes.to(peer.identity.site).next().is_none();
        self.routes.open().next().is_some() && self.peers.values().any(cut_off)
    }

    /// The gateway for the next frame to a peer.
    pub fn route(&self, key: K) -> Option<Route> {
        self.peers.get(&key).and_then(|peer| choose(&self.routes, peer))
    }

    /// Notes an addition to a peer's queue. `was_empty`: nothing waited to be sent before.
    pub fn queued(&mut self, key: K, was_empty: bool) {
        if let Some(peer) = self.peers.get_mut(&key) {
            if was_empty {
                peer.stripe.begin(peer.outbound.in_flight());
            }
            self.wake(key);
        }
    }

    /// Sends a peer an acknowledgement request on every route.
    pub fn ask(&mut self, key: K) {
        let open = self.routes.open().fold(0, |routes, route| routes | route.bit());
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.asks_by |= open;
            self.wake(key);
        }
    }

    /// Adds a peer to the lists of pending work that it belongs in.
    fn wake(&mut self, key: K) {
        if let Some(peer) = self.peers.get_mut(&key) {
            enter(key, peer, &mut self.again, &mut self.ready, &mut self.told);
        }
    }

    fn wake_all(&mut self, which: impl Fn(&Conversation<F, Q>) -> bool) {
        for (key, peer) in self.peers.iter_mut().filter(|(_, peer)| which(peer)) {
            enter(*key, peer, &mut self.again, &mut self.ready, &mut self.told);
        }
    }

    /// The time at which [`Conversations::tick`] must be called next, in nanoseconds of its clock; `None`: nothing is
    /// due.
    pub fn next_tick_ns(&self) -> Option<u64> {
        let retry = (!self.refused.is_empty()).then_some(self.retry_ns);
        let leaving = (self.leaving && !self.is_settled()).then_some(self.asked_ns + LEAVING_NS);
        let waits = (self.budget.in_flight() > 0).then_some(self.looked_ns + LOOK_NS);
        let shares = (!self.shares.is_empty()).then_some(self.shares_ns + SHARES_NS);
        [retry, leaving, waits, shares].into_iter().flatten().min()
    }

    /// Acts on expired time limits; cheap when called often.
    pub fn tick(&mut self, now_ns: u64) {
        if now_ns >= self.retry_ns {
            self.retry_ns = u64::MAX;
            for key in std::mem::take(&mut self.refused) {
                let Some(peer) = self.peers.get_mut(&key) else { continue };
                match peer.retry_ns.filter(|at| *at > now_ns) {
                    Some(at) => self.retry(key, at),
                    None => {
                        (peer.retry_ns, peer.barred) = (None, 0);
                        self.wake(key);
                    }
                }
            }
        }
        self.tick_shares(now_ns);
        if self.leaving && now_ns.saturating_sub(self.asked_ns) > LEAVING_NS && !self.is_settled() {
            self.leave(now_ns);
        }
        if now_ns.saturating_sub(self.looked_ns) < LOOK_NS || self.budget.in_flight() == 0 {
            return;
        }
        self.looked_ns = now_ns;
        if !rule!(self, ask_when_silent) {
            return;
        }
        let waits = |peer: &&mut Conversation<F, Q>| !peer.gone && peer.outbound.in_flight() > 0;
        for peer in self.peers.values_mut().filter(waits) {
            let patience = (SILENCE_NS << peer.silences.min(4)).min(LONGEST_NS);
            if now_ns.saturating_sub(peer.silent_since_ns) >= patience {
                peer.silent_since_ns = now_ns;
                peer.silences += 1;
                peer.asks_by |= peer.outbound.routes_in_flight();
                if peer.silences > 1 {
                    // Answers show nothing about copies that went through other sites, and a barred route may work
                    // again.
                    peer.lost_through(|_, _| true);
                    peer.barred = 0;
                }
            }
        }
        self.look_for_stalls(now_ns);
        self.wake_all(|peer| peer.asks_by != 0 || peer.outbound.has_missing());
    }

    /// Returns true if [`Conversations::send`] may have frames to send.
    pub fn has_work(&self) -> bool {
        let shares = self.shares_ready && !self.shares.is_empty();
        shares || !(self.again.is_empty() && self.ready.is_empty() && self.told.is_empty())
    }
}

/// Adds a peer to the lists of pending work that it belongs in.
fn enter<K: Copy, F, Q: PeerQueue>(
    key: K,
    peer: &mut Conversation<F, Q>,
    again: &mut VecDeque<K>,
    ready: &mut VecDeque<K>,
    told: &mut Vec<K>,
) {
    if peer.gone {
        return;
    }
    if peer.outbound.has_missing() && !peer.is_again {
        peer.is_again = true;
        again.push_back(key);
    }
    if !peer.queue.is_empty() && !peer.outbound.has_missing() && !peer.is_ready {
        peer.is_ready = true;
        ready.push_back(key);
    }
    tell(key, peer, told);
}

/// Adds a peer to the list of peers with a notice due, if one is.
fn tell<K, F, Q: PeerQueue>(key: K, peer: &mut Conversation<F, Q>, told: &mut Vec<K>) {
    if peer.has_notice() && !peer.is_told {
        peer.is_told = true;
        told.push(key);
    }
}

#[cfg(test)]
mod tests;
