//! The ranks of a communicator, grouped by node. Ranks of one node share its memory, and its network card.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// The ranks of each node of each site. Nodes are in the order of their lowest ranks; ranks of a node are in rank
    /// order.
    pub members: Vec<Vec<Vec<u32>>>,
    /// For each rank, the number of its node within `members`.
    places: Vec<u32>,
}

impl Nodes {
    /// `sites`: the ranks of each site. `nodes`: for each rank, any number that identifies its node within its site.
    pub(crate) fn new(sites: &[Vec<u32>], nodes: &[u32]) -> Nodes {
        let mut places = vec![0; nodes.len()];
        let of_site = |ranks: &Vec<u32>| {
            let (mut found, mut members): (Vec<u32>, Vec<Vec<u32>>) = (Vec::new(), Vec::new());
            for rank in ranks {
                let node = nodes[*rank as usize];
                let at = found.iter().position(|other| *other == node).unwrap_or_else(|| {
                    found.push(node);
                    members.push(Vec::new());
                    found.len() - 1
                });
                members[at].push(*rank);
                places[*rank as usize] = at as u32;
            }
            members
        };
        let members = sites.iter().map(of_site).collect();
        Nodes { members, places }
    }

    /// The number of a rank's node within its site.
    pub(crate) fn own(&self, rank: u32) -> usize {
        self.places[rank as usize] as usize
    }

    /// The ranks of a site by nodes, beginning with the node of `first`. Each node's list begins with the rank that
    /// gets the node's messages: `first` on its own node, elsewhere the lowest rank.
    pub(crate) fn beginning_with(&self, site: usize, first: u32) -> Vec<Vec<u32>> {
        let mut nodes = self.members[site].clone();
        nodes[..=self.own(first)].rotate_right(1);
        if let Some(at) = nodes[0].iter().position(|rank| *rank == first) {
            nodes[0][..=at].rotate_right(1);
        }
        nodes
    }

    /// Maximum number of nodes at one site.
    pub(crate) fn most(&self) -> usize {
        self.members.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns true if the order of sites, of nodes inside each site, and of ranks inside each node, is the order of
    /// ranks.
    pub(crate) fn is_ordered(&self) -> bool {
        self.members.iter().flatten().flatten().is_sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_grouped_by_site_and_node() {
        // The same number at two sites is two nodes.
        let nodes = Nodes::new(&[vec![0, 1, 4], vec![2, 3]], &[1, 0, 1, 1, 1]);
        assert_eq!(nodes.members, [vec![vec![0, 4], vec![1]], vec![vec![2, 3]]]);
        assert_eq!((nodes.own(4), nodes.own(1), nodes.own(3), nodes.most()), (0, 1, 0, 2));
        assert!(!nodes.is_ordered());
        assert!(Nodes::new(&[vec![0, 1, 2], vec![3]], &[3, 3, 5, 0]).is_ordered());
    }

    #[test]
    fn a_list_begins_where_a_message_enters() {
        let nodes = Nodes::new(&[vec![0, 1, 2, 3, 4, 5]], &[0, 0, 1, 1, 1, 2]);
        assert_eq!(nodes.beginning_with(0, 3), [vec![3, 2, 4], vec![0, 1], vec![5]]);
        assert_eq!(nodes.beginning_with(0, 0), [vec![0, 1], vec![2, 3, 4], vec![5]]);
    }
}
