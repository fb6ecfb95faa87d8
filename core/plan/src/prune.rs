//! Trees by pruning the complete platform: Beaumont, Marchal and Robert, "Broadcast trees for heterogeneous platforms",
//! IPDPS 2005, algorithms 1 and 2. The time of an edge is m/B.
//!
//! An edge that the root needs to reach some node stays needed when other edges are removed, so each edge is tried
//! once.

use crate::instance::Instance;
use crate::matrix::Matrix;
use crate::tree::Tree;

/// Simple pruning: removes the slowest edge whose loss leaves all nodes reachable, and repeats (ties: smallest
/// receiver, then sender). N² trials: most cost O(1), and O(N²) if a spanning tree must be found again.
pub(crate) fn simple(instance: &Instance) -> Tree {
    let mut platform = Platform::new(instance);
    let nodes = instance.nodes();
    let mut edges: Vec<(usize, usize)> = (0..nodes).flat_map(|j| (0..nodes).map(move |i| (i, j))).collect();
    edges.retain(|(i, j)| i != j);
    edges.sort_by(|&a, &b| platform.times[b].total_cmp(&platform.times[a]));
    for edge in edges {
        platform.remove(edge);
    }
    platform.tree()
}

/// Refined pruning: takes the node whose edges' times have the largest sum (ties: smallest id) and removes its slowest
/// edge whose loss leaves all nodes reachable (ties: smallest receiver); if the node has no such edge, takes the next
/// node. Edges into the root count. N² trials as above, and O(N) to find each node.
pub(crate) fn refined(instance: &Instance) -> Tree {
    let mut platform = Platform::new(instance);
    let nodes = instance.nodes();
    // By node: its receivers not yet tried; the next one to try is last.
    let mut untried: Vec<Vec<usize>> = (0..nodes)
        .map(|i| {
            let mut receivers: Vec<usize> = (0..nodes).rev().filter(|&j| j != i).collect();
            receivers.sort_by(|&a, &b| platform.times[(i, a)].total_cmp(&platform.times[(i, b)]));
            receivers
        })
        .collect();
    let mut weight: Vec<f64> = (0..nodes).map(|i| platform.out_weight(i)).collect();
    loop {
        let mut heaviest: Option<usize> = None;
        for node in (0..nodes).filter(|&node| !untried[node].is_empty()) {
            if heaviest.is_none_or(|most| weight[node] > weight[most]) {
                heaviest = Some(node);
            }
        }
        let Some(node) = heaviest else { break };
        while let Some(receiver) = untried[node].pop() {
            if platform.remove((node, receiver)) {
                weight[node] = platform.out_weight(node);
                break;
            }
        }
    }
    platform.tree()
}

/// The remaining edges, and a spanning tree of them.
struct Platform {
    root: usize,
    times: Matrix,
    /// By sender, then receiver: true if the edge is left.
    present: Vec<Vec<bool>>,
    parent: Vec<Option<usize>>,
}

impl Platform {
    fn new(instance: &Instance) -> Platform {
        let (nodes, root) = (instance.nodes(), instance.root());
        let message = instance.message_bytes() as f64;
        Platform {
            root,
            times: Matrix::from_fn(nodes, |i, j| if i == j { 0.0 } else { message / instance.bandwidth(i, j) }),
            present: (0..nodes).map(|i| (0..nodes).map(|j| i != j).collect()).collect(),
            parent: (0..nodes).map(|node| (node != root).then_some(root)).collect(),
        }
    }

    /// The sum of the times of a node's edges.
    fn out_weight(&self, node: usize) -> f64 {
        (0..self.present.len()).filter(|&j| self.present[node][j]).map(|j| self.times[(node, j)]).sum()
    }

    /// Removes the edge unless the root needs it to reach some node. Returns true if it is removed.
    fn remove(&mut self, (sender, receiver): (usize, usize)) -> bool {
        self.present[sender][receiver] = false;
        if self.parent[receiver] == Some(sender) && !self.span() {
            self.present[sender][receiver] = true;
            return false;
        }
        true
    }

    /// Finds a spanning tree of the remaining edges. Returns false and keeps the old one if there is none.
    fn span(&mut self) -> bool {
        let nodes = self.present.len();
        let mut parent = vec![None; nodes];
        let mut left: Vec<usize> = (0..nodes).filter(|&node| node != self.root).collect();
        let mut waiting = vec![self.root];
        while let Some(node) = waiting.pop() {
            left.retain(|&other| {
                if self.present[node][other] {
                    parent[other] = Some(node);
                    waiting.push(other);
                }
                !self.present[node][other]
            });
        }
        if left.is_empty() {
            self.parent = parent;
        }
        left.is_empty()
    }

    fn tree(&self) -> Tree {
        Tree::breadth_first(self.root, &self.parent)
    }
}
