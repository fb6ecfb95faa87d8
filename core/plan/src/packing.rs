//! The highest rate of a long broadcast: trees in use at the same time, each with a share of the data.
//!
//! The rate that packed arborescences reach is the minimum over all nodes of the maximum flow from the root (Edmonds,
//! "Edge-disjoint branchings", 1973); with limits on nodes it is a linear program over trees (Beaumont, Legrand,
//! Marchal and Robert, "Pipelining broadcasts on heterogeneous platforms", IEEE TPDS 2005):
//!
//! maximise Σ x_t over trees t such that no limit's load exceeds 1.
//!
//! Column generation solves it. The simplex method holds the few trees in use. The next tree to add comes from a pool
//! found by other means; once no pool tree is worth it, it is the cheapest arborescence under the limits' prices
//! ([`minimum_arborescence`]). Every round's prices give an upper bound, so a run that stops early knows its gap.

use crate::arborescence::minimum_arborescence;
use crate::greedy::{Ahead, Busy, Greedy};
use crate::instance::Instance;
use crate::limits::RateLimits;
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::simplex::{Column, Simplex};
use crate::tree::Tree;

/// The limits that hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// A node sends to one node at a time and receives from one node at a time: Σ c/B ≤ 1 over its outgoing edges and
    /// over its incoming edges.
    One,
    /// Uplink, downlink and each connection have a rate of their own: Σ c ≤ U, Σ c ≤ D, c ≤ B.
    Many,
}

/// Work limit for a packing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// The most rounds; each makes one step of the simplex method.
    pub rounds: usize,
    /// The relative gap to the upper bound at which a packing is good enough.
    pub gap: f64,
}

impl Effort {
    /// The optimum, with enough rounds for instances of a few hundred nodes.
    pub const EXACT: Effort = Effort { rounds: 100_000, gap: 1e-9 };
}

/// Trees with rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Packing {
    /// The sum of the trees' rates in bytes/s.
    pub rate: f64,
    /// An upper bound on the rate of any packing, in bytes/s.
    pub upper_bound: f64,
    /// Each tree with its rate in bytes/s, the highest first.
    pub trees: Vec<(Tree, f64)>,
}

/// The best packing of all spanning trees. It starts with the trees of `Pool::grow`, which may take a quarter of the
/// rounds. One round costs O(N² + k³) for k trees in use; k is at most the number of limits, usually below 2N.
#[must_use]
pub fn pack(instance: &Instance, ports: Ports, effort: Effort) -> Packing {
    let limits = RateLimits::new(instance, ports);
    let detours = Detours::new(instance, 0.5 * effort.gap);
    let mut pool = Pool::default();
    let mut simplex = Simplex::new(limits.count);
    let mut upper_bound = pool.grow(&limits, (effort.rounds / 4).min(200), effort.gap, &detours.by_edge, &[0.0]);
    for _ in pool.parents.len()..effort.rounds {
        let rate = simplex.value();
        if simplex.drop_negative_price() {
            continue;
        }
        if rate >= upper_bound * (1.0 - effort.gap) {
            break;
        }
        let prices = simplex.prices();
        if let Some((number, _)) = cheapest(&pool.columns, prices).filter(|(_, weight)| *weight < 1.0 - 1e-6) {
            if simplex.enter(number, pool.columns[number].clone()) {
                continue;
            }
            break;
        }
        let mut weights = limits.weights(prices, pool.parents.is_empty());
        detours.add_to(&mut weights);
        let parents = minimum_arborescence(&weights, limits.root);
        let column = limits.column(&parents);
        let weight: f64 = column.iter().map(|&(row, load)| prices[row] * load).sum();
        // No tree weighs less than this one by more than the largest sum of detours.
        if weight > detours.most {
            upper_bound = upper_bound.min(prices.iter().sum::<f64>() / (weight - detours.most));
        }
        if weight >= 1.0 - 1e-10 || rate >= upper_bound * (1.0 - effort.gap) {
            break;
        }
        pool.add(&limits, parents);
        let number = pool.parents.len() - 1;
        if !simplex.enter(number, column) {
            break;
        }
    }
    let tree = |number: usize| Tree::breadth_first(limits.root, &pool.parents[number]);
    limits.packing(&simplex.solution(), upper_bound, tree)
}

