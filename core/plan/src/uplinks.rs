//! Broadcast where only the nodes limit the rate, not the connections: Li, Chou and Zhang, "Mutualcast: an efficient
//! mechanism for content distribution in a peer-to-peer network", 2005.

use crate::instance::Instance;
use crate::packing::Packing;
use crate::tree::Tree;

/// min(U_root, min D_v, ΣU / (N−1)) in bytes/s: no broadcast is faster, and where connections have no limits of their
/// own, [`shallow_packing`] reaches it. O(N).
#[must_use]
pub fn uplink_bound(instance: &Instance) -> f64 {
    let sum: f64 = (0..instance.nodes()).map(|node| instance.uplink(node)).sum();
    let downlink = instance.receivers().map(|node| instance.downlink(node)).fold(f64::INFINITY, f64::min);
    instance.uplink(instance.root()).min(downlink).min(sum / (instance.nodes() - 1) as f64)
}

/// The N trees of depth 1 and 2: the root to all others; and for each other node, the root to it, and it to the rest.
#[must_use]
pub fn shallow_trees(instance: &Instance) -> Vec<Tree> {
    let (nodes, root) = (instance.nodes(), instance.root());
    (0..nodes)
        .filter(|&relay| nodes > 2 || relay == root)
        .map(|relay| {
            let mut tree = Tree::begin(nodes, root);
            if relay != root {
                tree.attach(relay, root);
            }
            for node in instance.receivers().filter(|&node| node != relay) {
                tree.attach(node, relay);
            }
            tree
        })
        .collect()
}

/// Mutualcast's rates for [`shallow_trees`], for uplinks and downlinks alone; limits of connections are ignored. The
/// root's data is split among the relays in proportion to their uplinks, as far as these reach; the remaining uplink of
/// the root serves all nodes directly. The rate is that of [`uplink_bound`]. O(N) except for the trees, which take
/// O(N²).
#[must_use]
pub fn shallow_packing(instance: &Instance) -> Packing {
    let nodes = instance.nodes();
    let bound = uplink_bound(instance);
    let root_uplink = instance.uplink(instance.root());
    let relays: f64 = instance.receivers().map(|node| instance.uplink(node)).sum();
    // Each relay sends N−2 copies of its part.
    let through_relays = if nodes > 2 { (relays / (nodes - 2) as f64).min(root_uplink) } else { 0.0 };
    let direct = (root_uplink - through_relays) / (nodes - 1) as f64;
    let scale = bound / (through_relays + direct);
    let trees = shallow_trees(instance).into_iter().map(|tree| {
        let relay = tree.order()[1];
        let is_direct = nodes == 2 || tree.parent(tree.order()[2]) == Some(instance.root());
        let rate = if is_direct { direct } else { through_relays * instance.uplink(relay) / relays };
        (tree, rate * scale)
    });
    let mut trees: Vec<(Tree, f64)> = trees.filter(|(_, rate)| *rate > 0.0).collect();
    trees.sort_by(|a, b| b.1.total_cmp(&a.1));
    Packing { rate: bound, upper_bound: bound, trees }
}
