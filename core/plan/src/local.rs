//! Local search: improves a single tree.

use crate::instance::Instance;
use crate::schedule::{Schedule, least_time};
use crate::tree::Tree;

/// The tree of these parents in which each node serves its children longest tail first: a child's tail is the cost of
/// its edge plus the longest path below it. O(N log N).
pub(crate) fn longest_tail_first(instance: &Instance, parents: &[Option<usize>]) -> Tree {
    let root = instance.root();
    let plain = Tree::breadth_first(root, parents);
    let message = instance.message_bytes() as f64;
    let mut tail = vec![0.0; parents.len()];
    let mut children = vec![Vec::new(); parents.len()];
    for &node in plain.order().iter().rev() {
        let Some(parent) = parents[node] else { continue };
        // A node's tail begins when its parent can send.
        tail[node] += instance.latency(parent, node) + message / instance.bandwidth(parent, node);
        tail[parent] = f64::max(tail[parent], tail[node]);
        children[parent].push(node);
    }
    let mut tree = Tree::begin(parents.len(), root);
    let mut next = 0;
    while let Some(&node) = tree.order().get(next) {
        let mut below = std::mem::take(&mut children[node]);
        below.sort_by(|&a, &b| tail[b].total_cmp(&tail[a]).then(a.cmp(&b)));
        for child in below {
            tree.attach(child, node);
        }
        next += 1;
    }
    tree
}

/// Moves subtrees to other parents while that shortens the time, for at most `trials` simulations. Only nodes on the
/// path to the last node are moved: moving others does not shorten that path. Children are served longest tail first.
pub(crate) fn improve(instance: &Instance, mut best: Schedule, trials: usize) -> Schedule {
    let mut left = trials;
    loop {
        let tree = best.trees[0].0.clone();
        let mut found = None;
        'search: for node in slowest_path(instance, &tree) {
            let below = subtree(&tree, node);
            for parent in (0..tree.nodes()).filter(|&parent| !below[parent] && Some(parent) != tree.parent(node)) {
                let mut parents = tree.parents().to_vec();
                parents[node] = Some(parent);
                let moved = longest_tail_first(instance, &parents);
                if least_time(instance, &moved) >= best.time {
                    continue;
                }
                if left == 0 {
                    break 'search;
                }
                left -= 1;
                let schedule = Schedule::new(instance, vec![(moved, 1.0)]);
                if schedule.time < best.time {
                    found = Some(schedule);
                    break 'search;
                }
            }
        }
        match found {
            Some(schedule) => best = schedule,
            None => return best,
        }
    }
}

/// The nodes except the root on the path to the node that the whole message reaches last in the LogGP model, last node
/// first.
fn slowest_path(instance: &Instance, tree: &Tree) -> Vec<usize> {
    let arrivals = crate::model::Model::LogGp.arrivals(instance, tree);
    let mut last = tree.root();
    for node in 0..tree.nodes() {
        if arrivals[node] > arrivals[last] {
            last = node;
        }
    }
    let mut path = Vec::new();
    while let Some(parent) = tree.parent(last) {
        path.push(last);
        last = parent;
    }
    path
}

/// By node: true for `top` and all nodes below it.
fn subtree(tree: &Tree, top: usize) -> Vec<bool> {
    let mut below = vec![false; tree.nodes()];
    below[top] = true;
    for (parent, child) in tree.edges() {
        below[child] |= below[parent];
    }
    below
}
