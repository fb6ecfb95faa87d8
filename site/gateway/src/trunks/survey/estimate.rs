//! Estimates of a trunk's rate and round trip, from the traffic that passes anyway. No I/O, no clock.
//!
//! The kernel samples the rate at which a connection delivers (`tcp_info::Delivery`). A sample that the application
//! limited does not describe the path and is discarded. So is an old sample that an idle connection still shows. The
//! links of a trunk share the path, so a trunk's sample is the sum over its links at one moment. If two looks are
//! further apart, the sum is limited to the rate that all links carried, or to the highest sample of one link if that
//! is higher.
//!
//! TCP starts slowly: samples are taken together in *busy periods*, and the best of the last seconds counts (as in BBR,
//! whose bandwidth filter is a maximum too). A short period may raise the estimate. Only a period that was long enough
//! for TCP to leave slow start may lower it, or be the first.

use std::collections::VecDeque;
use std::time::Duration;

use tcp_info::Delivery;

/// Interval at which a trunk is looked at while it carries something.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Age at which a rate is stale: it is measured again when a job needs it.
pub(crate) const STALE: Duration = Duration::from_secs(300);

/// Samples of several links that are taken further apart than this, as on a busy machine, are not of one moment: the
/// links may have taken turns, and each shows the whole path.
const MOMENT: Duration = Duration::from_millis(150);
/// A busy period ends after this long without a sample.
const GAP: Duration = Duration::from_millis(350);
/// Samples of a busy period that count: those of the last two seconds.
const SAMPLES: usize = 20;
/// Consecutive samples that are averaged, because a single one covers about one round trip.
const TOGETHER: usize = 3;
/// Number of round trips after which slow start is over: TCP doubles the bytes in flight in each, from 10 segments on.
const SLOW_START: u32 = 10;
/// Round trip to assume while it is unknown.
const USUAL: Duration = Duration::from_millis(100);
/// Least settling time where the kernel cannot see the path: buffers of other processes fill first.
const BLIND: Duration = Duration::from_secs(1);
/// Bytes that a busy period must have carried to raise the estimate; it needs [`LOWERS`] to lower it, or to be the
/// first. A first estimate out of slow start misleads: a link that looks slow is not used, and so keeps its figure.
const RAISES: u64 = 512 << 10;
const LOWERS: u64 = 1 << 20;
/// A lower sample confirms the estimate if it is at least this part of it.
const CONFIRMS: f64 = 0.85;
/// Number of the last pings; the shortest counts.
const PINGS: usize = 3;

/// One link at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// Bytes that the peer's kernel has acknowledged, and the last sample of delivery. `None`: this machine's kernel
    /// does not see the path, or is too old.
    pub kernel: Option<(u64, Option<Delivery>)>,
    /// The kernel's shortest round trip, if it sees the path.
    pub shortest: Option<Duration>,
    /// Bytes of frames handed to the link, and those of them that are queued here.
    pub sent: u64,
    pub queued: u64,
}

/// The bytes that a link carried between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Carried {
    pub bytes: u64,
    /// The rate in bytes per second, if the path limited it rather than the application.
    pub limit: Option<f64>,
}

impl Look {
    /// The bytes carried since `before`, in `passed`.
    pub(crate) fn since(&self, before: &Look, passed: Duration) -> Carried {
        let seconds = passed.as_secs_f64().max(1e-6);
        if let (Some((acknowledged, delivery)), Some((earlier, old))) = (self.kernel, before.kernel) {
            let bytes = acknowledged.saturating_sub(earlier);
            let limit = delivery.filter(|new| {
                // An idle connection shows its last sample again and again.
                let is_new =
                    old.map(|old| old.rate) != Some(new.rate) || bytes as f64 >= new.rate as f64 * seconds / 2.0;
                !new.application_limited && bytes > 0 && is_new
            });
            return Carried { bytes, limit: limit.map(|delivery| delivery.rate as f64) };
        }
        let left = |look: &Look| look.sent.saturating_sub(look.queued);
        let bytes = left(self).saturating_sub(left(before));
        // Bytes were queued at both looks, so the connection took all that it could.
        let limited = self.queued > 0 && before.queued > 0 && bytes > 0;
        Carried { bytes, limit: limited.then_some(bytes as f64 / seconds) }
    }
}

/// A rate, with the time and the way of its measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Bytes per second.
    pub bytes_s: f64,
    /// Time on the gateway's clock.
    pub at: Duration,
    /// True if a transfer for this purpose measured it.
    pub active: bool,
}

