//! TPS, the two-phase scheduling of Lee and Han, "A Two-Phase Scheduling Algorithm for Efficient Collective
//! Communications of MPICH-G2".
//!
//! B is the set of bottlenecks: nodes other than the root whose cheapest edge into them costs more than the mean of
//! these minima. Phase 1 builds a tree over the other nodes V − B; phase 2 attaches each node of B, ascending, to the j
//! in V − B of the least dist(j) + C_ji (ties: smallest j), where dist is the sum of costs from the root. The paper's
//! text leaves phase 1 open, so each reading is a separate algorithm.

use crate::greedy::{Ahead, Busy, Greedy};
use crate::instance::Instance;
use crate::matrix::Matrix;
use crate::tree::Tree;

/// The algorithm that builds the tree of phase 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Earliest completing edge first: the paper's text.
    Ecef,
    /// Fastest edge first: the paper's figure 4.
    Fef,
    /// Earliest arrival: Dijkstra.
    ShortestPaths,
    /// The pseudo-code's `x := j` taken literally: each attached node sends to its nearest waiting node.
    Walk,
}

/// TPS' bottleneck set B, ascending: nodes other than the root whose cheapest edge into them costs more than the mean
/// of these minima. O(N²).
#[must_use]
pub fn bottlenecks(instance: &Instance) -> Vec<usize> {
    let nearest = cheapest_in(&instance.costs(), instance);
    let mean = nearest.iter().map(|&(_, cost)| cost).sum::<f64>() / nearest.len() as f64;
    nearest.iter().filter(|&&(_, cost)| cost > mean).map(|&(node, _)| node).collect()
}

/// Each node except the root, with the cost of the cheapest edge into it.
fn cheapest_in(costs: &Matrix, instance: &Instance) -> Vec<(usize, f64)> {
    let cheapest =
        |node: usize| (0..costs.size()).filter(|&j| j != node).map(|j| costs[(j, node)]).fold(f64::INFINITY, f64::min);
    instance.receivers().map(|node| (node, cheapest(node))).collect()
}

/// TPS with this first phase. Usually O(N²).
pub(crate) fn two_phases(instance: &Instance, first: First) -> Tree {
    by_distance(instance, first, &bottlenecks(instance))
}

/// TPS with ECEF as its first phase and a single bottleneck: the node whose cheapest edge costs most (ties: smallest
/// id).
pub(crate) fn one_bottleneck(instance: &Instance) -> Tree {
    let nearest = cheapest_in(&instance.costs(), instance);
    let farthest = nearest.iter().fold(nearest[0], |most, &each| if each.1 > most.1 { each } else { most });
    by_distance(instance, First::Ecef, &[farthest.0])
}

/// TPS with ECEF as its first phase. The second phase accounts for a parent that serves its children one after the
/// other: it takes the least R_j + C_ji over all waiting i and all j in V − B, and makes j ready at that time.
pub(crate) fn with_ready_times(instance: &Instance) -> Tree {
    let costs = instance.costs();
    let last = bottlenecks(instance);
    let Greedy { mut ready, mut tree, .. } = phase_one(instance, &costs, First::Ecef, &last);
    let senders = ascending(&tree);
    let mut waiting = last;
    while !waiting.is_empty() {
        let mut best = (f64::INFINITY, 0, 0);
        for (place, &receiver) in waiting.iter().enumerate() {
            for &sender in &senders {
                let value = ready[sender] + costs[(sender, receiver)];
                if value < best.0 {
                    best = (value, place, sender);
                }
            }
        }
        let (value, place, sender) = best;
        ready[sender] = value;
        tree.attach(waiting.remove(place), sender);
    }
    tree
}

fn by_distance(instance: &Instance, first: First, last: &[usize]) -> Tree {
    let costs = instance.costs();
    let mut tree = phase_one(instance, &costs, first, last).tree;
    let mut distance = vec![0.0; instance.nodes()];
    for (parent, child) in tree.edges() {
        distance[child] = distance[parent] + costs[(parent, child)];
    }
    let senders = ascending(&tree);
    for &receiver in last {
        let mut best = (f64::INFINITY, instance.root());
        for &sender in &senders {
            let value = costs[(sender, receiver)] + distance[sender];
            if value < best.0 {
                best = (value, sender);
            }
        }
        tree.attach(receiver, best.1);
    }
    tree
}

/// Builds the tree over all nodes except `last`.
fn phase_one<'a>(instance: &Instance, costs: &'a Matrix, first: First, last: &[usize]) -> Greedy<'a> {
    let waiting: Vec<usize> = instance.receivers().filter(|node| last.binary_search(node).is_err()).collect();
    let mut greedy = Greedy::new(costs, instance.root());
    match first {
        First::Ecef => greedy.attach_all(waiting, Busy::Both, Ahead::Nothing),
        First::Fef => greedy.attach_all(waiting, Busy::Neither, Ahead::Nothing),
        First::ShortestPaths => greedy.attach_all(waiting, Busy::Receiver, Ahead::Nothing),
        First::Walk => walk(&mut greedy, waiting, costs),
    }
    greedy
}

fn walk(greedy: &mut Greedy, mut waiting: Vec<usize>, costs: &Matrix) {
    let mut last = greedy.tree.root();
    while !waiting.is_empty() {
        let mut nearest = 0;
        for place in 1..waiting.len() {
            if costs[(last, waiting[place])] < costs[(last, waiting[nearest])] {
                nearest = place;
            }
        }
        let next = waiting.remove(nearest);
        greedy.tree.attach(next, last);
        last = next;
    }
}

fn ascending(tree: &Tree) -> Vec<usize> {
    let mut nodes = tree.order().to_vec();
    nodes.sort_unstable();
    nodes
}
