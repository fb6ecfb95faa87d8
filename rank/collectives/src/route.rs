//! The tree for a message from one rank to all: each rank's parent and children.

use types::SiteId;

use crate::nodes::Nodes;
use crate::world::Location;

/// The ranks of a communicator, grouped by site. Sites are numbered in the order of their lowest ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommunicatorLayout {
    /// The site of each rank.
    pub sites: Vec<u16>,
    /// The ranks of each site, in rank order.
    pub members: Vec<Vec<u32>>,
    pub nodes: Nodes,
    /// The job's number for each site.
    pub names: Vec<SiteId>,
}

impl CommunicatorLayout {
    /// `locations` has an entry for each rank.
    pub(crate) fn new(locations: &[Location]) -> CommunicatorLayout {
        let (mut names, mut members): (Vec<SiteId>, Vec<Vec<u32>>) = (Vec::new(), Vec::new());
        let mut sites = Vec::with_capacity(locations.len());
        for (rank, location) in locations.iter().enumerate() {
            let at = names.iter().position(|other| *other == location.site).unwrap_or_else(|| {
                names.push(location.site);
                members.push(Vec::new());
                names.len() - 1
            });
            members[at].push(rank as u32);
            sites.push(at as u16);
        }
        let nodes: Vec<u32> = locations.iter().map(|location| location.node).collect();
        CommunicatorLayout { sites, nodes: Nodes::new(&members, &nodes), members, names }
    }

    /// Returns true if the order of sites, and of ranks inside each, is the order of ranks.
    pub(crate) fn is_ordered(&self) -> bool {
        self.sites.is_sorted()
    }
}

/// One rank's neighbours in a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Neighbours {
    /// The rank that it receives from; `None` where the message enters.
    pub parent: Option<u32>,
    /// The ranks that it sends to, the farthest first.
    pub children: Vec<u32>,
}

/// The ranks where a message of `root` leaves its site and enters the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crossing {
    /// The rank that sends it to other sites.
    pub exporter: u32,
    /// The first rank of each other site, which receives it from the exporter.
    pub entries: Vec<u32>,
}

impl Crossing {
    /// For a message in `chunks`. In a chain of nodes, the last node exports it: the other nodes' cards are busy.
    pub(crate) fn new(layout: &CommunicatorLayout, root: u32, chunks: usize) -> Crossing {
        let home = usize::from(layout.sites[root as usize]);
        let others = layout.members.iter().enumerate().filter(|(site, _)| *site != home);
        let entries = others.filter_map(|(_, members)| members.first().copied()).collect();
        let nodes = layout.nodes.beginning_with(home, root);
        let last = nodes.last().filter(|_| is_chain(nodes.len(), chunks)).and_then(|ranks| ranks.first());
        Crossing { exporter: last.copied().unwrap_or(root), entries }
    }

    /// The rank where a message of `root` enters a site.
    pub(crate) fn entry(&self, layout: &CommunicatorLayout, root: u32, site: u16) -> u32 {
        let is_there = |rank: &u32| layout.sites[*rank as usize] == site;
        self.entries.iter().copied().find(is_there).unwrap_or(root)
    }
}

/// Returns true if a message in `chunks` goes from node to node in a chain. In a chain each card sends the message
/// once, in a tree twice. A chain takes `chunks + nodes - 1` steps, a binary tree about `2 * chunks`.
fn is_chain(nodes: usize, chunks: usize) -> bool {
    chunks >= 2 * nodes
}

/// A rank's neighbours in its own site, where a message in `chunks` enters at `first`: a chain or a binary tree of
/// nodes, and a binary tree on each node.
pub(crate) fn inside(layout: &CommunicatorLayout, first: u32, rank: u32, chunks: usize) -> Neighbours {
    let nodes = layout.nodes.beginning_with(usize::from(layout.sites[rank as usize]), first);
    let own = nodes.iter().position(|ranks| ranks.contains(&rank)).unwrap_or(0);
    let ranks = &nodes[own];
    let (parent, children) = halves(ranks.len(), ranks.iter().position(|other| *other == rank).unwrap_or(0));
    let mut found = Neighbours { parent: parent.map(|at| ranks[at]), children: Vec::new() };
    if parent.is_none() {
        let (above, below) = match is_chain(nodes.len(), chunks) {
            true => (own.checked_sub(1), Vec::from_iter((own + 1 < nodes.len()).then_some(own + 1))),
            false => halves(nodes.len(), own),
        };
        found.parent = above.map(|node| nodes[node][0]);
        found.children.extend(below.into_iter().map(|node| nodes[node][0]));
    }
    found.children.extend(children.into_iter().map(|at| ranks[at]));
    found
}

