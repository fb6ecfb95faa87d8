//! A share: bytes for several peers at several sites, sent once along trees of sites and copied by gateways.

use std::convert::Infallible;

use channel::Route;
use types::SiteId;
use wire::many::{Template, Tree};

use crate::stripe::Stripe;

/// First number of a flow in the low byte of a frame's `route`; smaller numbers are gateways. The high byte of a flow's
/// route is its gateway.
const FLOWS: u16 = 64;
/// Most flows with counters of their own.
const MOST_FLOWS: usize = 32;
/// Most trees with numbers of their own.
const MOST_TREES: usize = 256;
/// Time for which an edge is not used after a copy went astray on it.
pub(crate) const BAN_NS: u64 = 2_000_000_000;
/// Most such edges remembered.
const MOST_BANS: usize = 256;

/// The source of a share's frames.
pub trait ShareSource {
    /// Returns true if the whole source has been cut.
    fn is_done(&self) -> bool;
    /// Bytes of the next frame for each receiver, header included, with a payload of at most `max_payload`.
    fn next_len(&self, max_payload: u32) -> u32;
}

/// For members without shares.
impl ShareSource for Infallible {
    fn is_done(&self) -> bool {
        match *self {}
    }

    fn next_len(&self, _: u32) -> u32 {
        match *self {}
    }
}

/// A tree of sites, and its expected part of a share, relative to the other trees.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareTree {
    /// Edges from a site to the next, parent before child, beginning at the root's site.
    pub edges: Vec<(SiteId, SiteId)>,
    pub weight: f64,
}

/// The number of a share at its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShareId(pub u64);

/// A share in progress.
#[derive(Debug)]
pub(crate) struct Share<K, S> {
    pub id: ShareId,
    pub source: S,
    pub receivers: Vec<ShareReceiver<K>>,
    /// The trees, each with its number in [`Trees`].
    pub trees: Vec<(usize, ShareTree)>,
    /// The plans, by tree and gateway, as of `epoch`.
    plans: Vec<((usize, Route), Plan<K>)>,
    epoch: u64,
}

/// A receiver of a share.
#[derive(Debug)]
pub(crate) struct ShareReceiver<K> {
    pub key: K,
    pub at: types::Identity,
    /// Time since which it has had no room.
    pub blocked_ns: Option<u64>,
}

/// The paths of a share's frames along one tree and through one gateway.
#[derive(Debug)]
pub(crate) struct Plan<K> {
    /// `None`: no receiver is reached.
    pub template: Option<Template>,
    /// The receivers reached, in the template's order, each with the mark of the sites on its path.
    pub reached: Vec<(K, u64)>,
    /// The receivers that need frames of their own.
    pub unreached: Vec<K>,
}

/// The facts that decide whether a copy can go from one site to another.
pub(crate) trait Ways<K> {
    /// The root's site.
    fn root(&self) -> SiteId;
    /// Returns true if the gateway reaches the site.
    fn reaches(&self, route: Route, site: SiteId) -> bool;
    /// Returns true if copies through this gateway recently went astray between two sites.
    fn is_banned(&self, route: Route, from: SiteId, to: SiteId) -> bool;
    /// Returns true if copies through this gateway do not find the peer.
    fn is_stray(&self, route: Route, key: K) -> bool;
}

impl<K: Copy + PartialEq, S> Share<K, S> {
    pub(crate) fn new(
        id: ShareId,
        source: S,
        receivers: Vec<ShareReceiver<K>>,
        trees: Vec<(usize, ShareTree)>,
    ) -> Self {
        Share { id, source, receivers, trees, plans: Vec::new(), epoch: 0 }
    }

    /// Removes a receiver from the share.
    pub(crate) fn forget(&mut self, key: K) {
        self.receivers.retain(|receiver| receiver.key != key);
        self.plans.clear();
    }

    /// The plan for this tree and gateway. `epoch` must change whenever the answers of `ways` may.
    pub(crate) fn plan(&mut self, tree: usize, route: Route, epoch: u64, ways: &dyn Ways<K>) -> &mut Plan<K> {
        if self.epoch != epoch {
            self.plans.clear();
            self.epoch = epoch;
        }
        let at = match self.plans.iter().position(|(of, _)| *of == (tree, route)) {
            Some(at) => at,
            None => {
                let plan = self.made(&self.trees[tree].1, route, ways);
                self.plans.push(((tree, route), plan));
                self.plans.len() - 1
            }
        };
        &mut self.plans[at].1
    }

