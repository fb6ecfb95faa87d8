//! Plans the trees of sites for a message, from measured links between sites.

use std::time::{Duration, Instant};

use endpoint::ShareTree;
use plan::{Algorithm, Effort, Instance, Matrix, NetworkLinks, Ports, Schedule};
use types::SiteId;
use types::links::LinkTable;

use crate::chunks::chunk;

/// Maximum number of trees for one message. Each flow is paced by its delivery rate, which takes a few frames to
/// measure.
const MOST_TREES: usize = 8;
/// Maximum length of the packets that gateways copy, in bytes.
const PACKET: u64 = 64 << 10;
/// A schedule that sends each byte out of the root's site only once is preferred if it takes at most this many times as
/// long as the fastest: the site's uplink carries more than this message. The first factor is for messages of `LONG`
/// bytes or more, the second for shorter ones.
const WORTH_ONE_COPY: [f64; 2] = [2.0, 1.1];
const LONG: u64 = 64 << 10;
/// Rate assumed for all links while none is known, in bytes per second.
const UNKNOWN: f64 = 1e7;
/// Planning takes at most 1/`LEAST_PAUSE` of the time.
const LEAST_PAUSE: u32 = 50;

/// Trees for messages of similar length from one site to a fixed set of others.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    class: u32,
    version: Option<u32>,
    /// Earliest time to plan them again.
    again: Instant,
    pub trees: Vec<ShareTree>,
}

impl Planned {
    /// Plans for messages of about `bytes` from `root` to the sites `others`, of which there is at least one. Builds
    /// the best trees, or the algorithm's tree if one is given.
    pub(crate) fn new(
        links: Option<&LinkTable>,
        root: SiteId,
        others: &[SiteId],
        bytes: u64,
        algorithm: Option<Algorithm>,
    ) -> Planned {
        let begun = Instant::now();
        let sites: Vec<SiteId> = [root].into_iter().chain(others.iter().copied()).collect();
        let schedule = links.and_then(|links| schedule(links, &sites, bytes, algorithm));
        let trees = schedule.map_or_else(|| vec![star(&sites)], |schedule| named(&schedule, &sites));
        let spent = begun.elapsed().max(Duration::from_millis(1));
        let again = Instant::now() + spent * LEAST_PAUSE;
        Planned { class: class(bytes), version: links.map(LinkTable::version), again, trees }
    }

    /// Returns true if the trees still serve for messages of this length and these links. Old trees stay in use for a
    /// while after links have changed, so that planning costs little.
    pub(crate) fn serves(&self, links: Option<&LinkTable>, bytes: u64) -> bool {
        let is_late = || Instant::now() >= self.again;
        self.class == class(bytes) && (self.version == links.map(LinkTable::version) || !is_late())
    }
}

/// Messages whose lengths differ by less than a factor of 4 share their trees.
fn class(bytes: u64) -> u32 {
    bytes.max(1).ilog2() / 2
}

/// Length of the packets that gateways copy, in bytes: chunks are copied whole, up to `PACKET`.
fn packet(bytes: u64) -> u64 {
    (chunk(bytes as usize) as u64).min(PACKET)
}

/// A star: the first of `sites` sends to all others.
fn star(sites: &[SiteId]) -> ShareTree {
    ShareTree { edges: sites[1..].iter().map(|site| (sites[0], *site)).collect(), weight: 1.0 }
}

/// The schedule to use. `None`: too little is known of the links, or there are fewer than three sites.
fn schedule(links: &LinkTable, sites: &[SiteId], bytes: u64, algorithm: Option<Algorithm>) -> Option<Schedule> {
    if sites.len() < 3 {
        return None;
    }
    let instance = instance(links, sites, bytes)?;
    if let Some(algorithm) = algorithm {
        return Some(Schedule::new(&instance, vec![(algorithm.build(&instance), 1.0)]));
    }
    let fastest = plan::choose(&instance, MOST_TREES);
    let once = once_out_of_root(&instance).map(|trees| Schedule::new(&instance, trees));
    let worth = WORTH_ONE_COPY[usize::from(bytes < LONG)];
    Some(once.filter(|once| once.time <= worth * fastest.time).unwrap_or(fastest))
}

