//! Flow of blocks to a target: the receiver decides the rate. Pure; time is an argument.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::blocks::Hash;

/// Limits on blocks in flight: with two, one transfer hides the latency of the other, and more would only queue. Short
/// blocks may be more, up to [`BYTES`] in flight.
const READING: usize = 2;
const MOST_READING: usize = 8;
const BYTES: u32 = 8 << 20;
/// Maximum number of retries for a damaged block.
const TRIES: u32 = 3;

/// A block in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) block: u32,
    pub(super) hash: Hash,
    pub(super) key: u64,
    pub(super) length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Request a block from the sender. If the sender pushes blocks, post a receive for it.
    Fetch(u32),
    /// Read the block from the sender's memory.
    Read(Offer),
    /// Wait until this time.
    Sleep(Duration),
    /// Wait until something arrives.
    Wait,
}

/// Blocks of one target that are in flight.
#[derive(Debug, Default)]
pub(super) struct BlockFlow {
    missing: VecDeque<u32>,
    fetched: usize,
    offers: VecDeque<Offer>,
    reading: HashMap<u32, Offer>,
    damaged: HashMap<u32, u32>,
    paused: bool,
    at_once: usize,
}

impl BlockFlow {
    /// `size`: block size in bytes.
    pub(super) fn new(missing: impl IntoIterator<Item = u32>, size: u32) -> BlockFlow {
        let at_once = ((BYTES / size.max(1)) as usize).clamp(READING, MOST_READING);
        BlockFlow { missing: missing.into_iter().collect(), at_once, ..BlockFlow::default() }
    }

    /// Maximum number of blocks that the sender keeps in memory ahead of reading, or for which receives are posted.
    pub(super) fn ahead(&self) -> usize {
        2 * self.at_once
    }

    pub(super) fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// The next action. `free`: the earliest start of the next block.
    pub(super) fn next(&mut self, now: Duration, free: Duration) -> Act {
        if self.fetched + self.offers.len() + self.reading.len() < self.ahead()
            && !self.paused
            && let Some(block) = self.missing.pop_front()
        {
            self.fetched += 1;
            return Act::Fetch(block);
        }
        if self.paused || self.reading.len() >= self.at_once || self.offers.is_empty() {
            return Act::Wait;
        }
        if now < free {
            return Act::Sleep(free);
        }
        match self.offers.pop_front() {
            Some(offer) => {
                self.reading.insert(offer.block, offer);
                Act::Read(offer)
            }
            None => Act::Wait,
        }
    }

    /// The sender has a block in its memory. Returns true if it was requested.
    pub(super) fn offered(&mut self, offer: Offer) -> bool {
        let expected = self.fetched > 0 && !self.reading.contains_key(&offer.block);
        if expected {
            self.fetched -= 1;
            self.offers.push_back(offer);
        }
        expected
    }

    /// Records a block that the sender has pushed.
    pub(super) fn pushed(&mut self, offer: Offer) {
        self.fetched = self.fetched.saturating_sub(1);
        self.reading.insert(offer.block, offer);
    }

    /// Records a block that has been read.
    pub(super) fn arrived(&mut self, block: u32) -> Option<Offer> {
        self.reading.remove(&block)
    }

    /// The block was damaged on its way. Returns true if it is requested again.
    pub(super) fn damaged(&mut self, block: u32) -> bool {
        let times = self.damaged.entry(block).or_default();
        *times += 1;
        if *times <= TRIES {
            self.missing.push_front(block);
        }
        *times <= TRIES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer(block: u32) -> Offer {
        Offer { block, hash: [0; 32], key: 1, length: 100 }
    }

    proptest! {
        /// For any order and times of answers: each block arrives once, the limit of blocks in flight holds, and no
        /// block starts before its time.
        #[test]
        fn each_block_arrives(
            count in 0u32..40,
            size in prop::sample::select(vec![4 << 10, 1 << 20, 2 << 20, 4 << 20, 1 << 30]),
            choices in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 0u64..5), 400),
        ) {
            let mut flow = BlockFlow::new(0..count, size);
            let (mut asked, mut reading, mut arrived) = (Vec::new(), Vec::new(), Vec::new());
            let (mut now, mut free) = (Duration::ZERO, Duration::ZERO);
            let mut damages = 0;
            for (index, damage, pause) in choices {
                loop {
                    match flow.next(now, free) {
                        Act::Fetch(block) => asked.push(block),
                        Act::Read(offer) => {
                            prop_assert!(now >= free);
                            free = now + Duration::from_millis(pause);
                            reading.push(offer.block);
                        }
                        Act::Sleep(until) => now = until,
                        Act::Wait => break,
                    }
                    prop_assert!(reading.len() <= [READING, MOST_READING][usize::from(size < 4 << 20)]);
                    prop_assert!(asked.len() + reading.len() <= flow.ahead());
                }
                match asked.is_empty() || (damage && !reading.is_empty()) {
                    false => {
                        let block = asked.remove(index.index(asked.len()));
                        prop_assert!(flow.offered(offer(block)));
                    }
                    true if !reading.is_empty() => {
                        let block = reading.remove(index.index(reading.len()));
                        prop_assert!(flow.arrived(block).is_some());
                        if damage && damages < 3 {
                            damages += 1;
                            prop_assert!(flow.damaged(block));
                        } else {
                            arrived.push(block);
                        }
                    }
                    true => {}
                }
            }
            arrived.sort_unstable();
            prop_assert_eq!(arrived, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_pause_asks_for_nothing() {
        let mut flow = BlockFlow::new(0..10, 4 << 20);
        assert_eq!(flow.next(Duration::ZERO, Duration::ZERO), Act::Fetch(0));
        flow.offered(offer(0));
        flow.pause(true);
        assert_eq!(flow.next(Duration::ZERO, Duration::ZERO), Act::Wait);
        flow.pause(false);
        assert_eq!(flow.next(Duration::ZERO, Duration::ZERO), Act::Fetch(1));
    }

    #[test]
    fn what_is_always_damaged_is_given_up() {
        let mut flow = BlockFlow::new([7], 4 << 20);
        for times in 1..=4 {
            assert_eq!(flow.next(Duration::ZERO, Duration::ZERO), Act::Fetch(7));
            flow.offered(offer(7));
            assert_eq!(flow.next(Duration::ZERO, Duration::ZERO), Act::Read(offer(7)));
            flow.arrived(7);
            assert_eq!(flow.damaged(7), times < 4);
        }
    }
}