/// Parent and children of position `at` in a tree over `0..count`: the first position of a range sends to the first of
/// each half of the rest.
fn halves(count: usize, at: usize) -> (Option<usize>, Vec<usize>) {
    let (mut range, mut parent) = (0..count, None);
    loop {
        let rest = range.start + 1..range.end;
        let middle = rest.start + rest.len().div_ceil(2);
        let halves = [rest.start..middle, middle..rest.end];
        if at == range.start || rest.is_empty() {
            let children = halves.into_iter().filter(|half| !half.is_empty()).map(|half| half.start);
            return (parent, children.collect());
        }
        parent = Some(range.start);
        let [left, right] = halves;
        range = if left.contains(&at) { left } else { right };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks at these sites, two on each node.
    fn layout(sites: &[u16]) -> CommunicatorLayout {
        let mut ranks: Vec<(u16, u32)> = Vec::new();
        for site in sites {
            ranks.push((*site, ranks.iter().filter(|(other, _)| other == site).count() as u32));
        }
        let locations: Vec<Location> =
            ranks.into_iter().map(|(site, at)| Location { site: SiteId(site), node: at / 2 }).collect();
        CommunicatorLayout::new(&locations)
    }

    #[test]
    fn the_order_of_sites_is_that_of_ranks_only_if_each_has_its_ranks_together() {
        for (sites, ordered) in [(vec![4, 4, 2, 2], true), (vec![0, 1, 0], false), (vec![1, 0, 0, 2], true)] {
            assert_eq!(layout(&sites).is_ordered(), ordered, "{sites:?}");
        }
    }

    #[test]
    fn a_message_enters_each_site_once_and_a_long_one_leaves_each_node_once() {
        for sites in [
            vec![0, 0, 0, 0, 0, 1, 1, 2],
            vec![7, 3, 7, 3, 9, 9, 7],
            vec![1, 0],
            (0..40).map(|rank| rank * rank % 5).collect(),
        ] {
            let layout = layout(&sites);
            for (root, chunks) in (0..sites.len() as u32).flat_map(|root| [(root, 2), (root, 32)]) {
                let crossing = Crossing::new(&layout, root, chunks);
                let Crossing { exporter, entries } = &crossing;
                assert_eq!(entries.len(), layout.members.len() - 1);
                assert_eq!(layout.sites[*exporter as usize], layout.sites[root as usize]);
                let place = |rank: u32| (layout.sites[rank as usize], layout.nodes.own(rank));
                let (mut received, mut left) = (vec![0; sites.len()], std::collections::HashMap::new());
                left.insert(place(*exporter), 1);
                entries.iter().for_each(|entry| received[*entry as usize] += 1);
                for rank in 0..sites.len() as u32 {
                    let site = layout.sites[rank as usize];
                    let first = crossing.entry(&layout, root, site);
                    let own = inside(&layout, first, rank, chunks);
                    assert_eq!(own.parent.is_none(), rank == first, "{sites:?} {root} {rank}");
                    for child in own.children {
                        received[child as usize] += 1;
                        assert_eq!(inside(&layout, first, child, chunks).parent, Some(rank));
                        assert_eq!(layout.sites[child as usize], site);
                        *left.entry(place(rank)).or_insert(0) += i32::from(place(child) != place(rank));
                    }
                }
                received[root as usize] += 1;
                assert!(received.iter().all(|times| *times == 1), "{sites:?} {root}: {received:?}");
                assert!(chunks < 32 || left.values().all(|times| *times <= 1), "{sites:?} {root}: {left:?}");
            }
        }
    }
}