/// The estimate for one trunk, in the direction in which this gateway sends.
#[derive(Debug, Default)]
pub(crate) struct Estimate {
    rate: Option<Rate>,
    round_trip: Option<Duration>,
    pings: VecDeque<Duration>,
    period: Option<Period>,
}

/// A time in which the path limited the trunk.
#[derive(Debug)]
struct Period {
    begun: Duration,
    last: Duration,
    bytes: u64,
    samples: VecDeque<f64>,
}

impl Period {
    /// The best mean of consecutive samples.
    fn best(&self) -> f64 {
        let samples: Vec<f64> = self.samples.iter().copied().collect();
        let together = samples.len().clamp(1, TOGETHER);
        samples.windows(together).map(|some| some.iter().sum::<f64>() / together as f64).fold(0.0, f64::max)
    }
}

impl Estimate {
    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// The round trip without queueing.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Returns true if the rate is unknown or too old to rely on.
    pub(crate) fn is_stale(&self, now: Duration) -> bool {
        self.rate.is_none_or(|rate| now.saturating_sub(rate.at) >= STALE)
    }

    /// Takes the bytes that each link of the trunk carried in the last `passed`. `blind`: the kernel does not see the
    /// path.
    pub(crate) fn carried(&mut self, links: &[Carried], passed: Duration, now: Duration, blind: bool) {
        if links.iter().all(|link| link.limit.is_none()) {
            self.period.take_if(|period| now.saturating_sub(period.last) > GAP);
            return;
        }
        let seconds = passed.as_secs_f64().max(1e-6);
        let sum: f64 = links.iter().map(|link| link.limit.unwrap_or(link.bytes as f64 / seconds)).sum();
        let sample = match passed > MOMENT {
            true => {
                let carried = links.iter().map(|link| link.bytes as f64).sum::<f64>() / seconds;
                sum.min(links.iter().filter_map(|link| link.limit).fold(carried, f64::max))
            }
            false => sum,
        };
        let new = || Period { begun: now, last: now, bytes: 0, samples: VecDeque::new() };
        self.period.take_if(|period| now.saturating_sub(period.last) > GAP);
        let period = self.period.get_or_insert_with(new);
        if period.samples.len() == SAMPLES {
            period.samples.pop_front();
        }
        period.samples.push_back(sample);
        period.last = now;
        period.bytes = links.iter().map(|link| link.bytes).fold(period.bytes, u64::saturating_add);
        let settling = self.round_trip.unwrap_or(USUAL) * SLOW_START;
        let settling = if blind { settling.max(BLIND) } else { settling };
        let settled = now.saturating_sub(period.begun) >= settling && period.bytes >= LOWERS;
        let (best, bytes, several) = (period.best(), period.bytes, period.samples.len() > 1);
        let raises = settled || (bytes >= RAISES && several && !blind);
        let bytes_s = match self.rate {
            None if settled => best,
            Some(old) if settled || (raises && best > old.bytes_s) => best.max(if settled { 0.0 } else { old.bytes_s }),
            Some(old) if raises && best >= old.bytes_s * CONFIRMS => old.bytes_s,
            _ => return,
        };
        self.rate = Some(Rate { bytes_s, at: now, active: false });
    }

    /// Takes the result of a transfer for this purpose.
    pub(crate) fn measured(&mut self, bytes_s: f64, now: Duration) {
        self.rate = Some(Rate { bytes_s, at: now, active: true });
        self.period = None;
    }

    /// Takes the round trip of a ping over the idle trunk.
    pub(crate) fn pinged(&mut self, round_trip: Duration) {
        if self.pings.len() == PINGS {
            self.pings.pop_front();
        }
        self.pings.push_back(round_trip);
        self.round_trip = self.pings.iter().min().copied();
    }

    /// Takes the kernel's shortest round trip while the trunk is busy, when pings would wait in queues. The kernel's
    /// minimum covers minutes, so it counts only while no other is known, or if it is shorter than at the last look,
    /// `before`.
    pub(crate) fn shortest(&mut self, now: Option<Duration>, before: Option<Duration>) {
        let Some(shortest) = now else { return };
        let is_new = before.is_some_and(|before| shortest < before);
        if self.round_trip.is_none_or(|known| is_new && shortest < known) {
            self.round_trip = Some(shortest);
        }
    }

