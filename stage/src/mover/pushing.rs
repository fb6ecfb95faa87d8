//! Scheduling of a feeder's sends: block, receivers and time. Pure; time is an argument.
//!
//! Each target lists the blocks it lacks once, and then posts receives for a few of them at a time. A posted receive is
//! its credit: a block is sent only if a buffer is waiting for it. A block goes to all targets that lack it at once,
//! when each of them has posted a receive for it, and at the lowest of their rates.
//!
//! Targets post in ascending order. So all targets that lack the lowest missing block soon post a receive for it, and
//! no circular wait can occur. If a target posts a receive for a block that it was sent, the block arrived damaged; it
//! is resent to that target alone.

use std::collections::BTreeMap;
use std::time::Duration;

use super::message::{Mode, Take};
use crate::blocks::Bitmap;
use crate::pace::Pace;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Send a block to these ranks.
    Push { block: u32, to: Vec<u32> },
    /// Wait until this time.
    Sleep(Duration),
    /// Wait until a target sends a message, or a block arrives.
    Wait,
}

/// All targets that a mover feeds with blocks of one task.
#[derive(Debug, Default)]
pub(super) struct Pushing(Vec<TargetGroup>);

/// Targets that get each block at the same time.
#[derive(Debug)]
struct TargetGroup {
    takers: Vec<Taker>,
    /// Number of targets that lack each block.
    lacking: Vec<u32>,
    /// The targets that have posted a receive, by block.
    posted: BTreeMap<u32, Vec<usize>>,
    pace: Pace,
}

#[derive(Debug)]
struct Taker {
    rank: u32,
    lacks: Bitmap,
    /// Number of blocks it lacks.
    left: u32,
    /// True once the target has listed all blocks it lacks.
    told: bool,
    rate: Option<u64>,
    paused: bool,
}

impl Pushing {
    /// Schedules for targets with these ranks, and this number of blocks.
    pub(super) fn new(mode: Mode, ranks: Vec<u32>, blocks: u32) -> Pushing {
        match mode {
            _ if ranks.is_empty() => Pushing::default(),
            Mode::Pull => Pushing::default(),
            Mode::Send => Pushing(ranks.into_iter().map(|rank| TargetGroup::new(vec![rank], blocks)).collect()),
            Mode::Bcast => Pushing(vec![TargetGroup::new(ranks, blocks)]),
        }
    }

    /// Returns true if no target is fed by sends.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a block may be sent.
    pub(super) fn is_busy(&self) -> bool {
        self.0.iter().any(|group| !group.posted.is_empty() && !group.is_held())
    }

    /// Processes a target's message. Returns false if the sender is not a target here or the block does not exist.
    pub(super) fn take(&mut self, from: u32, take: &Take) -> bool {
        let found = self.0.iter_mut().find_map(|group| {
            let place = group.takers.iter().position(|taker| taker.rank == from)?;
            Some((group, place))
        });
        found.is_some_and(|(group, place)| group.take(place, take))
    }

    /// The next action. `bytes`: the length of a block; `None`: it has not arrived here.
    pub(super) fn next(&mut self, now: Duration, bytes: impl Fn(u32) -> Option<u64>) -> Act {
        let mut earliest = Act::Wait;
        for group in &mut self.0 {
            match (group.next(now, &bytes), &earliest) {
                (push @ Act::Push { .. }, _) => return push,
                (Act::Sleep(until), Act::Sleep(other)) if until >= *other => {}
                (Act::Sleep(until), _) => earliest = Act::Sleep(until),
                (Act::Wait, _) => {}
            }
        }
        earliest
    }
}

impl TargetGroup {
    fn new(ranks: Vec<u32>, blocks: u32) -> TargetGroup {
        let taker = |rank| Taker { rank, lacks: Bitmap::new(blocks), left: 0, told: false, rate: None, paused: false };
        TargetGroup {
            takers: ranks.into_iter().map(taker).collect(),
            lacking: vec![0; blocks as usize],
            posted: BTreeMap::new(),
            pace: Pace::default(),
        }
    }

    /// Returns true if a target has not listed the blocks it lacks, or is paused: then no target gets anything.
    fn is_held(&self) -> bool {
        self.takers.iter().any(|taker| !taker.told || (taker.paused && taker.left > 0))
    }

