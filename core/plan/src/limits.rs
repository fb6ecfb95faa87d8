//! The limits on a packing of trees, as rows of a linear program.

use crate::instance::Instance;
use crate::matrix::Matrix;
use crate::packing::{Packing, Ports};
use crate::simplex::Column;
use crate::tree::Tree;

/// The limits as rows of a linear program whose right sides are all 1. Rates are in units of `unit`.
pub(crate) struct RateLimits<'a> {
    instance: &'a Instance,
    ports: Ports,
    pub(crate) root: usize,
    pub(crate) count: usize,
    /// In bytes/s.
    pub(crate) unit: f64,
    /// A rate that no packing exceeds, in units.
    pub(crate) at_most: f64,
    /// In the multi-port model: the row of each connection whose rate is below its sender's uplink and its receiver's
    /// downlink; other connections need no row.
    connections: Vec<Option<u32>>,
}

impl<'a> RateLimits<'a> {
    pub(crate) fn new(instance: &'a Instance, ports: Ports) -> RateLimits<'a> {
        let (nodes, root) = (instance.nodes(), instance.root());
        let into = |j: usize| (0..nodes).filter(move |&i| i != j).map(move |i| instance.bandwidth(i, j));
        let mut unit = f64::INFINITY;
        for j in instance.receivers() {
            unit = match ports {
                Ports::One => unit.min(into(j).fold(0.0, f64::max)),
                Ports::Many => unit.min(into(j).sum()).min(instance.downlink(j)),
            };
        }
        if ports == Ports::Many {
            unit = unit.min(instance.uplink(root));
        }
        let mut count = 2 * nodes;
        let mut connections = Vec::new();
        if ports == Ports::Many {
            connections = vec![None; nodes * nodes];
            for i in 0..nodes {
                for j in (0..nodes).filter(|&j| j != i && j != root) {
                    let rate = instance.bandwidth(i, j);
                    if rate < instance.uplink(i) && rate < instance.downlink(j) {
                        connections[i * nodes + j] = Some(count as u32);
                        count += 1;
                    }
                }
            }
        }
        RateLimits { instance, ports, root, count, unit, at_most: 1.0, connections }
    }

    /// The load that a tree puts on each limit, per unit of its rate.
    pub(crate) fn column(&self, parents: &[Option<usize>]) -> Column {
        let nodes = parents.len();
        let mut out = vec![0.0; nodes];
        let mut column = Vec::with_capacity(3 * nodes);
        for (j, parent) in parents.iter().enumerate() {
            let Some(i) = *parent else { continue };
            match self.ports {
                Ports::One => {
                    let load = self.unit / self.instance.bandwidth(i, j);
                    out[i] += load;
                    column.push((nodes + j, load));
                }
                Ports::Many => {
                    out[i] += self.unit / self.instance.uplink(i);
                    column.push((nodes + j, self.unit / self.instance.downlink(j)));
                    if let Some(row) = self.connections[i * nodes + j] {
                        column.push((row as usize, self.unit / self.instance.bandwidth(i, j)));
                    }
                }
            }
        }
        column.extend(out.into_iter().enumerate().filter(|&(_, load)| load > 0.0));
        column
    }

    /// The cost of each edge at these prices. The first tree has no prices yet; its weights avoid slow edges.
    pub(crate) fn weights(&self, prices: &[f64], is_first: bool) -> Matrix {
        let nodes = self.instance.nodes();
        Matrix::from_fn(nodes, |i, j| {
            if i == j || j == self.root {
                return 0.0;
            }
            let (sender, receiver) = if is_first { (1.0, 1.0) } else { (prices[i], prices[nodes + j]) };
            let rate = self.instance.bandwidth(i, j);
            match self.ports {
                Ports::One => (sender + receiver) * self.unit / rate,
                Ports::Many => {
                    let connection = match self.connections[i * nodes + j] {
                        Some(_) if is_first => self.unit / rate,
                        Some(row) => prices[row as usize] * self.unit / rate,
                        None => 0.0,
                    };
                    let (up, down) = (self.instance.uplink(i), self.instance.downlink(j));
                    sender * self.unit / up + receiver * self.unit / down + connection
                }
            }
        })
    }

    /// The packing of a solution, scaled down where rounding lets it exceed a limit.
    pub(crate) fn packing(&self, solution: &[(usize, f64)], upper_bound: f64, tree: impl Fn(usize) -> Tree) -> Packing {
        let mut trees: Vec<(Tree, f64)> =
            solution.iter().filter(|(_, rate)| *rate > 1e-9).map(|&(number, rate)| (tree(number), rate)).collect();
        let mut load = vec![0.0; self.count];
        for (tree, rate) in &trees {
            for (row, part) in self.column(tree.parents()) {
                load[row] += rate * part;
            }
        }
        let most = load.into_iter().fold(0.0, f64::max);
        let scale = if most > 0.0 { self.unit / most.max(1.0) } else { self.unit };
        for (_, rate) in &mut trees {
            *rate *= scale;
        }
        trees.sort_by(|a, b| b.1.total_cmp(&a.1));
        Packing { rate: trees.iter().map(|(_, rate)| rate).sum(), upper_bound: upper_bound * self.unit, trees }
    }
}