/// The links between `sites`, of which the first is the root. We know no limit on a site's total rate beyond the sum of
/// its links' rates.
///
/// An unknown rate counts as the highest known one: gateways learn rates from traffic, so a promising link is tried,
/// and trees are planned again once its rate is known. `None`: a round trip is unknown.
fn instance(links: &LinkTable, sites: &[SiteId], bytes: u64) -> Option<Instance> {
    let count = sites.len();
    let figures = |from: usize, to: usize| links.get(sites[from], sites[to]);
    let pairs =
        || (0..count).flat_map(move |from| (0..count).map(move |to| (from, to))).filter(|(from, to)| from != to);
    // If a pair is known in one direction only, the other direction is taken to be the same.
    let rate = |from: usize, to: usize| figures(from, to).rate.or(figures(to, from).rate).filter(|rate| *rate > 0.0);
    let trip = |from: usize, to: usize| figures(from, to).round_trip.or(figures(to, from).round_trip);
    if pairs().any(|(from, to)| trip(from, to).is_none()) {
        return None;
    }
    let highest = pairs().filter_map(|(from, to)| rate(from, to)).fold(0.0, f64::max);
    let assumed = if highest > 0.0 { highest } else { UNKNOWN };
    let cell = |from: usize, to: usize, value: Option<f64>| if from == to { 0.0 } else { value.unwrap_or(0.0) };
    let latency = Matrix::from_fn(count, |from, to| cell(from, to, trip(from, to)).max(0.0) / 2.0);
    let bandwidth = Matrix::from_fn(count, |from, to| cell(from, to, rate(from, to).or(Some(assumed))));
    let uplink = (0..count).map(|site| bandwidth.row(site).iter().sum()).collect();
    let downlink = (0..count).map(|site| (0..count).map(|other| bandwidth.row(other)[site]).sum()).collect();
    Instance::new(NetworkLinks { latency, bandwidth, uplink, downlink }, 0, bytes.max(1), packet(bytes)).ok()
}

/// The best trees in which the root has one child. `None`: no such tree has a positive rate.
fn once_out_of_root(instance: &Instance) -> Option<Vec<(plan::Tree, f64)>> {
    let mut trees = plan::shallow_trees(instance);
    let effort = Effort { rounds: 500, gap: 0.005 };
    // With an uplink of just the best rate, a tree in which the root has two children would halve the rate.
    let most = plan::pack(instance, Ports::Many, effort).rate;
    let mut links = instance.links().clone();
    links.uplink[instance.root()] = most;
    let narrow = Instance::new(links, instance.root(), instance.message_bytes(), instance.packet_bytes()).ok()?;
    trees.extend(plan::pack(&narrow, Ports::Many, effort).trees.into_iter().map(|(tree, _)| tree));
    trees.retain(|tree| tree.children()[instance.root()].len() == 1);
    let mut packed = plan::pack_of(instance, Ports::Many, &trees, effort).trees;
    packed.sort_by(|a, b| b.1.total_cmp(&a.1));
    packed.truncate(MOST_TREES);
    (!packed.is_empty()).then_some(packed)
}