    fn take(&mut self, place: usize, take: &Take) -> bool {
        let taker = &mut self.takers[place];
        let blocks = self.lacking.len() as u32;
        let mut lacks = |block: u32| {
            if taker.lacks.insert(block) {
                taker.left += 1;
                self.lacking[block as usize] += 1;
            }
        };
        match take {
            Take::Lacks { runs, last } => {
                taker.told |= last;
                let fits = |(first, count): &(u32, u32)| first.checked_add(*count).is_some_and(|end| end <= blocks);
                let valid = runs.iter().all(fits);
                if valid {
                    runs.iter().flat_map(|(first, count)| *first..first + count).for_each(lacks);
                }
                valid
            }
            Take::Credit { block } => {
                if *block >= blocks {
                    return false;
                }
                lacks(*block);
                let posted = self.posted.entry(*block).or_default();
                if !posted.contains(&place) {
                    posted.push(place);
                }
                true
            }
            Take::Pace { rate, paused } => {
                (taker.rate, taker.paused) = (*rate, *paused);
                true
            }
        }
    }

    fn next(&mut self, now: Duration, bytes: impl Fn(u32) -> Option<u64>) -> Act {
        if self.is_held() {
            return Act::Wait;
        }
        let ready = |(block, posted): (&u32, &Vec<usize>)| {
            let all = self.lacking[*block as usize] as usize == posted.len();
            bytes(*block).filter(|_| all).map(|bytes| (*block, bytes))
        };
        let Some((block, length)) = self.posted.iter().find_map(ready) else { return Act::Wait };
        let rate = self.takers.iter().filter(|taker| taker.left > 0).filter_map(|taker| taker.rate).min();
        self.pace.set(now, rate);
        if now < self.pace.free() {
            return Act::Sleep(self.pace.free());
        }
        self.pace.begins(now, length);
        self.lacking[block as usize] = 0;
        let to = self.posted.remove(&block).unwrap_or_default();
        for place in &to {
            self.takers[*place].lacks.remove(block);
            self.takers[*place].left -= 1;
        }
        Act::Push { block, to: to.iter().map(|place| self.takers[*place].rank).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::flow::{self, BlockFlow, Offer};
    use super::*;

    const BLOCKS: u32 = 24;
    const BYTES: u64 = 100;

    fn offer(block: u32) -> Offer {
        Offer { block, hash: [0; 32], key: 0, length: BYTES as u32 }
    }

    /// A target: posted receives, blocks in flight to it, and the number of arrivals of each block.
    struct Target {
        flow: BlockFlow,
        lacked: Vec<u32>,
        posted: Vec<u32>,
        coming: Vec<u32>,
        arrived: BTreeMap<u32, u32>,
        rate: Option<u64>,
        sent: u32,
    }

    fn targets() -> impl Strategy<Value = Vec<(Vec<bool>, Option<u64>)>> {
        let one = (prop::collection::vec(any::<bool>(), BLOCKS as usize), prop::option::of(1_000u64..100_000));
        prop::collection::vec(one, 1..5)
    }

    proptest! {
        /// For any missing blocks and any arrival times, damaged or not: each block arrives once at all targets that
        /// lack it, leaves a broadcast's source once, never without a posted receive, and no sooner than the lowest
        /// rate allows.
        #[test]
        fn each_block_arrives(
            lacked in targets(),
            bcast in any::<bool>(),
            choices in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8, 0u64..5), 40..400),
        ) {
            let mode = if bcast { Mode::Bcast } else { Mode::Send };
            let ranks: Vec<u32> = (0..lacked.len() as u32).collect();
            let mut pushing = Pushing::new(mode, ranks, BLOCKS);
            let mut targets: Vec<Target> = lacked.iter().map(|(lacks, rate)| {
                let lacked: Vec<u32> = (0..BLOCKS).filter(|block| lacks[*block as usize]).collect();
                let flow = BlockFlow::new(lacked.iter().copied(), 4 << 20);
                Target { flow, lacked, posted: vec![], coming: vec![], arrived: BTreeMap::new(), rate: *rate, sent: 0 }
            }).collect();
            let mut now = Duration::ZERO;
            let (mut sent, mut damages, mut last_told) = (BTreeMap::<u32, u32>::new(), 0u32, 0);
            for (step, (index, what, later)) in choices.iter().cycle().enumerate() {
                prop_assert!(step < 100_000, "it does not end");
                let (what, later) = (if step > 1000 { 7 } else { *what }, *later);
                now += Duration::from_millis(later);
                // The targets list their missing blocks one after the other.
                if last_told < targets.len() {
                    let target = &targets[last_told];
                    let runs = target.lacked.iter().map(|block| (*block, 1)).collect();
                    let lacks = Take::Lacks { runs, last: true };
                    prop_assert!(pushing.take(last_told as u32, &lacks));
                    let pace = Take::Pace { rate: target.rate, paused: false };
                    prop_assert!(pushing.take(last_told as u32, &pace));
                    last_told += 1;
                }
                let told = &mut targets[..last_told];
                for (rank, target) in told.iter_mut().enumerate() {
                    while let flow::Act::Fetch(block) = target.flow.next(now, Duration::ZERO) {
                        target.posted.push(block);
                        prop_assert!(target.posted.len() <= target.flow.ahead());
                        let credit = Take::Credit { block };
                        prop_assert!(pushing.take(rank as u32, &credit));
                    }
                }
                match pushing.next(now, |_| Some(BYTES)) {
                    Act::Push { block, to } => {
                        *sent.entry(block).or_default() += 1;
                        for rank in to {
                            let target = &mut targets[rank as usize];
                            prop_assert!(target.posted.contains(&block), "no receive is posted for it");
                            target.coming.push(block);
                            target.sent += 1;
                            let takes = target.rate.map_or(0.0, |rate| BYTES as f64 / rate as f64);
                            // Time unused during a pause is worth at most one block.
                            prop_assert!(f64::from(target.sent - 1) * takes <= now.as_secs_f64() + takes + 1e-6);
                        }
                    }
                    Act::Sleep(until) => {
                        prop_assert!(until > now);
                        now = until;
                    }
                    Act::Wait => {}
                }
                let coming: Vec<usize> = (0..targets.len()).filter(|rank| !targets[*rank].coming.is_empty()).collect();
                if what > 2 && !coming.is_empty() {
                    let target = &mut targets[coming[index.index(coming.len())]];
                    let block = target.coming.remove(index.index(target.coming.len()));
                    target.posted.retain(|posted| *posted != block);
                    target.flow.pushed(offer(block));
                    prop_assert!(target.flow.arrived(block).is_some());
                    if what == 3 && damages < 3 {
                        damages += 1;
                        prop_assert!(target.flow.damaged(block));
                    } else {
                        *target.arrived.entry(block).or_default() += 1;
                    }
                }
                let done = |target: &Target| target.arrived.len() == target.lacked.len();
                if last_told == targets.len() && targets.iter().all(done) {
                    break;
                }
            }
            for target in &targets {
                prop_assert!(target.lacked.iter().all(|block| target.arrived.get(block) == Some(&1)));
            }
            if bcast {
                let times: u32 = sent.values().sum();
                prop_assert!(times <= sent.len() as u32 + damages, "{sent:?}");
            }
            prop_assert!(!pushing.is_busy());
        }
    }

