//! Trees that grow by one edge at a time: the best edge between a node that has the message and a waiting node.
//!
//! All of them choose the smallest value, then the smallest receiver, then the smallest sender.

use crate::instance::Instance;
use crate::matrix::Matrix;
use crate::tree::Tree;

/// The effect of an edge on the times at which its two ends can send next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Busy<'a> {
    /// Nothing: only the edge counts (Prim, FEF).
    Neither,
    /// The receiver can send after the edge, the sender at once (Dijkstra).
    Receiver,
    /// Both are busy for the cost of the edge (ECEF).
    Both,
    /// The receiver can send after the edge, the sender after this time.
    SenderFor(&'a Matrix),
    /// Only the sender's time grows, by the cost of the edge (Beaumont's weighted out-degree).
    Sender,
}

/// The look-ahead term added to an edge's value, for the edges its receiver can serve next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    Nothing,
    /// The cheapest of the receiver's edges to other waiting nodes.
    Least,
    /// The mean of the receiver's edges to other waiting nodes.
    Mean,
}

/// A growing tree: each step attaches the waiting j to the informed i with the least R_i + C_ij.
pub(crate) struct Greedy<'a> {
    costs: &'a Matrix,
    /// The time at which each node can send next.
    pub(crate) ready: Vec<f64>,
    pub(crate) tree: Tree,
    /// By waiting node: the least R_i + C_ij over informed i, and that i.
    best: Vec<(f64, usize)>,
}