/// Converts a schedule to trees of sites with their weights.
fn named(schedule: &Schedule, sites: &[SiteId]) -> Vec<ShareTree> {
    let named = |(tree, weight): &(plan::Tree, f64)| {
        let edges = tree.order().iter().filter_map(|node| Some((sites[tree.parent(*node)?], sites[*node])));
        ShareTree { edges: edges.collect(), weight: *weight }
    };
    schedule.trees.iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use types::links::LinkFigures;

    use super::*;

    const ALL: [SiteId; 4] = [SiteId(0), SiteId(1), SiteId(2), SiteId(3)];

    /// Links with 20 ms between all sites. Rates in Mbit/s, the same both ways, of pairs 01, 02, 03, 12, 13, 23.
    fn table(rates: [f64; 6]) -> LinkTable {
        let mut table = LinkTable::unknown(4);
        let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        for ((a, b), rate) in pairs.into_iter().zip(rates) {
            let figures = LinkFigures { round_trip: Some(0.02), rate: Some(rate * 1e6 / 8.0) };
            table.set(SiteId(a), SiteId(b), figures);
            table.set(SiteId(b), SiteId(a), figures);
        }
        table.numbered(1)
    }

    /// Average number of times that each byte leaves the root's site.
    fn copies(trees: &[ShareTree], root: SiteId) -> f64 {
        let all: f64 = trees.iter().map(|tree| tree.weight).sum();
        let out = |tree: &ShareTree| tree.edges.iter().filter(|(from, _)| *from == root).count() as f64;
        trees.iter().map(|tree| tree.weight / all * out(tree)).sum()
    }

    #[test]
    fn every_tree_reaches_every_site_parent_before_child() {
        let links = table([40.0, 200.0, 80.0, 120.0, 40.0, 200.0]);
        for (root, bytes) in ALL.into_iter().flat_map(|root| [(root, 1 << 16), (root, 1 << 24)]) {
            let others: Vec<SiteId> = ALL.into_iter().filter(|site| *site != root).collect();
            for tree in Planned::new(Some(&links), root, &others, bytes, None).trees {
                let mut reached = vec![root];
                for (from, to) in tree.edges {
                    assert!(reached.contains(&from) && !reached.contains(&to));
                    reached.push(to);
                }
                assert_eq!(reached.len(), 4);
            }
        }
    }

    #[test]
    fn a_long_message_leaves_its_site_once_and_a_short_one_takes_no_detour() {
        let links = table([100.0; 6]);
        let trees = |bytes| Planned::new(Some(&links), ALL[0], &ALL[1..], bytes, None).trees;
        assert!(copies(&trees(16 << 20), ALL[0]) < 1.01);
        assert_eq!(copies(&trees(1 << 12), ALL[0]), 3.0);
    }

    #[test]
    fn a_slow_link_is_gone_around() {
        let links = table([100.0, 1.0, 1.0, 100.0, 100.0, 100.0]);
        let trees = Planned::new(Some(&links), ALL[0], &ALL[1..], 16 << 20, None).trees;
        let all: f64 = trees.iter().map(|tree| tree.weight).sum();
        let slow =
            trees.iter().filter(|tree| tree.edges.iter().any(|edge| [(0, 2), (0, 3)].contains(&(edge.0.0, edge.1.0))));
        assert!(slow.map(|tree| tree.weight).sum::<f64>() < 0.05 * all, "{trees:?}");
    }

    #[test]
    fn two_sites_and_those_of_unknown_distance_get_a_star() {
        let mut links = table([100.0; 6]);
        links.set(ALL[1], ALL[2], LinkFigures::default());
        assert_eq!(
            copies(&Planned::new(Some(&links), ALL[0], &ALL[1..], 1 << 24, None).trees, ALL[0]),
            1.0,
            "known the other way"
        );
        links.set(ALL[2], ALL[1], LinkFigures::default());
        for links in [Some(&links), None] {
            assert_eq!(Planned::new(links, ALL[0], &ALL[1..], 1 << 24, None).trees, [star(&ALL)]);
        }
        assert_eq!(Planned::new(Some(&table([100.0; 6])), ALL[2], &ALL[..1], 1 << 24, None).trees.len(), 1);
    }

    #[test]
    fn trees_are_planned_again_for_other_lengths_and_once_links_have_changed() {
        let links = table([100.0; 6]);
        let mut planned = Planned::new(Some(&links), ALL[0], &ALL[1..], 1 << 20, None);
        assert!(planned.serves(Some(&links), 1 << 20) && !planned.serves(Some(&links), 1 << 24));
        let changed = links.numbered(2);
        planned.again = Instant::now() + Duration::from_secs(60);
        assert!(planned.serves(Some(&changed), 1 << 20), "not yet");
        planned.again = Instant::now();
        assert!(!planned.serves(Some(&changed), 1 << 20));
    }

    #[test]
    fn an_algorithm_that_is_named_builds_the_only_tree() {
        let links = table([100.0; 6]);
        let trees = Planned::new(Some(&links), ALL[0], &ALL[1..], 16 << 20, Some(Algorithm::Flat)).trees;
        assert_eq!((trees.len(), copies(&trees, ALL[0])), (1, 3.0));
    }

    #[test]
    fn links_of_unknown_rate_are_tried() {
        let mut links = table([10.0, 20.0, 10.0, 10.0, 10.0, 10.0]);
        for (from, to) in [(1, 3), (3, 1)] {
            links.set(SiteId(from), SiteId(to), LinkFigures { round_trip: Some(0.02), rate: None });
        }
        let trees = Planned::new(Some(&links), ALL[0], &ALL[1..], 16 << 20, None).trees;
        let tries =
            |tree: &ShareTree| tree.edges.iter().any(|(from, to)| from.0.min(to.0) == 1 && from.0.max(to.0) == 3);
        assert!(trees.iter().any(tries), "{trees:?}");
    }
}
