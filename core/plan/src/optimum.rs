//! The best single tree, by exhaustive search.

use crate::instance::Instance;
use crate::model::Model;
use crate::tree::Tree;

/// The most nodes for which all trees are tried: at 6 nodes, 14,400 orders of edges.
pub const MOST_FOR_OPTIMUM: usize = 6;

/// The tree with the least completion time over all trees and all orders of serving children, and that time; `None` for
/// more than [`MOST_FOR_OPTIMUM`] nodes. Edges are tried by receiver, then by sender; among equally fast trees the
/// first wins.
#[must_use]
pub fn optimum(instance: &Instance, model: Model) -> Option<(Tree, f64)> {
    if instance.nodes() > MOST_FOR_OPTIMUM {
        return None;
    }
    let mut best = None;
    extend(instance, model, &mut vec![(instance.root(), instance.root())], &mut best);
    best
}

/// Tries all ways to extend `edges`, pairs of (sender, receiver). The first pair stands for the root.
fn extend(instance: &Instance, model: Model, edges: &mut Vec<(usize, usize)>, best: &mut Option<(Tree, f64)>) {
    let nodes = instance.nodes();
    if edges.len() == nodes {
        let mut tree = Tree::begin(nodes, instance.root());
        for &(sender, receiver) in &edges[1..] {
            tree.attach(receiver, sender);
        }
        let time = model.completion(instance, &tree);
        if best.as_ref().is_none_or(|(_, least)| time < *least) {
            *best = Some((tree, time));
        }
        return;
    }
    let reached: Vec<usize> = (0..nodes).filter(|&node| edges.iter().any(|edge| edge.1 == node)).collect();
    for receiver in (0..nodes).filter(|node| reached.binary_search(node).is_err()) {
        for &sender in &reached {
            edges.push((sender, receiver));
            extend(instance, model, edges, best);
            edges.pop();
        }
    }
}
