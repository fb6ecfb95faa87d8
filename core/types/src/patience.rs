//! Deadlines that allow for a busy machine.
//!
//! A fixed limit either is too long on an idle machine or expires on one that is only busy. A [`Patience`] starts with
//! the limit for an idle machine and extends it in two ways. Progress restarts the clock: of a hundred agents that
//! connect one by one, none is late as long as the next one connects in time. And the limit stretches by the machine's
//! [`Slowness`] compared with an idle one. It never exceeds [`MOST`] times the initial limit, so every wait still ends.

use std::collections::VecDeque;
use std::time::Duration;

/// Most times its initial limit that a wait may last, however slow the machine.
pub const MOST: u32 = 8;

/// The factor by which processes run slower on this machine than on an idle one; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Slowness(f64);

impl Slowness {
    /// The slowness of an idle machine.
    pub const NONE: Slowness = Slowness(1.0);

    /// Computes it for a process that ran for `ran` and was ready for a core, but waited, for `waited`. Less than a
    /// millisecond of running is too little to measure, and counts as idle.
    pub fn new(ran: Duration, waited: Duration) -> Slowness {
        if ran < Duration::from_millis(1) {
            return Slowness::NONE;
        }
        Slowness(1.0 + waited.as_secs_f64() / ran.as_secs_f64())
    }

    /// The most by which a machine can have slowed any process during `time`, if some process waited for a core
    /// during `crowded` of it. Each process ran, or slept, for the rest.
    pub fn at_most(time: Duration, crowded: Duration) -> Slowness {
        if time.is_zero() {
            return Slowness::NONE;
        }
        Slowness(1.0 / (1.0 - crowded.as_secs_f64() / time.as_secs_f64()).max(f64::EPSILON))
    }

    /// The lower of the two.
    pub fn min(self, other: Slowness) -> Slowness {
        Slowness(self.0.min(other.0))
    }

    /// Stretches a limit by this factor, at most [`MOST`].
    pub fn stretch(self, calm: Duration) -> Duration {
        calm.mul_f64(self.0.clamp(1.0, f64::from(MOST)))
    }
}

/// A process's time on a core since it started, and its time waiting for one, ready to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// Time on a core.
    pub ran: Duration,
    pub waited: Duration,
    /// Time since the machine started during which some process of it waited for a core. `None`: not known.
    pub crowded: Option<Duration>,
}

impl CoreTime {
    /// Parses `/proc/PID/schedstat`, Linux's record of a process: nanoseconds on a core, and nanoseconds waiting for
    /// one. `None` if the text is not in that format.
    pub fn of_schedstat(text: &str) -> Option<CoreTime> {
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok().map(Duration::from_nanos));
        let (ran, waited) = (numbers.next()??, numbers.next()??);
        Some(CoreTime { ran, waited, crowded: None })
    }

    /// Adds what `/proc/pressure/cpu` states, Linux's record of waits for cores: the total of its first line, in
    /// microseconds. A text in another format, or an empty one, adds nothing.
    pub fn with_pressure(self, text: &str) -> CoreTime {
        let some = text.lines().next().and_then(|line| line.strip_prefix("some "));
        let total = some.and_then(|some| some.split(' ').find_map(|field| field.strip_prefix("total=")));
        CoreTime { crowded: total.and_then(|total| total.parse().ok()).map(Duration::from_micros), ..self }
    }

    /// The most by which this machine can have slowed any process since an earlier reading, `time` ago. `None`: the
    /// kernel does not tell.
    pub fn most_since(self, earlier: CoreTime, time: Duration) -> Option<Slowness> {
        Some(Slowness::at_most(time, self.crowded?.saturating_sub(earlier.crowded?)))
    }

    /// The machine's slowness for the process since an earlier reading; the default reading is the process's start.
    pub fn since(self, earlier: CoreTime) -> Slowness {
        Slowness::new(self.ran.saturating_sub(earlier.ran), self.waited.saturating_sub(earlier.waited))
    }

    /// An estimate of the machine's slowness for other, mostly sleeping processes, from a reading `time` earlier. A
    /// process that hardly ran and waited a little is not slow; one that waited for a twentieth of the time counts as
    /// twice as slow, as far as the machine was crowded at all.
    pub fn since_for_sleepers(self, earlier: CoreTime, time: Duration) -> Slowness {
        let ran = self.ran.saturating_sub(earlier.ran).max(time / ASLEEP);
        let estimate = Slowness::new(ran, self.waited.saturating_sub(earlier.waited));
        self.most_since(earlier, time).map_or(estimate, |most| estimate.min(most))
    }
}