    fn made(&self, tree: &ShareTree, route: Route, ways: &dyn Ways<K>) -> Plan<K> {
        let root = ways.root();
        let opens =
            |from: SiteId, to: SiteId| !ways.is_banned(route, from, to) && (from != root || ways.reaches(route, to));
        // Sites in the order in which they are reached, each with its parent's place in the list and the mark of its
        // path.
        let mut sites: Vec<(SiteId, usize, u64)> = vec![(root, 0, 0)];
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        for (parent, site) in &tree.edges {
            let here = self.receivers.iter().filter(|receiver| receiver.at.site == *site);
            let (stray, there): (Vec<_>, Vec<_>) = here.partition(|receiver| ways.is_stray(route, receiver.key));
            lost.extend(stray.iter().map(|receiver| receiver.key));
            // A site without a receiver only passes frames on, and nobody there would notice their loss.
            if there.is_empty() || sites.iter().any(|(known, ..)| known == site) {
                continue;
            }
            let planned = sites.iter().position(|(known, ..)| known == parent);
            let planned = planned.filter(|at| opens(sites[*at].0, *site));
            let above = planned.or_else(|| (0..sites.len()).find(|at| opens(sites[*at].0, *site)));
            match above {
                Some(above) => {
                    sites.push((*site, above, sites[above].2 | mark(*site)));
                    found.extend(there);
                }
                None => lost.extend(there.iter().map(|receiver| receiver.key)),
            }
        }
        // From the last site to the first, each site's tree is put below its parent's.
        let mut trees: Vec<Tree> = sites.iter().map(|_| Tree::default()).collect();
        for at in (1..sites.len()).rev() {
            let mut below = std::mem::take(&mut trees[at]);
            let slots = found.iter().filter(|receiver| receiver.at.site == sites[at].0);
            below.receivers = slots.map(|receiver| receiver.at.slot).collect();
            trees[sites[at].1].branches.insert(0, (sites[at].0, below));
        }
        let template = if sites.len() > 1 { trees[0].template(root).ok() } else { None };
        let Some(template) = template else {
            // No frame can describe this tree: every receiver gets frames of its own.
            return Plan {
                template: None,
                reached: Vec::new(),
                unreached: self.receivers.iter().map(|r| r.key).collect(),
            };
        };
        let of = |identity| {
            let receiver = found.iter().find(|receiver| receiver.at == identity)?;
            let (.., mark) = sites.iter().find(|(site, ..)| *site == identity.site)?;
            Some((receiver.key, *mark))
        };
        let reached: Vec<(K, u64)> = template.receivers().filter_map(of).collect();
        // Receivers whose site is in no edge are not reached either.
        let strangers = self.receivers.iter().map(|receiver| receiver.key);
        let is_left = |key: &K| !reached.iter().any(|(known, _)| known == key) && !lost.contains(key);
        let strangers: Vec<K> = strangers.filter(is_left).collect();
        lost.extend(strangers);
        Plan { template: Some(template), reached, unreached: lost }
    }
}

/// The bit of a site in the mark of a path. Sites with the same bit count as lost together, which only costs
/// retransmissions.
pub(crate) fn mark(site: SiteId) -> u64 {
    1 << (site.0 % 64)
}

/// The trees in use, numbered so that measurements for one share serve the next.
#[derive(Debug, Default)]
pub(crate) struct Trees(Vec<Vec<(SiteId, SiteId)>>);

impl Trees {
    /// The number of a tree.
    pub(crate) fn number(&mut self, tree: &ShareTree) -> usize {
        if let Some(at) = self.0.iter().position(|known| *known == tree.edges) {
            return at;
        }
        if self.0.len() >= MOST_TREES {
            self.0.clear();
        }
        self.0.push(tree.edges.clone());
        self.0.len() - 1
    }
}

/// The flow of a tree and a gateway: the unit of counting and reporting.
pub(crate) fn flow(tree: usize, route: Route, gateways: usize) -> usize {
    (tree * gateways.max(1) + usize::from(route.0)) % MOST_FLOWS
}

/// The `route` field of a flow's frames.
pub(crate) fn route_of(flow: usize, route: Route) -> u16 {
    FLOWS + flow as u16 + (u16::from(route.0) << 8)
}

/// The gateway of a frame with this route.
pub(crate) fn gateway_of(route: u16) -> Route {
    Route((route >> 8) as u8)
}

/// Bytes that have arrived, by number of a gateway or a flow.
type Arrived = Vec<(u8, u64)>;

/// Splits a receipt into gateways and flows.
pub(crate) fn split(receipt: Arrived) -> (Arrived, Arrived) {
    let (flows, gateways): (Vec<_>, Vec<_>) = receipt.into_iter().partition(|(route, _)| u16::from(*route) >= FLOWS);
    (gateways, flows.into_iter().map(|(route, bytes)| (route - FLOWS as u8, bytes)).collect())
}

/// Edges on which copies went astray, by the gateway through which the member sent them.
#[derive(Debug, Default)]
pub(crate) struct Bans(Vec<(Route, SiteId, SiteId, u64)>);

impl Bans {
    pub(crate) fn add(&mut self, route: Route, from: SiteId, to: SiteId, until_ns: u64) {
        self.0.retain(|(known, a, b, _)| (*known, *a, *b) != (route, from, to));
        if self.0.len() < MOST_BANS {
            self.0.push((route, from, to, until_ns));
        }
    }

