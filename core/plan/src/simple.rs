//! Trees that need no search over edges: by rank, by node cost, by the widest next link.

use crate::instance::Instance;
use crate::matrix::Matrix;
use crate::tree::Tree;

/// The root sends to all others, ascending. MagPIe's layer between sites (Kielmann and others, PPoPP 1999). O(N).
pub(crate) fn flat(instance: &Instance) -> Tree {
    let mut tree = Tree::begin(instance.nodes(), instance.root());
    for node in instance.receivers() {
        tree.attach(node, instance.root());
    }
    tree
}

/// MPICH's binomial tree: relative rank r = (node − root) mod N receives from r without its lowest bit, the largest bit
/// first. Attached round by round, senders ascending. O(N).
pub(crate) fn binomial(instance: &Instance) -> Tree {
    let (nodes, root) = (instance.nodes(), instance.root());
    let mut tree = Tree::begin(nodes, root);
    let mut bit = nodes.next_power_of_two() / 2;
    while bit > 0 {
        for sender in (0..nodes - bit).step_by(2 * bit) {
            tree.attach((sender + bit + root) % nodes, (sender + root) % nodes);
        }
        bit /= 2;
    }
    tree
}

/// A node's cost: the mean of C over its links to all others (Banikazemi's cost of a sender).
fn node_costs(costs: &Matrix) -> Vec<f64> {
    let others = (costs.size() - 1) as f64;
    (0..costs.size()).map(|node| costs.row(node).iter().sum::<f64>() / others).collect()
}

/// Speed-partitioned ordered chain: Banikazemi, Moorthy and Panda, ICPP 1998, reconstructed. Nodes no slower than the
/// mean of all node costs form the fast part, the others the slow one, each ascending; over the chain root, fast, slow
/// grows a binomial tree whose first 2^k nodes send to the next 2^k in round k. O(N²) for the node costs.
///
/// The paper's text and both its worked examples leave the threshold open; the median of all nodes would fit them too.
pub(crate) fn spoc(instance: &Instance) -> Tree {
    let node_costs = node_costs(&instance.costs());
    let mean = node_costs.iter().sum::<f64>() / instance.nodes() as f64;
    let (fast, slow): (Vec<_>, Vec<_>) = instance.receivers().partition(|&node| node_costs[node] <= mean);
    let chain: Vec<usize> = [instance.root()].into_iter().chain(fast).chain(slow).collect();
    let mut tree = Tree::begin(instance.nodes(), instance.root());
    for place in 1..chain.len() {
        let round = 1 << place.ilog2();
        tree.attach(chain[place], chain[place - round]);
    }
    tree
}

/// Fastest node first: Banikazemi, Moorthy and Panda, ICPP 1998. The receiver is the waiting node of the least cost T
/// (ties: smallest id), its sender the informed node i of the least R_i + T_i (ties: smallest id); both are then ready
/// at that time. O(N²).
pub(crate) fn fastest_node_first(instance: &Instance) -> Tree {
    let node_costs = node_costs(&instance.costs());
    let mut receivers: Vec<usize> = instance.receivers().collect();
    receivers.sort_by(|&a, &b| node_costs[a].total_cmp(&node_costs[b]));
    let mut ready = vec![0.0; instance.nodes()];
    let mut informed = vec![instance.root()];
    let mut tree = Tree::begin(instance.nodes(), instance.root());
    for receiver in receivers {
        let done = |node: usize| ready[node] + node_costs[node];
        let mut sender = informed[0];
        for &node in &informed {
            if done(node) < done(sender) || (done(node) == done(sender) && node < sender) {
                sender = node;
            }
        }
        let at = done(sender);
        (ready[sender], ready[receiver]) = (at, at);
        tree.attach(receiver, sender);
        informed.push(receiver);
    }
    tree
}

/// A chain: each node sends to the waiting node to which it has the highest rate (ties: smallest id). O(N²).
pub(crate) fn widest_chain(instance: &Instance) -> Tree {
    let mut waiting: Vec<usize> = instance.receivers().collect();
    let mut tree = Tree::begin(instance.nodes(), instance.root());
    let mut last = instance.root();
    while !waiting.is_empty() {
        let mut widest = 0;
        for place in 1..waiting.len() {
            if instance.bandwidth(last, waiting[place]) > instance.bandwidth(last, waiting[widest]) {
                widest = place;
            }
        }
        let next = waiting.remove(widest);
        tree.attach(next, last);
        last = next;
    }
    tree
}