/// The machine's recent slowness for a process that runs for days: over the last 10 readings, one of which is noted
/// each second.
#[derive(Clone, Debug, Default)]
pub struct Lately {
    readings: VecDeque<CoreTime>,
}

/// Number of readings that are kept.
const READINGS: usize = 10;
/// A process that runs for less than this fraction of its time counts as sleeping.
const ASLEEP: u32 = 20;

impl Lately {
    /// Notes a reading.
    pub fn note(&mut self, now: CoreTime) {
        if self.readings.len() == READINGS {
            self.readings.pop_front();
        }
        self.readings.push_back(now);
    }

    /// The machine's slowness since the oldest reading kept.
    pub fn slowness(&self, now: CoreTime) -> Slowness {
        self.readings.front().map_or(Slowness::NONE, |oldest| now.since(*oldest))
    }

    /// As [`CoreTime::since_for_sleepers`], for a wait that has lasted for `waited` so far: time before it does not
    /// count, because a machine that was busy then may be idle now.
    pub fn slowness_of_sleepers(&self, now: CoreTime, waited: Duration) -> Slowness {
        let count = (waited.as_secs() as usize).clamp(1, READINGS).min(self.readings.len());
        let Some(earlier) = self.readings.iter().nth_back(count.saturating_sub(1)) else { return Slowness::NONE };
        now.since_for_sleepers(*earlier, Duration::from_secs(count as u64))
    }
}

/// One wait; see the module docs. All times count from its start.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    calm: Duration,
    heard: Duration,
}

impl Patience {
    /// Starts a wait. `calm`: the limit on an idle machine.
    pub const fn new(calm: Duration) -> Patience {
        Patience { calm, heard: Duration::ZERO }
    }

