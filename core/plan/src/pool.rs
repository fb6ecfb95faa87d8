//! The pool of trees from which packings are built.

use std::collections::HashSet;

use crate::arborescence::minimum_arborescence;
use crate::limits::RateLimits;
use crate::matrix::Matrix;
use crate::simplex::Column;

/// Relative growth of a limit's price each time a tree fills the limit.
const STEP: f64 = 0.5;

/// Distinct trees, given by their parents, each with the load it puts on the limits.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) parents: Vec<Vec<Option<usize>>>,
    pub(crate) columns: Vec<Column>,
    known: HashSet<Vec<Option<usize>>>,
}

impl Pool {
    /// Adds a tree unless the pool has it already.
    pub(crate) fn add(&mut self, limits: &RateLimits, parents: Vec<Option<usize>>) {
        if self.known.insert(parents.clone()) {
            self.columns.push(limits.column(&parents));
            self.parents.push(parents);
        }
    }

    /// Adds the trees that `rounds` of multiplicative weights find. Each round takes the cheapest tree under the
    /// limits' prices and raises the prices of the limits it loads. Sent one after the other, each at its full rate,
    /// the trees come near the highest rate (Garg and Könemann, "Faster and simpler algorithms for multicommodity flow
    /// and other fractional packing problems", SIAM J. Comput. 2007). Every limit has a price from the start, so trees
    /// avoid limits that others load. The prices of a linear program are mostly 0, so thousands of its trees would wind
    /// through the same free edges. Returns an upper bound in the limits' units. Stops when the rate is within `gap` of
    /// it.
    ///
    /// Round r adds `detours[r % detours.len()]` times `detour` times the cost of the last tree to the prices of edges,
    /// so some trees have short paths. A round costs O(N²).
    pub(crate) fn grow(
        &mut self,
        limits: &RateLimits,
        rounds: usize,
        gap: f64,
        detour: &Matrix,
        detours: &[f64],
    ) -> f64 {
        let mut prices = vec![1.0 / limits.count as f64; limits.count];
        let mut loads = vec![0.0; limits.count];
        let (mut upper_bound, mut sent, mut last) = (limits.at_most, 0.0, 0.0);
        for round in 0..rounds {
            let part = detours[round % detours.len()];
            let mut weights = limits.weights(&prices, false);
            if part > 0.0 {
                weights = Matrix::from_fn(weights.size(), |i, j| weights[(i, j)] + part * last * detour[(i, j)]);
            }
            let parents = minimum_arborescence(&weights, limits.root);
            let column = limits.column(&parents);
            last = column.iter().map(|&(row, load)| prices[row] * load).sum();
            if part == 0.0 {
                // Without detours no tree costs less, so this is a bound.
                upper_bound = upper_bound.min(1.0 / last);
            }
            let most = column.iter().map(|&(_, load)| load).fold(0.0, f64::max);
            for &(row, load) in &column {
                prices[row] *= 1.0 + STEP * load / most;
                loads[row] += load / most;
            }
            let sum: f64 = prices.iter().sum();
            prices.iter_mut().for_each(|price| *price /= sum);
            sent += 1.0 / most;
            self.add(limits, parents);
            let rate = sent / loads.iter().copied().fold(0.0, f64::max);
            if rate >= upper_bound * (1.0 - gap) {
                break;
            }
        }
        upper_bound
    }
}
