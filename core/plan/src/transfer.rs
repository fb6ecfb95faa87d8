//! Trees with rates for one message: like [`crate::packing`], but it minimises the completion time instead of
//! maximising the rate.

use crate::greedy::{Ahead, Busy, Greedy};
use crate::instance::Instance;
use crate::limits::RateLimits;
use crate::matrix::Matrix;
use crate::pace;
use crate::packing::Ports;
use crate::pool::Pool;
use crate::simplex::Simplex;
use crate::tree::Tree;
use crate::uplinks::shallow_trees;

/// Penalties for long paths, used in turn: the price added for a detour as long as the whole duration, relative to the
/// price of the last tree.
const DETOURS: [f64; 4] = [0.0, 0.25, 1.0, 4.0];

/// Rounds of multiplicative weights.
const ROUNDS: usize = 200;

/// The most steps of one linear program.
const PIVOTS: usize = 3000;

/// The relative gap to the optimum at which a linear program is solved well enough.
const GAP: f64 = 0.005;

/// Steps of the search for the duration; each solves a linear program.
const STEPS: usize = 4;

/// A message over several trees at once.
#[derive(Debug, Clone)]
pub(crate) struct MultiTreeTransfer {
    /// Each tree with its rate in bytes/s, the tree that carries most first.
    pub(crate) trees: Vec<(Tree, f64)>,
    /// Seconds until all nodes have the message, without queueing delays.
    pub(crate) time: f64,
}

/// A linear program and the value of a unit of each tree's rate in it; columns are in units of that value.
struct Program {
    simplex: Simplex,
    values: Vec<f64>,
}

/// The trees from which transfers of a message are built.
pub(crate) struct Trees<'a> {
    limits: RateLimits<'a>,
    message: f64,
    pool: Pool,
    pub(crate) trees: Vec<Tree>,
    depths: Vec<f64>,
    /// A lower bound on the time of any schedule, in seconds.
    pub(crate) least: f64,
    /// Start of the search for the duration, in seconds.
    start: f64,
}

