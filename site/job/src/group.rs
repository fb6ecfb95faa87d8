//! The group of ranks that take part in a fence.

use serde::{Deserialize, Serialize};
use types::{Identity, NodeId, Roster, SiteId, Slot};

/// A set of ranks in canonical form, so that equal sets compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group(Vec<(u32, u32)>);

impl Group {
    /// Every rank of a job of this size.
    pub fn all(size: u32) -> Group {
        Group::of(0..size)
    }

    /// These ranks, given in any order.
    pub fn of(ranks: impl IntoIterator<Item = u32>) -> Group {
        let mut ranks: Vec<u32> = ranks.into_iter().collect();
        ranks.sort_unstable();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for rank in ranks {
            match runs.last_mut() {
                Some((_, last)) if rank <= last.saturating_add(1) => *last = rank,
                _ => runs.push((rank, rank)),
            }
        }
        Group(runs)
    }

    /// True if a job of this size can have this group. A group from another process may be malformed.
    pub fn is_valid(&self, size: u32) -> bool {
        let ordered = self.0.windows(2).all(|pair| pair[0].1 < pair[1].0);
        ordered && !self.0.is_empty() && self.0.iter().all(|(first, last)| first <= last && *last < size)
    }

    /// True if the group has any of the `count` ranks from `first` on.
    fn meets(&self, first: u32, count: u32) -> bool {
        let end = first.saturating_add(count);
        self.0.iter().any(|(low, high)| *low < end && first <= *high)
    }

    /// The agents of a site whose nodes have ranks of the group.
    pub fn agents(&self, roster: &Roster, site: SiteId) -> Vec<Identity> {
        let nodes = roster.nodes().filter(|(at, _, first, node)| *at == site && self.meets(first.0, node.ranks));
        nodes.filter_map(|(site, node, _, _)| Some(Identity { site, slot: Slot::agent(node)? })).collect()
    }

    /// The sites that have ranks of the group.
    pub fn sites(&self, roster: &Roster) -> Vec<SiteId> {
        let mut sites: Vec<SiteId> = Vec::new();
        for (site, _, first, node) in roster.nodes() {
            if self.meets(first.0, node.ranks) && sites.last() != Some(&site) {
                sites.push(site);
            }
        }
        sites
    }
}

/// The agent of a site's first node, which gathers the site's fences.
pub fn first_agent(site: SiteId) -> Identity {
    Identity { site, slot: Slot::agent(NodeId(0)).unwrap_or(Slot::GATEWAY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster() -> Roster {
        "a:n1*2,n2*2;b:n1*1,n2*3".parse().unwrap()
    }

    #[test]
    fn equal_sets_are_equal() {
        assert_eq!(Group::of([3, 1, 2, 2, 0]), Group::all(4));
        assert_eq!(Group::of([5, 0, 1]), Group(vec![(0, 1), (5, 5)]));
        assert_ne!(Group::of([0, 2]), Group::of([0, 1, 2]));
    }

    #[test]
    fn nonsense_is_not_valid() {
        assert!(Group::all(8).is_valid(8) && Group::of([7]).is_valid(8));
        for nonsense in [vec![], vec![(0, 8)], vec![(3, 2)], vec![(0, 3), (3, 4)], vec![(4, 5), (0, 1)]] {
            assert!(!Group(nonsense.clone()).is_valid(8), "{nonsense:?}");
        }
    }

    #[test]
    fn a_group_knows_its_nodes_and_sites() {
        let agent = |site, node| Identity { site: SiteId(site), slot: Slot::agent(NodeId(node)).unwrap() };
        let group = Group::of([1, 2, 5]);
        assert_eq!(group.agents(&roster(), SiteId(0)), [agent(0, 0), agent(0, 1)]);
        assert_eq!(group.agents(&roster(), SiteId(1)), [agent(1, 1)]);
        assert_eq!(group.sites(&roster()), [SiteId(0), SiteId(1)]);
        assert_eq!(Group::of([4]).sites(&roster()), [SiteId(1)]);
        assert_eq!(Group::of([4]).agents(&roster(), SiteId(1)), [first_agent(SiteId(1))]);
    }
}
