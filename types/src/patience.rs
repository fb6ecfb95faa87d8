//! How long to wait for what a busy machine does late.
//!
//! A fixed limit on a wait is either long for a machine that is well, or fails on one that is only busy. A [`Patience`] is
//! calm on a machine that is well, and follows what the machine shows otherwise, in two ways. Progress starts the clock again:
//! of a hundred agents that come one by one none is late as long as the next one comes in time. And the limit stretches by
//! how much slower the machine is than an idle one ([`Slowness`]). It never exceeds [`MOST`] times the calm limit, so every
//! wait still has an end.

use std::time::Duration;

/// A wait ends after this many times its calm limit, whatever the machine shows.
pub const MOST: u32 = 8;

/// How much slower processes run on this machine than on an idle one; 1 if not at all.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Slowness(f64);

impl Slowness {
    /// That of an idle machine.
    pub const NONE: Slowness = Slowness(1.0);

    /// Of a process that ran for so long and waited for so long, ready to run, for a core. What ran for less than a
    /// millisecond says nothing.
    pub fn new(ran: Duration, waited: Duration) -> Slowness {
        if ran < Duration::from_millis(1) {
            return Slowness::NONE;
        }
        Slowness(1.0 + waited.as_secs_f64() / ran.as_secs_f64())
    }

    /// Reads what Linux says of a process in `/proc/PID/schedstat`: nanoseconds that it ran, and that it waited for a core.
    /// [`Slowness::NONE`] if that is not such a text.
    pub fn of_schedstat(text: &str) -> Slowness {
        let numbers = text.split_whitespace().map_while(|number| number.parse().ok().map(Duration::from_nanos));
        let mut numbers = numbers.fuse();
        match (numbers.next(), numbers.next()) {
            (Some(ran), Some(waited)) => Slowness::new(ran, waited),
            _ => Slowness::NONE,
        }
    }

    /// A limit on a machine as slow as that.
    pub fn stretch(self, calm: Duration) -> Duration {
        calm.mul_f64(self.0.clamp(1.0, f64::from(MOST)))
    }
}

/// One wait; see the module. Times count from its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    calm: Duration,
    heard: Duration,
}

impl Patience {
    /// A wait that begins now. `calm`: how long something may take on a machine that is well.
    pub const fn new(calm: Duration) -> Patience {
        Patience { calm, heard: Duration::ZERO }
    }

    /// Something of what is waited for came.
    pub fn progress(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// When the wait is over on a machine as slow as that.
    pub fn deadline(&self, slowness: Slowness) -> Duration {
        (self.heard + slowness.stretch(self.calm)).min(self.calm * MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Duration = Duration::from_secs(10);

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_machine_that_is_well_gets_the_calm_limit_and_a_slow_one_more() {
        let patience = Patience::new(CALM);
        assert_eq!(patience.deadline(Slowness::NONE), CALM);
        assert_eq!(patience.deadline(Slowness::new(ms(20), ms(40))), 3 * CALM);
        assert_eq!(patience.deadline(Slowness::new(ms(20), ms(20_000))), MOST * CALM);
    }

    #[test]
    fn progress_starts_the_clock_again_but_not_for_ever() {
        let mut patience = Patience::new(CALM);
        patience.progress(ms(9_000));
        assert_eq!(patience.deadline(Slowness::NONE), ms(19_000));
        patience.progress(ms(3_000));
        assert_eq!(patience.deadline(Slowness::NONE), ms(19_000), "what is older changes nothing");
        patience.progress(20 * CALM);
        assert_eq!(patience.deadline(Slowness::NONE), MOST * CALM);
    }

    #[test]
    fn slowness_is_read_from_linux() {
        assert_eq!(Slowness::of_schedstat("2000000 6000000 17\n"), Slowness::new(ms(2), ms(6)));
        for nonsense in ["", "1", "x y", "-1 4 4", "999999 5000000 1"] {
            assert_eq!(Slowness::of_schedstat(nonsense), Slowness::NONE, "{nonsense}");
        }
    }
}