    pub(crate) fn holds(&self, route: Route, from: SiteId, to: SiteId) -> bool {
        self.0.iter().any(|(known, a, b, _)| (*known, *a, *b) == (route, from, to))
    }

    /// Lifts all bans, because a connection is back.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Lifts expired bans; returns true if there were any.
    pub(crate) fn expire(&mut self, now_ns: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|(.., until)| *until > now_ns);
        self.0.len() < before
    }
}

/// A peer's flows, and the gateways whose copies do not find it.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    pub stripe: Stripe,
    /// One bit for each such gateway, and the time of the last report.
    pub stray: u64,
    pub stray_ns: u64,
}

/// Copies that did not find a peer are tried again after this time.
pub(crate) const STRAY_AGAIN_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use types::{Identity, Slot};

    use super::*;

    struct Net {
        away: Vec<u16>,
        banned: Vec<(u16, u16)>,
        stray: Vec<u32>,
    }

    impl Ways<u32> for Net {
        fn root(&self) -> SiteId {
            SiteId(0)
        }
        fn reaches(&self, _: Route, site: SiteId) -> bool {
            !self.away.contains(&site.0)
        }
        fn is_banned(&self, _: Route, from: SiteId, to: SiteId) -> bool {
            self.banned.contains(&(from.0, to.0))
        }
        fn is_stray(&self, _: Route, key: u32) -> bool {
            self.stray.contains(&key)
        }
    }

    /// Peer n is rank n of site n; peer 9 is another of site 1.
    fn plan(edges: &[(u16, u16)], net: &Net) -> (Vec<(u32, u64)>, Vec<u32>) {
        let at = |key: u32| Identity { site: SiteId(if key == 9 { 1 } else { key as u16 }), slot: Slot(key << 8) };
        let receiver = |key| ShareReceiver { key, at: at(key), blocked_ns: None };
        let edges = edges.iter().map(|(a, b)| (SiteId(*a), SiteId(*b))).collect();
        let tree = ShareTree { edges, weight: 1.0 };
        let receivers = [1, 2, 3, 9].map(receiver).into();
        let mut share: Share<u32, ()> = Share::new(ShareId(0), (), receivers, vec![(0, tree)]);
        let plan = share.plan(0, Route(0), 1, net);
        let mut reached = plan.reached.clone();
        reached.sort_unstable();
        let mut unreached = plan.unreached.clone();
        unreached.sort_unstable();
        (reached, unreached)
    }

    const CHAIN: [(u16, u16); 3] = [(0, 1), (1, 2), (2, 3)];

    fn net() -> Net {
        Net { away: vec![], banned: vec![], stray: vec![] }
    }

    #[test]
    fn paths_are_marked_site_by_site() {
        let (reached, unreached) = plan(&CHAIN, &net());
        assert_eq!((reached, unreached), (vec![(1, 0b10), (2, 0b110), (3, 0b1110), (9, 0b10)], vec![]));
    }

    #[test]
    fn what_a_tree_cannot_reach_goes_another_way() {
        // The root's trunk to site 1 is down: site 2 is reached directly, and passes copies on to site 1.
        let net = Net { away: vec![1], ..net() };
        assert_eq!(plan(&[(0, 2), (0, 1), (0, 3)], &net).0, [(1, 0b110), (2, 0b100), (3, 0b1000), (9, 0b110)]);
        // A copy from site 1 to site 2 went astray.
        let net = Net { banned: vec![(1, 2)], away: vec![], stray: vec![] };
        assert_eq!(plan(&CHAIN, &net).0, [(1, 0b10), (2, 0b100), (3, 0b1100), (9, 0b10)]);
    }

    #[test]
    fn peers_that_copies_do_not_find_are_left_out() {
        let stray = Net { stray: vec![9], ..net() };
        assert_eq!(plan(&CHAIN, &stray), (vec![(1, 0b10), (2, 0b110), (3, 0b1110)], vec![9]));
        // Nobody at site 1 would notice a loss there, so no frame passes through it.
        let stray = Net { stray: vec![1, 9], ..net() };
        assert_eq!(plan(&CHAIN, &stray), (vec![(2, 0b100), (3, 0b1100)], vec![1, 9]));
        let all_away = Net { away: vec![1, 2, 3], ..net() };
        assert_eq!(plan(&CHAIN, &all_away), (vec![], vec![1, 2, 3, 9]));
        assert_eq!(plan(&[(0, 1)], &net()), (vec![(1, 0b10), (9, 0b10)], vec![2, 3]));
    }

    #[test]
    fn bans_end() {
        let mut bans = Bans::default();
        bans.add(Route(1), SiteId(2), SiteId(3), BAN_NS + 5);
        assert!(bans.holds(Route(1), SiteId(2), SiteId(3)) && !bans.holds(Route(0), SiteId(2), SiteId(3)));
        assert!(!bans.expire(BAN_NS) && bans.expire(BAN_NS + 5));
        assert!(!bans.holds(Route(1), SiteId(2), SiteId(3)));
    }
}
