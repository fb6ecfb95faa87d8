//! Speed of a ring for long messages, and the resulting choice between the ring and a single copy.
//!
//! Through the ring a message is copied twice, but by two cores at the same time: between cores that share a cache,
//! that is twice as fast as a single copy. Between other cores, every line of the ring has to be fetched from the other
//! core's cache before it is written, and the ring is three times slower. A process cannot find out its cores (and they
//! change), so the speed is measured.

use std::time::{Duration, Instant};

/// Messages of at least this size go by single copy: if the ring is slow, and if it is fast.
const SLOW: u64 = 16 << 10;
const FAST: u64 = 128 << 10;
/// Shorter writes are not measured.
const LEAST: u64 = 8 << 10;
/// Nanoseconds per bytes: the duration of a single copy.
const EQUAL: (u128, u128) = (1, 5);
/// Number of slow writes in a row that make a ring slow, because a single one may have been interrupted.
const SURE: u32 = 3;
/// On a slow ring, one message in this many tries the ring again.
const AGAIN: u32 = 32;

/// The pace of one ring.
#[derive(Debug)]
pub(super) struct Pace {
    pinned: Option<u64>,
    slow: u32,
    spared: u32,
}

impl Pace {
    /// `pinned`: the user's limit, which holds at any pace.
    pub(super) fn new(pinned: Option<u64>) -> Pace {
        Pace { pinned, slow: 0, spared: 0 }
    }

    /// The length from which a single copy is better.
    pub(super) fn single_copy_from(&self) -> u64 {
        match self.pinned {
            Some(pinned) => pinned,
            None if self.slow >= SURE => SLOW,
            None => FAST,
        }
    }

    /// True if a message of this length should be copied once. Sometimes false on a slow ring, to measure it again.
    pub(super) fn wants_single_copy(&mut self, bytes: u64) -> bool {
        if bytes < self.single_copy_from() {
            return false;
        }
        if self.pinned.is_none() && bytes < FAST {
            self.spared += 1;
            return !self.spared.is_multiple_of(AGAIN);
        }
        true
    }

    /// True if a message of this length may ever be copied once.
    pub(super) fn may_want_single_copy(&self, bytes: u64) -> bool {
        bytes >= self.pinned.unwrap_or(SLOW)
    }

    /// Has `write` write this many bytes into the ring, and records its duration if that is meaningful.
    pub(super) fn time(&mut self, bytes: u64, write: impl FnOnce()) {
        if bytes < LEAST || self.pinned.is_some() {
            return write();
        }
        let start = Instant::now();
        write();
        self.wrote(bytes, start.elapsed());
    }

    fn wrote(&mut self, bytes: u64, took: Duration) {
        let slow = took.as_nanos() * EQUAL.1 > u128::from(bytes) * EQUAL.0;
        self.slow = if slow { (self.slow + 1).min(SURE) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn a_slow_ring_is_spared_and_tried_again() {
        let mut pace = Pace::new(None);
        assert!(!pace.wants_single_copy(64 << 10) && pace.wants_single_copy(FAST));
        pace.wrote(16 << 10, micros(20));
        pace.wrote(16 << 10, micros(20));
        assert!(!pace.wants_single_copy(SLOW), "twice may be chance");
        pace.wrote(16 << 10, micros(20));
        assert!(!pace.wants_single_copy(SLOW - 1), "short messages always go through the ring");
        let through_the_ring = (0..320).filter(|_| !pace.wants_single_copy(SLOW)).count();
        assert_eq!(through_the_ring, 10);
        pace.wrote(16 << 10, micros(2));
        assert!(!pace.wants_single_copy(64 << 10), "the cores share a cache again");
    }

    #[test]
    fn the_user_may_know_better() {
        let mut pace = Pace::new(Some(1 << 30));
        assert!(!pace.wants_single_copy(1 << 20) && pace.wants_single_copy(1 << 30));
        assert!((0..100).all(|_| Pace::new(Some(1)).wants_single_copy(1)));
    }
}