    /// An estimate for the same trunk, without a rate.
    pub(crate) fn afresh(&self) -> Estimate {
        Estimate { round_trip: self.round_trip, ..Estimate::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 125_000.0;

    /// A trunk of one link in virtual time.
    struct Path {
        estimate: Estimate,
        now: Duration,
        look: Look,
    }

    impl Path {
        fn new(round_trip_ms: u64) -> Path {
            let mut estimate = Estimate::default();
            estimate.pinged(Duration::from_millis(round_trip_ms));
            Path { estimate, now: Duration::from_secs(1), look: Look { kernel: Some((0, None)), ..Look::default() } }
        }

        /// Lets a tick pass in which the kernel samples this rate.
        fn tick(&mut self, mbit_s: f64, application_limited: bool, bytes: u64) {
            let rate = (mbit_s * MBIT) as u64;
            let acknowledged = self.look.kernel.unwrap().0 + bytes;
            let look = Look { kernel: Some((acknowledged, Some(Delivery { rate, application_limited }))), ..self.look };
            self.now += TICK;
            self.estimate.carried(&[look.since(&self.look, TICK)], TICK, self.now, false);
            self.look = look;
        }

        /// Sends as fast as the path allows for this many ticks.
        fn stream(&mut self, mbit_s: f64, ticks: usize) {
            (0..ticks).for_each(|_| self.tick(mbit_s, false, (mbit_s * MBIT / 10.0) as u64));
        }

        fn mbit_s(&self) -> Option<f64> {
            self.estimate.rate().map(|rate| (rate.bytes_s / MBIT).round())
        }
    }

    #[test]
    fn slow_start_shows_no_rate() {
        let mut path = Path::new(40);
        for mbit_s in [2.0, 4.0, 8.0] {
            path.tick(mbit_s, false, (mbit_s * MBIT / 10.0) as u64);
        }
        assert_eq!(path.mbit_s(), None);
        path.stream(100.0, 10);
        assert_eq!(path.mbit_s(), Some(100.0));
    }

    #[test]
    fn samples_that_the_application_limited_are_discarded() {
        let mut path = Path::new(20);
        (0..50).for_each(|_| path.tick(3.0, true, 40_000));
        assert_eq!(path.mbit_s(), None);
        path.stream(100.0, 10);
        assert_eq!(path.mbit_s(), Some(100.0));
        (0..100).for_each(|_| path.tick(2.0, true, 25_000));
        assert_eq!(path.mbit_s(), Some(100.0));
        // The kernel still shows the last sample that was not limited, while a few bytes are sent.
        let before = path.estimate.rate().unwrap().at;
        (0..100).for_each(|_| path.tick(2.0, false, 100));
        assert_eq!((path.mbit_s(), path.estimate.rate().unwrap().at), (Some(100.0), before));
    }

    #[test]
    fn drift_is_followed_both_ways() {
        let mut path = Path::new(20);
        path.stream(100.0, 30);
        for mbit_s in [20.0, 200.0, 150.0, 10.0, 11.0] {
            path.stream(mbit_s, 25);
            assert_eq!(path.mbit_s(), Some(mbit_s));
        }
    }

    #[test]
    fn slow_start_lowers_nothing() {
        let mut path = Path::new(50);
        path.stream(400.0, 30);
        for _ in 0..20 {
            // Short messages after pauses: the window limits them, not the path.
            (0..10).for_each(|_| path.tick(1.0, true, 0));
            path.stream(2.0, 2);
        }
        assert_eq!(path.mbit_s(), Some(400.0));
        let mut path = Path::new(50);
        // The beginning of a long transfer is forgotten.
        [1.0, 4.0, 16.0, 64.0, 256.0].into_iter().for_each(|mbit_s| path.stream(mbit_s, 1));
        path.stream(300.0, 10);
        assert_eq!(path.mbit_s(), Some(300.0));
    }

    #[test]
    fn a_short_transfer_is_enough_to_raise_but_a_probe_of_64_kilobytes_is_not() {
        let mut path = Path::new(20);
        path.tick(10.0, false, 64 << 10);
        assert_eq!(path.mbit_s(), None);
        path.stream(50.0, 30);
        (0..10).for_each(|_| path.tick(1.0, true, 0));
        path.tick(300.0, false, 64 << 10);
        assert_eq!(path.mbit_s(), Some(50.0));
        (0..10).for_each(|_| path.tick(1.0, true, 0));
        [80.2, 79.8, 80.0].into_iter().for_each(|mbit_s| path.tick(mbit_s, false, 300 << 10));
        assert_eq!(path.mbit_s(), Some(80.0));
    }

    #[test]
    fn an_idle_trunk_becomes_stale_and_keeps_its_value() {
        let mut path = Path::new(20);
        assert!(path.estimate.is_stale(path.now));
        path.stream(100.0, 20);
        assert!(!path.estimate.is_stale(path.now + STALE - TICK) && path.estimate.is_stale(path.now + STALE));
        assert_eq!(path.mbit_s(), Some(100.0));
        path.estimate.measured(90.0 * MBIT, path.now + STALE);
        assert!(!path.estimate.is_stale(path.now + STALE) && path.estimate.rate().unwrap().active);
    }

    #[test]
    fn links_are_added_at_one_moment() {
        let mut estimate = Estimate::default();
        estimate.pinged(Duration::from_millis(10));
        let links = |limits: &[Option<f64>]| -> Vec<Carried> {
            limits.iter().map(|limit| Carried { bytes: 500_000, limit: limit.map(|mbit_s| mbit_s * MBIT) }).collect()
        };
        for tick in 0u32..20 {
            // Of four links that share 160 Mbit/s, one has little to send; later all have.
            let limits = if tick < 10 { [Some(40.0), Some(40.0), Some(40.0), None] } else { [Some(40.0); 4] };
            estimate.carried(&links(&limits), TICK, TICK * tick, false);
        }
        assert_eq!((estimate.rate().unwrap().bytes_s / MBIT).round(), 160.0);
    }

    #[test]
    fn links_that_take_turns_between_late_looks_are_not_added() {
        let (ms, mbit) = (Duration::from_millis, |mbit_s: f64| mbit_s * MBIT);
        let late = ms(300);
        let play = |links: [Carried; 2]| {
            let mut estimate = Estimate::default();
            estimate.pinged(ms(40));
            (1u32..20).for_each(|tick| estimate.carried(&links, late, late * tick, false));
            (estimate.rate().unwrap().bytes_s / MBIT).round()
        };
        // Each link had the path of 20 Mbit/s alone for half of the time; both shared it all the time; one of them
        // stopped half way.
        let carried = |limit: f64, share: f64| {
            let bytes = (mbit(20.0) * share * late.as_secs_f64()) as u64;
            Carried { bytes, limit: Some(mbit(limit)) }
        };
        assert_eq!(play([carried(20.0, 0.5), carried(20.0, 0.5)]), 20.0);
        assert_eq!(play([carried(10.0, 0.5), carried(10.0, 0.5)]), 20.0);
        assert_eq!(play([carried(10.0, 0.25), carried(20.0, 0.75)]), 20.0);
    }

    #[test]
    fn where_the_kernel_does_not_see_the_path_the_queue_shows_it() {
        let look = |sent, queued| Look { sent, queued, ..Look::default() };
        let carried = look(1_000_000, 400_000).since(&look(500_000, 300_000), TICK);
        assert_eq!(carried, Carried { bytes: 400_000, limit: Some(4e6) });
        assert_eq!(look(500_000, 0).since(&look(0, 0), TICK), Carried { bytes: 500_000, limit: None });
        let mut estimate = Estimate::default();
        estimate.pinged(Duration::from_millis(10));
        let full = [Carried { bytes: 1 << 20, limit: Some(1e7) }];
        estimate.carried(&full, TICK, TICK, true);
        assert_eq!(estimate.rate(), None, "buffers of another process may have taken it");
        (2..15).for_each(|tick| estimate.carried(&full, TICK, TICK * tick, true));
        assert_eq!(estimate.rate().map(|rate| rate.bytes_s), Some(1e7));
    }

    #[test]
    fn the_round_trip_follows_pings_and_busy_times_only_lower_it() {
        let (mut estimate, ms) = (Estimate::default(), Duration::from_millis);
        estimate.shortest(Some(ms(30)), None);
        assert_eq!(estimate.round_trip(), Some(ms(30)));
        [22, 20, 25].into_iter().for_each(|trip| estimate.pinged(ms(trip)));
        assert_eq!(estimate.round_trip(), Some(ms(20)));
        estimate.shortest(Some(ms(40)), Some(ms(41)));
        estimate.shortest(Some(ms(18)), Some(ms(18)));
        assert_eq!(estimate.round_trip(), Some(ms(20)), "the kernel remembers a path that was shorter");
        estimate.shortest(Some(ms(19)), Some(ms(21)));
        assert_eq!(estimate.round_trip(), Some(ms(19)), "it has become shorter");
        [50, 52, 51].into_iter().for_each(|trip| estimate.pinged(ms(trip)));
        assert_eq!(estimate.round_trip(), Some(ms(50)), "the path has become longer");
    }
}
