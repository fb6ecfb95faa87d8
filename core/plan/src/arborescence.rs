//! The cheapest spanning arborescence: the tree with the least sum of edge weights.

use crate::instance::Instance;
use crate::matrix::Matrix;
use crate::tree::Tree;

/// The tree with the least sum of C_ij; nodes in breadth-first order, children ascending.
pub(crate) fn cheapest_tree(instance: &Instance) -> Tree {
    let parents = minimum_arborescence(&instance.costs(), instance.root());
    Tree::breadth_first(instance.root(), &parents)
}

/// The parents in the spanning arborescence of least weight; the diagonal and edges into the root do not count.
///
/// Edmonds' algorithm in Tarjan's form for dense graphs, O(N²): Edmonds, "Optimum branchings", 1967; Tarjan, "Finding
/// optimum branchings", 1977. Ties: the smallest sender into each node or contracted cycle.
pub(crate) fn minimum_arborescence(weights: &Matrix, root: usize) -> Vec<Option<usize>> {
    let mut contraction = Contraction::new(weights, root);
    for node in 0..weights.size() {
        let top = contraction.top[node];
        if !contraction.joined[top] {
            contraction.grow(top);
        }
    }
    contraction.expand()
}

/// Components: the nodes 0…N−1 first, then contracted cycles in the order of their contraction.
struct Contraction {
    nodes: usize,
    /// By node: the outermost component that contains it.
    top: Vec<usize>,
    /// By component: the component that it was contracted into.
    inside: Vec<Option<usize>>,
    /// By component: true if its path of chosen edges leads back to the root.
    joined: Vec<bool>,
    /// By component: the edge chosen into it.
    chosen: Vec<Option<(usize, usize)>>,
    /// By component, then sender: weight, reduced by contractions, and receiver of the cheapest edge into it.
    incoming: Vec<Vec<(f64, u32)>>,
    /// By component: its nodes.
    members: Vec<Vec<usize>>,
}

impl Contraction {
    fn new(weights: &Matrix, root: usize) -> Contraction {
        let nodes = weights.size();
        let mut joined = vec![false; nodes];
        joined[root] = true;
        Contraction {
            nodes,
            top: (0..nodes).collect(),
            inside: vec![None; nodes],
            joined,
            chosen: vec![None; nodes],
            incoming: (0..nodes).map(|j| (0..nodes).map(|i| (weights[(i, j)], j as u32)).collect()).collect(),
            members: (0..nodes).map(|node| vec![node]).collect(),
        }
    }

    /// Follows the cheapest edges back from a component until they reach a component joined to the root, and contracts
    /// the cycles on the way.
    fn grow(&mut self, from: usize) {
        let mut path = vec![(from, 0.0)];
        let mut place = vec![None; self.inside.len()];
        place[from] = Some(0);
        while let Some(&(last, _)) = path.last() {
            let (sender, weight, receiver) = self.cheapest_into(last);
            self.chosen[last] = Some((sender, receiver));
            let end = path.len() - 1;
            path[end].1 = weight;
            let before = self.top[sender];
            if self.joined[before] {
                for &(component, _) in &path {
                    self.joined[component] = true;
                }
                return;
            }
            if let Some(start) = place[before] {
                let cycle = path.split_off(start);
                let new = self.contract(&cycle);
                place.push(Some(path.len()));
                path.push((new, 0.0));
            } else {
                place[before] = Some(path.len());
                path.push((before, 0.0));
            }
        }
    }

    fn cheapest_into(&self, component: usize) -> (usize, f64, usize) {
        let mut best = (usize::MAX, f64::INFINITY, usize::MAX);
        for (sender, &(weight, receiver)) in self.incoming[component].iter().enumerate() {
            if self.top[sender] != component && (weight < best.1 || best.0 == usize::MAX) {
                best = (sender, weight, receiver as usize);
            }
        }
        best
    }

    /// Merges a cycle of components into one component. `cycle` gives each component and the weight of the edge chosen
    /// into it.
    fn contract(&mut self, cycle: &[(usize, f64)]) -> usize {
        let new = self.inside.len();
        let mut incoming = vec![(f64::INFINITY, 0); self.nodes];
        let mut members = Vec::new();
        for &(component, weight) in cycle {
            for (all, one) in incoming.iter_mut().zip(std::mem::take(&mut self.incoming[component])) {
                if one.0 - weight < all.0 {
                    *all = (one.0 - weight, one.1);
                }
            }
            members.append(&mut self.members[component]);
            self.inside[component] = Some(new);
        }
        for &node in &members {
            self.top[node] = new;
        }
        self.inside.push(None);
        self.joined.push(false);
        self.chosen.push(None);
        self.incoming.push(incoming);
        self.members.push(members);
        new
    }

    /// Expands the contracted cycles into parents. The edges chosen into outermost components stay; each replaces the
    /// chosen edges of the inner components that it enters.
    fn expand(self) -> Vec<Option<usize>> {
        let mut parents = vec![None; self.nodes];
        let mut entered = vec![false; self.inside.len()];
        for component in (0..self.inside.len()).rev() {
            let Some((sender, receiver)) = self.chosen[component].filter(|_| !entered[component]) else { continue };
            parents[receiver] = Some(sender);
            let mut within = Some(receiver);
            while let Some(each) = within {
                entered[each] = true;
                within = if each == component { None } else { self.inside[each] };
            }
        }
        parents
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::cases;

    /// The least weight over all parent assignments that are trees.
    fn exhaustive(weights: &Matrix, root: usize) -> f64 {
        let nodes = weights.size();
        let mut least = f64::INFINITY;
        for code in 0..nodes.pow(nodes as u32) {
            let parents: Vec<usize> = (0..nodes).map(|node| code / nodes.pow(node as u32) % nodes).collect();
            let reaches = |mut node: usize| {
                for _ in 0..nodes {
                    node = if node == root { root } else { parents[node] };
                }
                node == root
            };
            if parents[root] == root && (0..nodes).all(reaches) {
                let weight = (0..nodes).filter(|&j| j != root).map(|j| weights[(parents[j], j)]).sum();
                least = f64::min(least, weight);
            }
        }
        least
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn no_tree_is_cheaper(nodes in 2usize..6, root in 0usize..6, cells in proptest::collection::vec(0u8..6, 25)) {
            let root = root % nodes;
            let weights = Matrix::from_fn(nodes, |i, j| f64::from(cells[i * nodes + j]));
            let parents = minimum_arborescence(&weights, root);
            let tree = Tree::breadth_first(root, &parents);
            prop_assert_eq!(tree.order().len(), nodes);
            let weight: f64 = tree.edges().map(|edge| weights[edge]).sum();
            prop_assert_eq!(weight, exhaustive(&weights, root));
        }
    }
}
