//! Start time of the next block at a given rate.

use std::time::Duration;

/// Limits the rate block by block: the next block waits for the time that this one should have taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Bytes per second; `None`: no limit.
    rate: Option<u64>,
    free: Duration,
}

impl Pace {
    pub fn new(rate: Option<u64>) -> Pace {
        Pace { rate, free: Duration::ZERO }
    }

    /// Changes the rate from `now` on. A higher rate shortens the present wait; a lower rate does not lengthen it.
    pub fn set(&mut self, now: Duration, rate: Option<u64>) {
        let before = std::mem::replace(&mut self.rate, rate);
        if before == rate || self.free <= now {
            return;
        }
        let part = match (before, rate) {
            (Some(before), Some(rate)) => (before.max(1) as f64 / rate.max(1) as f64).min(1.0),
            (Some(_), None) => 0.0,
            (None, _) => 1.0,
        };
        let wait = (self.free - now).as_secs_f64() * part;
        self.free = now + Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX / 4);
    }

    /// Bytes per second; `None`: no limit.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// The earliest start of the next block.
    pub fn free(&self) -> Duration {
        self.free
    }

    /// Records the start of a block of `bytes`. Unused time earns no credit beyond this block.
    pub fn begins(&mut self, now: Duration, bytes: u64) {
        if let Some(rate) = self.rate {
            let takes = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            self.free = self.free.max(now.saturating_sub(takes)) + takes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_and_pauses_are_not_made_up_for() {
        let mut pace = Pace::new(Some(1000));
        let mut now = Duration::ZERO;
        for _ in 0..10 {
            now = now.max(pace.free());
            pace.begins(now, 100);
        }
        assert_eq!(pace.free(), Duration::from_secs(1));
        let late = Duration::from_secs(100);
        pace.begins(late, 100);
        pace.begins(late, 100);
        assert!(pace.free() >= late + Duration::from_millis(100), "{:?}", pace.free());
        pace.set(late, None);
        pace.begins(late, 1 << 40);
        assert!(pace.free() <= late + Duration::from_millis(200));
    }

    #[test]
    fn another_rate_holds_at_once() {
        let mut pace = Pace::new(Some(1));
        pace.begins(Duration::ZERO, 1 << 20);
        let now = Duration::from_secs(1);
        pace.set(now, Some(1 << 20));
        assert!(pace.free() < now + Duration::from_secs(1) && pace.free() > now + Duration::from_millis(999));
        let before = pace.free();
        pace.set(now, Some(1 << 19));
        assert_eq!(pace.free(), before, "a lower one holds from the next block on");
        pace.set(now, None);
        assert_eq!(pace.free(), now);
    }
}