impl<'a> Greedy<'a> {
    pub(crate) fn new(costs: &'a Matrix, root: usize) -> Greedy<'a> {
        let nodes = costs.size();
        let tree = Tree::begin(nodes, root);
        Greedy {
            costs,
            ready: vec![0.0; nodes],
            tree,
            best: costs.row(root).iter().map(|&cost| (cost, root)).collect(),
        }
    }

    /// Attaches all of `waiting`, which is ascending. Usually O(N²): only receivers whose best sender became busy scan
    /// all senders again. O(N³) with look-ahead.
    pub(crate) fn attach_all(&mut self, mut waiting: Vec<usize>, busy: Busy, ahead: Ahead) {
        while !waiting.is_empty() {
            let mut chosen = (f64::INFINITY, 0);
            for (place, &receiver) in waiting.iter().enumerate() {
                let mut value = self.best[receiver].0;
                if ahead != Ahead::Nothing {
                    let added = self.ahead(receiver, &waiting, ahead);
                    // Rounding may make the sums of two senders equal although their values without the look-ahead
                    // differ.
                    self.best[receiver] = self.best_sender(receiver, added);
                    value = self.best[receiver].0;
                }
                if value < chosen.0 || place == 0 {
                    chosen = (value, place);
                }
            }
            let receiver = waiting.remove(chosen.1);
            self.attach(receiver, self.best[receiver].1, busy);
            self.renew(receiver, &waiting);
        }
    }

    /// Adds the edge from `sender` and updates the times of its ends.
    fn attach(&mut self, receiver: usize, sender: usize, busy: Busy) {
        self.tree.attach(receiver, sender);
        let (start, cost) = (self.ready[sender], self.costs[(sender, receiver)]);
        match busy {
            Busy::Neither => {}
            Busy::Receiver => self.ready[receiver] = start + cost,
            Busy::Both => (self.ready[sender], self.ready[receiver]) = (start + cost, start + cost),
            Busy::SenderFor(time) => {
                (self.ready[sender], self.ready[receiver]) = (start + time[(sender, receiver)], start + cost);
            }
            Busy::Sender => self.ready[sender] = start + cost,
        }
    }

    /// Updates the best senders after `new` was attached.
    fn renew(&mut self, new: usize, waiting: &[usize]) {
        let sender = self.tree.parent(new);
        for &receiver in waiting {
            let (value, best) = self.best[receiver];
            if Some(best) == sender && value != self.value(best, receiver) {
                self.best[receiver] = self.best_sender(receiver, 0.0);
            } else {
                let value_of_new = self.value(new, receiver);
                if value_of_new < value || (value_of_new == value && new < best) {
                    self.best[receiver] = (value_of_new, new);
                }
            }
        }
    }

    /// The least R_i + C_ij + `added` over informed i, and that i.
    fn best_sender(&self, receiver: usize, added: f64) -> (f64, usize) {
        let mut best = (f64::INFINITY, usize::MAX);
        for &sender in self.tree.order() {
            let value = self.value(sender, receiver) + added;
            if value < best.0 || (value == best.0 && sender < best.1) {
                best = (value, sender);
            }
        }
        best
    }

    fn value(&self, sender: usize, receiver: usize) -> f64 {
        self.ready[sender] + self.costs[(sender, receiver)]
    }

    fn ahead(&self, receiver: usize, waiting: &[usize], ahead: Ahead) -> f64 {
        if ahead == Ahead::Nothing || waiting.len() < 2 {
            return 0.0;
        }
        let row = self.costs.row(receiver);
        let others = waiting.iter().filter(|&&other| other != receiver).map(|&other| row[other]);
        match ahead {
            Ahead::Nothing => 0.0,
            Ahead::Least => others.fold(f64::INFINITY, f64::min),
            Ahead::Mean => others.sum::<f64>() / (waiting.len() - 1) as f64,
        }
    }
}

/// The tree over all nodes.
fn grown(costs: &Matrix, instance: &Instance, busy: Busy, ahead: Ahead) -> Tree {
    let mut greedy = Greedy::new(costs, instance.root());
    greedy.attach_all(instance.receivers().collect(), busy, ahead);
    greedy.tree
}

/// Fastest edge first: the least C_ij. Bhat, Raghavendra and Prasanna, ICDCS 1999; Prim's algorithm over directed
/// edges. O(N²).
pub(crate) fn fastest_edge_first(instance: &Instance, costs: &Matrix) -> Tree {
    grown(costs, instance, Busy::Neither, Ahead::Nothing)
}

/// Earliest completing edge first: the least R_i + C_ij, both ends busy for C_ij; with look-ahead, plus the cost of the
/// receiver's next edge. Bhat, Raghavendra and Prasanna, ICDCS 1999. See [`Greedy::attach_all`] for its order.
pub(crate) fn earliest_completing_edge_first(instance: &Instance, costs: &Matrix, ahead: Ahead) -> Tree {
    grown(costs, instance, Busy::Both, ahead)
}

/// Earliest completing edge first with overlapping latency: the sender is busy for m/B only. Bhat's rule with LogGP's
/// gap. Overheads are ignored, as in [`Instance::costs`].
pub(crate) fn earliest_completing_edge_with_gap(instance: &Instance) -> Tree {
    let message = instance.message_bytes() as f64;
    let gap = Matrix::from_fn(instance.nodes(), |i, j| if i == j { 0.0 } else { message / instance.bandwidth(i, j) });
    grown(&instance.costs(), instance, Busy::SenderFor(&gap), Ahead::Nothing)
}

/// Dijkstra's shortest paths, nodes attached in order of distance. O(N²).
pub(crate) fn shortest_paths(instance: &Instance) -> Tree {
    grown(&instance.costs(), instance, Busy::Receiver, Ahead::Nothing)
}

/// Growing a minimum weighted out-degree tree: picks the edge that leaves its sender's sum of m/B least. Beaumont,
/// Marchal and Robert, "Broadcast trees for heterogeneous platforms", IPDPS 2005, algorithm 3. Usually O(N²).
pub(crate) fn minimum_out_degree(instance: &Instance) -> Tree {
    let message = instance.message_bytes() as f64;
    let times = Matrix::from_fn(instance.nodes(), |i, j| if i == j { 0.0 } else { message / instance.bandwidth(i, j) });
    grown(&times, instance, Busy::Sender, Ahead::Nothing)
}

/// The second tree of TTCC: Cha and others, 2003, reconstructed. TTCC broadcasts over two trees, and each node takes
/// the copy that arrives first. Both are ECEF trees, the second without the directed edges of the first. If no other
/// edge is left, an edge of the first is reused (N = 2, for example). Usually O(N²).
pub(crate) fn second_disjoint_tree(instance: &Instance) -> Tree {
    let mut costs = instance.costs();
    let first = earliest_completing_edge_first(instance, &costs, Ahead::Nothing);
    // Exceeds the time of any schedule without these edges, and grows with the edge costs.
    let penalty = 1e9 * (0..costs.size()).map(|i| costs.row(i).iter().sum::<f64>()).sum::<f64>();
    for edge in first.edges() {
        costs[edge] += penalty;
    }
    earliest_completing_edge_first(instance, &costs, Ahead::Nothing)
}

/// Hierarchical latency-optimal tree: Park and others, ICCS 2003, reconstructed. Builds the FEF tree on latency and
/// visits its nodes in order of attachment: node j keeps its parent if the path through it is shorter than the root's
/// own latency to j, and otherwise becomes a child of the root. O(N²).
pub(crate) fn latency_optimal(instance: &Instance) -> Tree {
    let latency = &instance.links().latency;
    let root = instance.root();
    let fastest = fastest_edge_first(instance, latency);
    let mut path = vec![0.0; instance.nodes()];
    let mut tree = Tree::begin(instance.nodes(), root);
    for (parent, child) in fastest.edges() {
        let through_parent = path[parent] + latency[(parent, child)];
        let direct = latency[(root, child)];
        let (length, parent) = if through_parent < direct { (through_parent, parent) } else { (direct, root) };
        path[child] = length;
        tree.attach(child, parent);
    }
    tree
}