impl<'a> Trees<'a> {
    /// The N trees of depth 1 and 2, one of shortest paths, and those of multiplicative weights. `steady` is the
    /// instance without overheads, its rates reduced accordingly.
    pub(crate) fn new(steady: &'a Instance, instance: &Instance) -> Trees<'a> {
        let limits = RateLimits::new(steady, Ports::Many);
        let hops = pace::hops(instance);
        let mut paths = Greedy::new(&hops, instance.root());
        paths.attach_all(instance.receivers().collect(), Busy::Receiver, Ahead::Nothing);
        let (distance, shortest) = (paths.ready, paths.tree);
        let farthest = distance.iter().copied().fold(0.0, f64::max);
        let message = instance.message_bytes() as f64;
        let mut pool = Pool::default();
        pool.add(&limits, shortest.parents().to_vec());
        shallow_trees(instance).iter().for_each(|tree| pool.add(&limits, tree.parents().to_vec()));
        let duration = message / limits.unit + farthest;
        let detour = Matrix::from_fn(instance.nodes(), |i, j| {
            if i == j { 0.0 } else { (distance[i] + hops[(i, j)] - distance[j]).max(0.0) / duration }
        });
        let upper_bound = pool.grow(&limits, ROUNDS, 0.002, &detour, &DETOURS);
        let trees: Vec<Tree> =
            pool.parents.iter().map(|parents| Tree::breadth_first(instance.root(), parents)).collect();
        let depths = trees.iter().map(|tree| pace::depth(&hops, tree)).collect();
        let least = farthest.max(message / (upper_bound * limits.unit));
        let start = message / (upper_bound * limits.unit) + 2.0 * farthest;
        Trees { limits, message, pool, trees, depths, least, start }
    }

    /// The shortest transfer found over all trees.
    pub(crate) fn best(&self) -> Option<MultiTreeTransfer> {
        let all: Vec<usize> = (0..self.trees.len()).collect();
        self.of(&all)
    }

    /// The shortest transfer over the `most` trees that carry most in `transfer`.
    pub(crate) fn fewer(&self, transfer: &MultiTreeTransfer, most: usize) -> Option<MultiTreeTransfer> {
        if transfer.trees.len() <= most {
            return Some(transfer.clone());
        }
        let few = transfer.trees.iter().take(most);
        let few = few.filter_map(|(tree, _)| self.trees.iter().position(|other| other == tree));
        self.of(&few.collect::<Vec<_>>())
    }

    /// The shortest transfer over these trees. For a duration T, trees of rates x and depths d carry Σ x (T − d); a
    /// linear program finds the maximum, which is convex in T. Newton's method finds the T at which that maximum is the
    /// message size.
    fn of(&self, numbers: &[usize]) -> Option<MultiTreeTransfer> {
        let mut best: Option<(f64, Vec<(usize, f64)>)> = None;
        let shallowest = numbers.iter().map(|&number| self.depths[number]).fold(f64::INFINITY, f64::min);
        let mut duration = self.start.max(2.0 * shallowest);
        let mut program = Program { simplex: Simplex::new(self.limits.count), values: Vec::new() };
        for _ in 0..STEPS {
            let flows = self.most_carried(&mut program, numbers, duration);
            let pairs: Vec<(f64, f64)> = flows.iter().map(|&(number, rate)| (rate, self.depths[number])).collect();
            let (time, parts) = pace::parts(self.message, &pairs);
            let is_better = best.as_ref().is_none_or(|(least, _)| time < least * (1.0 - 5e-3));
            if best.as_ref().is_none_or(|(least, _)| time < *least) {
                let mut order: Vec<usize> = (0..flows.len()).filter(|&place| parts[place] > 0.0).collect();
                order.sort_by(|&a, &b| parts[b].total_cmp(&parts[a]));
                best = Some((time, order.into_iter().map(|place| flows[place]).collect()));
            }
            if !is_better || time.is_infinite() {
                break;
            }
            duration = time;
        }
        let (time, flows) = best.filter(|(time, _)| time.is_finite())?;
        Some(MultiTreeTransfer {
            trees: flows.into_iter().map(|(number, rate)| (self.trees[number].clone(), rate)).collect(),
            time,
        })
    }

    /// Rates in bytes/s at which the trees carry most within a duration. Starts from the solution that `program` found
    /// for another duration.
    fn most_carried(&self, program: &mut Program, numbers: &[usize], duration: f64) -> Vec<(usize, f64)> {
        let values: Vec<f64> = numbers.iter().map(|&number| 1.0 - self.depths[number] / duration).collect();
        let before = std::mem::replace(&mut program.values, values);
        let (simplex, values) = (&mut program.simplex, &program.values);
        let can_go_on = !before.is_empty() && simplex.in_use().all(|place| values[place] > 0.0);
        if !can_go_on || !simplex.scale(|place| before[place] / values[place]) {
            *simplex = Simplex::new(self.limits.count);
        }
        for _ in 0..PIVOTS {
            if simplex.drop_negative_price() {
                continue;
            }
            let prices = simplex.prices();
            let mut cheapest = (1.0 - 1e-6, None);
            for place in (0..numbers.len()).filter(|&place| values[place] > 0.0) {
                let column = &self.pool.columns[numbers[place]];
                let price = column.iter().map(|&(row, load)| prices[row] * load).sum::<f64>() / values[place];
                if price < cheapest.0 {
                    cheapest = (price, Some(place));
                }
            }
            let Some(place) = cheapest.1 else { break };
            // Weak duality: no trees carry more than the sum of prices divided by the lowest price of a tree.
            if simplex.value() >= prices.iter().sum::<f64>() / cheapest.0 * (1.0 - GAP) {
                break;
            }
            let column = self.pool.columns[numbers[place]].iter().map(|&(row, load)| (row, load / values[place]));
            if !simplex.enter(place, column.collect()) {
                break;
            }
        }
        let rate = |place: usize, value: f64| value * self.limits.unit / values[place];
        let solution = simplex.solution().into_iter().filter(|(_, value)| *value > 1e-9);
        solution.map(|(place, value)| (numbers[place], rate(place, value))).collect()
    }
}