    fn ready(mode: Mode, ranks: &[u32]) -> Pushing {
        let mut pushing = Pushing::new(mode, ranks.to_vec(), 4);
        for rank in ranks {
            assert!(pushing.take(*rank, &Take::Lacks { runs: vec![(0, 4)], last: true }));
        }
        pushing
    }

    #[test]
    fn the_slowest_target_decides_for_all_of_a_broadcast() {
        let mut pushing = ready(Mode::Bcast, &[5, 6]);
        let next = |pushing: &mut Pushing| pushing.next(Duration::ZERO, |_| Some(100));
        assert!(pushing.take(5, &Take::Credit { block: 0 }));
        assert_eq!(next(&mut pushing), Act::Wait);
        assert!(
            pushing.take(6, &Take::Credit { block: 0 }) && pushing.take(6, &Take::Pace { rate: None, paused: true })
        );
        assert_eq!(next(&mut pushing), Act::Wait);
        assert!(pushing.take(6, &Take::Pace { rate: Some(50), paused: false }));
        assert_eq!(next(&mut pushing), Act::Push { block: 0, to: vec![5, 6] });
        assert!(pushing.take(5, &Take::Credit { block: 1 }) && pushing.take(6, &Take::Credit { block: 1 }));
        assert_eq!(next(&mut pushing), Act::Sleep(Duration::from_secs(2)));
    }

    #[test]
    fn targets_of_their_own_do_not_wait_for_each_other() {
        let mut pushing = ready(Mode::Send, &[5, 6]);
        assert!(pushing.take(6, &Take::Credit { block: 2 }));
        assert_eq!(pushing.next(Duration::ZERO, |_| None), Act::Wait);
        assert_eq!(pushing.next(Duration::ZERO, |_| Some(1)), Act::Push { block: 2, to: vec![6] });
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let mut pushing = ready(Mode::Send, &[5]);
        for (from, take) in [
            (6, Take::Credit { block: 1 }),
            (5, Take::Credit { block: 4 }),
            (5, Take::Lacks { runs: vec![(3, u32::MAX)], last: true }),
            (5, Take::Lacks { runs: vec![(u32::MAX, 1)], last: true }),
        ] {
            assert!(!pushing.take(from, &take), "{take:?}");
        }
        assert_eq!(pushing.next(Duration::ZERO, |_| Some(1)), Act::Wait);
    }
}
