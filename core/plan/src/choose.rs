//! The choice of a schedule: one tree, or several with shares, by simulating the promising candidates.

use crate::algorithm::Algorithm;
use crate::instance::Instance;
use crate::local::{improve, longest_tail_first};
use crate::packing::{Effort, Ports, pack_of};
use crate::schedule::{Schedule, least_time};
use crate::transfer::{MultiTreeTransfer, Trees};
use crate::tree::Tree;
use crate::uplinks::shallow_packing;

/// The most packets simulated. A message with more is simulated with larger packets.
pub const MOST_SIMULATED: u64 = 8192;

/// The most nodes for which O(N³) algorithms and linear programs over trees are tried.
const SEVERAL: usize = 200;

/// Budget of the local search: about this many steps over edges and packets.
const STEPS: usize = 2_000_000;

/// The number of most promising trees that are examined more closely.
const PROMISING: usize = 6;

/// The relative gap to the lower bound above which single trees are improved by local search.
const WORTH: f64 = 0.01;

/// Schedules at most this much longer than the best one, as a fraction of its time, count as equally good.
const TIE: f64 = 0.015;

/// With more nodes than this, a message shorter than [`LEAST_OF_CROWD`] takes one tree: several trees would start with
/// a burst between nearly every pair, which overflows queues that the model does not cover.
const CROWD: usize = 10;
const LEAST_OF_CROWD: u64 = 1 << 20;

/// Chooses how to broadcast: a schedule within 1.5 % of the fastest one tried, in the model of [`Schedule`].
///
/// It tries the trees of [`candidates`], the best of them with children served longest tail first and improved by a
/// local search. It also tries several trees at once, at rates within all limits, if the message has several packets
/// and, for more than 10 nodes, at least 1 MiB. A schedule whose lower bound exceeds the best time so far is not
/// simulated. Among schedules within 1.5 % of the fastest, it prefers one tree to several, and a tree whose nodes have
/// few children: bursts fill queues that the model does not cover. So no tree of [`candidates`] is faster by more than
/// 1.5 %. `most_trees` (1 or more) bounds the number of trees in the schedule.
///
/// For more than 200 nodes it skips look-ahead ECEF, pruning, and all packings except one: that of the trees which the
/// closed form for uplinks uses most.
#[must_use]
pub fn choose(instance: &Instance, most_trees: usize) -> Schedule {
    let instance = &instance.with_at_most(MOST_SIMULATED);
    let mut best = Best::new(instance);
    let steady = instance.without_overheads();
    let trees = (instance.nodes() <= SEVERAL).then(|| Trees::new(&steady, instance));
    let is_crowd = instance.nodes() > CROWD && instance.message_bytes() < LEAST_OF_CROWD;
    let most_trees = if instance.packets() > 1 && !is_crowd { most_trees.max(1) } else { 1 };
    let work = instance.packets() as usize * instance.nodes();
    // Simulating a long message takes time, and several trees mostly win there.
    let are_several_first = work > STEPS / 100;
    let mut transfer = None;
    if are_several_first {
        transfer = several(&mut best, trees.as_ref(), most_trees);
    }
    let singles = singles(instance, trees.as_ref().map_or(&[][..], |trees| &trees.trees));
    if let Some(single) = best_single(instance, &singles, best.schedule.time) {
        best.take(single.clone());
        if best.schedule.time > trees.as_ref().map_or(0.0, |trees| trees.least) * (1.0 + WORTH) {
            best.take(improve(instance, single, (STEPS / work).min(2000)));
        }
    }
    if !are_several_first {
        transfer = several(&mut best, trees.as_ref(), most_trees);
    }
    calmest(best.schedule, instance, trees.as_ref().zip(transfer.as_ref()), singles)
}

/// Single trees with lower bounds of their times, lowest first: those of [`candidates`], the most promising of
/// `others`, and the most promising of all these with children served longest tail first.
fn singles(instance: &Instance, others: &[Tree]) -> Vec<(f64, Tree)> {
    let promise = |tree: Tree| (least_time(instance, &tree), tree);
    let mut trees: Vec<(f64, Tree)> = others.iter().cloned().map(promise).collect();
    trees.sort_by(|a, b| a.0.total_cmp(&b.0));
    trees.truncate(PROMISING);
    trees.extend(candidates(instance.nodes()).map(|algorithm| promise(algorithm.build(instance))));
    trees.sort_by(|a, b| a.0.total_cmp(&b.0));
    for place in 0..trees.len().min(PROMISING) {
        trees.push(promise(longest_tail_first(instance, trees[place].1.parents())));
    }
    trees.sort_by(|a, b| a.0.total_cmp(&b.0));
    trees
}

