//! Trees by pruning the complete platform: Beaumont, Marchal and Robert, "Broadcast trees for heterogeneous platforms",
//! IPDPS 2005, algorithms 1 and 2. Times of edges are m/B.
//!
//! An edge that the root needs to reach a node stays needed when others go, so each edge is tried once.

use crate::instance::Instance;
use crate::matrix::Matrix;
use crate::tree::Tree;

/// Simple pruning: the slowest edge whose loss leaves all nodes reachable goes first (ties: smallest receiver, then
/// sender). N² trials, most of them O(1), O(N²) where a spanning tree must be found again.
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

/// Refined pruning: of the node whose edges' times add up to most (ties: smallest id), the slowest edge whose loss
/// leaves all nodes reachable (ties: smallest receiver) goes; if none can go, the next node's. Edges into the root
/// count. N² trials as above, and O(N) to find each node.
pub(crate) fn refined(instance: &Instance) -> Tree {
    let mut platform = Platform::new(instance);
    let nodes = instance.nodes();
    // By node: its receivers not yet tried, the next one last.
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

/// The edges that are left, and a spanning tree of them.
struct Platform {
    root: usize,
    times: Matrix,
    /// By sender, then receiver.
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

    /// Removes the edge unless the root needs it to reach some node.
    fn remove(&mut self, (sender, receiver): (usize, usize)) -> bool {
        self.present[sender][receiver] = false;
        if self.parent[receiver] == Some(sender) && !self.span() {
            self.present[sender][receiver] = true;
            return false;
        }
        true
    }

    /// Finds a spanning tree; without one, the old one stays.
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