/// The column of the least weight at these prices, and that weight.
fn cheapest(columns: &[Column], prices: &[f64]) -> Option<(usize, f64)> {
    let weight = |column: &Column| column.iter().map(|&(row, load)| prices[row] * load).sum::<f64>();
    columns.iter().map(weight).enumerate().min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The best packing of these trees alone; the upper bound is theirs. With several hundred trees it takes seconds.
#[must_use]
pub fn pack_of(instance: &Instance, ports: Ports, trees: &[Tree], effort: Effort) -> Packing {
    let limits = RateLimits::new(instance, ports);
    let columns: Vec<Column> = trees.iter().map(|tree| limits.column(tree.parents())).collect();
    let mut simplex = Simplex::new(limits.count);
    let mut upper_bound = limits.at_most;
    for _ in 0..effort.rounds {
        let rate = simplex.value();
        if simplex.drop_negative_price() {
            continue;
        }
        let prices = simplex.prices();
        let Some((number, weight)) = cheapest(&columns, prices) else { break };
        if weight > 0.0 {
            upper_bound = upper_bound.min(prices.iter().sum::<f64>() / weight);
        }
        let is_done = weight >= 1.0 - 1e-10 || rate >= upper_bound * (1.0 - effort.gap);
        if is_done || !simplex.enter(number, columns[number].clone()) {
            break;
        }
    }
    limits.packing(&simplex.solution(), upper_bound, |number| trees[number].clone())
}

/// The rate of a long broadcast over one tree, in bytes/s: with [`Ports::Many`] the minimum of its edges' rates, its
/// downlinks and each uplink divided by the number of children.
#[must_use]
pub fn rate(instance: &Instance, tree: &Tree, ports: Ports) -> f64 {
    let limits = RateLimits::new(instance, ports);
    let mut load = vec![0.0; limits.count];
    for (row, part) in limits.column(tree.parents()) {
        load[row] += part;
    }
    limits.unit / load.into_iter().fold(0.0, f64::max)
}

/// Extra edge weights that favour short paths among trees of about the same cost. The weight of an edge grows with its
/// detour: the latency of the path to the receiver over this edge, minus that of the shortest path. Many edges have
/// price 0; without detours a tree would wind through them.
struct Detours {
    by_edge: Matrix,
    /// The largest possible sum of detours in one tree.
    most: f64,
}

impl Detours {
    fn new(instance: &Instance, most: f64) -> Detours {
        let latency = &instance.links().latency;
        let mut paths = Greedy::new(latency, instance.root());
        paths.attach_all(instance.receivers().collect(), Busy::Receiver, Ahead::Nothing);
        let distance = paths.ready;
        let mut by_edge = Matrix::from_fn(instance.nodes(), |i, j| {
            if i == j { 0.0 } else { (distance[i] + latency[(i, j)] - distance[j]).max(0.0) }
        });
        let longest_into = |j: usize| (0..instance.nodes()).map(|i| by_edge[(i, j)]).fold(0.0, f64::max);
        let sum: f64 = instance.receivers().map(longest_into).sum();
        let scale = if sum > 0.0 { most / sum } else { 0.0 };
        by_edge = Matrix::from_fn(instance.nodes(), |i, j| scale * by_edge[(i, j)]);
        Detours { by_edge, most }
    }

    fn add_to(&self, weights: &mut Matrix) {
        *weights = Matrix::from_fn(weights.size(), |i, j| weights[(i, j)] + self.by_edge[(i, j)]);
    }
}