/// The fastest schedule of one of these trees, or `None` if none is faster than `wanted`.
fn best_single(instance: &Instance, singles: &[(f64, Tree)], wanted: f64) -> Option<Schedule> {
    let mut best: Option<Schedule> = None;
    for (least, tree) in singles {
        if *least < best.as_ref().map_or(wanted, |best| best.time) {
            let schedule = Schedule::new(instance, vec![(tree.clone(), 1.0)]);
            if best.as_ref().is_none_or(|best| schedule.time < best.time) {
                best = Some(schedule);
            }
        }
    }
    best
}

/// The schedule with the fewest trees among those about as fast as the best one; among single trees, the one with the
/// least [`crowding`].
fn calmest(
    best: Schedule,
    instance: &Instance,
    several: Option<(&Trees, &MultiTreeTransfer)>,
    mut singles: Vec<(f64, Tree)>,
) -> Schedule {
    let enough = best.time * (1.0 + TIE);
    singles.retain(|(least, _)| *least <= enough);
    singles.sort_by_key(|(_, tree)| crowding(tree));
    if let [(tree, _)] = &best.trees[..] {
        singles.retain(|(_, other)| crowding(other) < crowding(tree));
    }
    let work = instance.packets() as usize * instance.nodes();
    for (_, tree) in singles.into_iter().take((STEPS / 4 / work).max(2)) {
        let schedule = Schedule::new(instance, vec![(tree, 1.0)]);
        if schedule.time <= enough {
            return schedule;
        }
    }
    if let Some((trees, all)) = several {
        for most in [2, 4].into_iter().filter(|most| *most < best.trees.len()) {
            let fewer = trees.fewer(all, most).filter(|fewer| fewer.time <= enough);
            let schedule = fewer.map(|fewer| Schedule::new(instance, fewer.trees));
            if let Some(schedule) = schedule.filter(|schedule| schedule.time <= enough) {
                return schedule;
            }
        }
    }
    best
}

/// The sum over all nodes of the squared number of children.
fn crowding(tree: &Tree) -> usize {
    tree.children().iter().map(|children| children.len() * children.len()).sum()
}

/// The algorithms whose trees [`choose`] tries for this number of nodes.
pub fn candidates(nodes: usize) -> impl Iterator<Item = Algorithm> {
    let is_slow = |algorithm: &Algorithm| {
        matches!(
            algorithm,
            Algorithm::EcefLeastAhead | Algorithm::EcefMeanAhead | Algorithm::PruneRefined | Algorithm::PruneSimple
        )
    };
    Algorithm::ALL.into_iter().filter(move |algorithm| nodes <= SEVERAL || !is_slow(algorithm))
}

/// The best schedule so far.
struct Best<'a> {
    instance: &'a Instance,
    schedule: Schedule,
}

impl<'a> Best<'a> {
    /// Starts with the flat tree, the time that any other schedule must beat.
    fn new(instance: &'a Instance) -> Best<'a> {
        let schedule = Schedule::new(instance, vec![(Algorithm::Flat.build(instance), 1.0)]);
        Best { instance, schedule }
    }

    fn take(&mut self, schedule: Schedule) {
        if schedule.time < self.schedule.time {
            self.schedule = schedule;
        }
    }
}

/// Tries several trees at once. Returns the best transfer over any number of trees, or `None` if no linear program was
/// solved.
fn several(best: &mut Best, trees: Option<&Trees>, most_trees: usize) -> Option<MultiTreeTransfer> {
    let instance = best.instance;
    if most_trees == 1 {
        return None;
    }
    let Some(trees) = trees else {
        let closed = shallow_packing(instance).trees.into_iter().take(most_trees);
        let few: Vec<Tree> = closed.map(|(tree, _)| tree).collect();
        let packed = pack_of(instance, Ports::Many, &few, Effort { rounds: 500, gap: 0.005 });
        if !packed.trees.is_empty() {
            best.take(Schedule::new(instance, packed.trees));
        }
        return None;
    };
    let all = trees.best()?;
    let fewer = [4.min(most_trees), most_trees].map(|most| trees.fewer(&all, most));
    let mut transfers: Vec<MultiTreeTransfer> = fewer.into_iter().flatten().collect();
    transfers.sort_by(|a, b| a.time.total_cmp(&b.time));
    for transfer in transfers {
        if transfer.time < best.schedule.time {
            best.take(Schedule::new(instance, transfer.trees));
        }
    }
    Some(all)
}
