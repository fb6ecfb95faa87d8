//! When the next block may begin, for a rate.

use std::time::Duration;

/// A rate that is kept over a block: after each one, the next waits as long as this one should have taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Bytes per second; `None`: as fast as it goes.
    rate: Option<u64>,
    free: Duration,
}

impl Pace {
    pub fn new(rate: Option<u64>) -> Pace {
        Pace { rate, free: Duration::ZERO }
    }

    pub fn set(&mut self, rate: Option<u64>) {
        self.rate = rate;
    }

    /// The time from which the next block may begin.
    pub fn free(&self) -> Duration {
        self.free
    }

    /// A block of `bytes` begins at this time. What was not used before is not made up for.
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
        pace.set(None);
        pace.begins(late, 1 << 40);
        assert!(pace.free() <= late + Duration::from_millis(200));
    }
}
