//! How fast a ring takes long messages, and therefore which of them go by single copy instead.
//!
//! Through the ring a message is copied twice, but by two cores at the same time: between cores that share a cache,
//! that is twice as fast as a single copy. Between cores that do not, every line of the ring has to be fetched from the
//! other core's cache before it is written, and the ring is three times slower. A process cannot find out which cores
//! it has (and they change), so the speed is measured.

use std::time::{Duration, Instant};

/// Messages of at least this size go by single copy, where the ring is slow and where it is fast.
const SLOW: u64 = 16 << 10;
const FAST: u64 = 128 << 10;
/// Shorter writes are not measured.
const LEAST: u64 = 8 << 10;
/// Nanoseconds per bytes: the time that a single copy takes.
const EQUAL: (u128, u128) = (1, 5);
/// This many slow writes in a row are needed, because one may have been interrupted.
const SURE: u32 = 3;
/// Where the ring is slow, one message in this many tries it again.
const AGAIN: u32 = 32;

/// The pace of one ring.
#[derive(Debug)]
pub(super) struct Pace {
    pinned: Option<u64>,
    slow: u32,
    spared: u32,
}

impl Pace {
    /// `pinned`: the user's limit, which holds whatever the pace is.
    pub(super) fn new(pinned: Option<u64>) -> Pace {
        Pace { pinned, slow: 0, spared: 0 }
    }

    /// The length from which a message is better copied once.
    pub(super) fn single_copy_from(&self) -> u64 {
        match self.pinned {
            Some(pinned) => pinned,
            None if self.slow >= SURE => SLOW,
            None => FAST,
        }
    }

    /// Whether a message of this length should be copied once; occasionally not, to measure how fast the ring is.
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

    /// Whether a message of this length may ever be copied once.
    pub(super) fn may_want_single_copy(&self, bytes: u64) -> bool {
        bytes >= self.pinned.unwrap_or(SLOW)
    }

    /// Writes this many bytes into the ring, and records the time that took if it is meaningful.
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