    /// Notes progress, which restarts the clock.
    pub fn progress(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// The end of the wait on a machine of this slowness.
    pub fn deadline(&self, slowness: Slowness) -> Duration {
        (self.heard + slowness.stretch(self.calm)).min(self.calm * MOST)
    }

    /// The time at which to look at the machine again, because it may be less busy then. `None`: the wait is over.
    pub fn next_look(&self, now: Duration, slowness: Slowness) -> Option<Duration> {
        let deadline = self.deadline(slowness);
        (deadline > now).then(|| deadline.min(now + self.calm / 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_machine_that_is_well_gets_the_calm_limit_and_a_slow_one_more() {
        let patience = Patience::new(CALM);
        assert_eq!(patience.deadline(Slowness::NONE), CALM);
        assert_eq!(patience.deadline(Slowness::new(ms(20), ms(40))), 3 * CALM);
        assert_eq!(patience.deadline(Slowness::new(ms(20), ms(20_000))), MOST * CALM);
        let slow = Slowness::new(ms(20), ms(40));
        assert_eq!(patience.next_look(CALM, slow), Some(CALM + CALM / 8));
        assert_eq!(patience.next_look(3 * CALM - ms(1), slow), Some(3 * CALM));
        assert_eq!(patience.next_look(3 * CALM, slow), None);
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
    fn time_on_a_core_is_read_from_linux() {
        let read = CoreTime { ran: ms(2), waited: ms(6), crowded: None };
        assert_eq!(CoreTime::of_schedstat("2000000 6000000 17\n"), Some(read));
        assert_eq!(read.since(CoreTime::default()), Slowness::new(ms(2), ms(6)));
        for nonsense in ["", "1", "x y", "-1 4 4"] {
            assert_eq!(CoreTime::of_schedstat(nonsense), None, "{nonsense}");
        }
        assert_eq!(Slowness::new(Duration::from_micros(999), ms(5)), Slowness::NONE, "too little to tell");
    }

    #[test]
    fn nobody_is_slower_than_the_machine_was_crowded() {
        let pressure = |ms: u64| format!("some avg10=0.61 avg60=7.80 avg300=47.08 total={ms}000\nfull total=9\n");
        let earlier = CoreTime::default().with_pressure(&pressure(7_000));
        assert_eq!(earlier.crowded, Some(ms(7_000)));
        for nonsense in ["", "some", "full total=4", "some total=-4", "some total=4x"] {
            assert_eq!(earlier.with_pressure(nonsense).crowded, None, "{nonsense}");
        }
        let later = |crowded: u64| CoreTime { waited: ms(9_000), ..earlier.with_pressure(&pressure(7_000 + crowded)) };
        let limit = |crowded| later(crowded).since_for_sleepers(earlier, CALM).stretch(ms(6_000));
        assert_eq!(limit(0), ms(6_000));
        assert_eq!(limit(4_000), ms(10_000), "six seconds of ten in which nobody waited");
        assert_eq!(limit(5_000), ms(12_000));
        assert_eq!(limit(10_000), ms(48_000));
        assert_eq!(limit(11_000), ms(48_000), "the two clocks may differ");
        let unknown = CoreTime { crowded: None, ..later(0) };
        assert_eq!(unknown.since_for_sleepers(earlier, CALM).stretch(ms(6_000)), ms(48_000));
    }

    #[test]
    fn who_sleeps_is_late_only_where_it_waits_for_much_of_the_time() {
        let slowness = |ran, waited| {
            let (mut lately, mut time) = (Lately::default(), CoreTime::default());
            for _ in 0..READINGS {
                lately.note(time);
                time.ran += ms(ran);
                time.waited += ms(waited);
            }
            lately.slowness_of_sleepers(time, 60 * SECOND)
        };
        assert_eq!(slowness(1, 2), Slowness::new(ms(50), ms(2)));
        assert_eq!(slowness(1, 50), Slowness::new(ms(1), ms(1)), "twice as slow");
        assert_eq!(slowness(10, 200), Slowness::new(ms(1), ms(4)));
        assert_eq!(slowness(100, 200), Slowness::new(ms(1), ms(2)));
    }

    #[test]
    fn a_wait_is_not_longer_because_the_machine_was_busy_before_it() {
        let (mut lately, mut time) = (Lately::default(), CoreTime::default());
        assert_eq!(lately.slowness_of_sleepers(time, SECOND), Slowness::NONE, "nothing is known");
        for second in 0..READINGS {
            lately.note(time);
            time.ran += ms(50);
            time.waited += if second < 4 { ms(200) } else { ms(0) };
        }
        assert_eq!(lately.slowness_of_sleepers(time, 6 * SECOND), Slowness::NONE);
        assert_eq!(lately.slowness_of_sleepers(time, 7 * SECOND), Slowness::new(ms(350), ms(200)));
        assert_eq!(lately.slowness_of_sleepers(time, 70 * SECOND), Slowness::new(ms(500), ms(800)));
    }

    #[test]
    fn only_what_was_lately_counts() {
        let mut lately = Lately::default();
        let mut time = CoreTime::default();
        let mut minute = |lately: &mut Lately, waited| {
            for _ in 0..60 {
                time.ran += ms(100);
                time.waited += waited;
                lately.note(time);
            }
            lately.slowness(time)
        };
        assert_eq!(minute(&mut lately, ms(0)), Slowness::NONE);
        assert_eq!(minute(&mut lately, ms(300)), Slowness::new(ms(1), ms(3)));
        assert_eq!(minute(&mut lately, ms(0)), Slowness::NONE);
    }
}
