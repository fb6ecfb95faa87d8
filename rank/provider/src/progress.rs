//! Decides when a program that reads in a loop may sleep.
//!
//! Reading a completion queue or counter drives the endpoints bound to it. MPI libraries read in a tight loop while
//! they wait, so a reader that has found nothing for a while sleeps inside the endpoint. That leaves the core to the
//! process it waits for (another rank, a gateway). A nap ends early when a socket has something or a neighbour rings.
//! Its length follows the time already waited, so it delays a message by a fraction of that time at most.
//!
//! An MPI library with shared memory of its own also reads in a loop while it waits for that memory. No event there
//! ends a nap, and we cannot detect where one such wait ends and the next begins: naps would make messages there a
//! hundred times slower. So beside such memory a reader naps only if it awaits something from us. Where messages may
//! come either way, it naps only if ranks share cores; otherwise it yields.
//!
//! No fixed spin time is right everywhere: an answer takes a microsecond over memory and a hundred over a network. A
//! spin that ends just before the answer costs a core and then also the latency of waking. So the spin time adapts, as
//! KVM's halt polling does: a wait that ended soon after falling asleep lengthens the next spin, up to a limit; a wait
//! longer than any spin shortens it. The limit is the time that neighbours compute between messages, not the time that
//! a message takes. So a reader that spins for long offers its core to others (a gateway, another job) whenever it
//! reads the clock.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::setting::SettingError;

/// Time that a reader spins before it may nap: `LANDBRIDGE_SPIN`, in microseconds, or `always`. By default it adapts.
///
/// Set it to `always` when every rank has a core of its own and only latency counts, to 0 where power counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spin {
    /// Adapts to recent waits, up to `most`.
    Adaptive {
        /// Longest spin.
        most: Duration,
    },
    /// For this long.
    For(Duration),
    /// Never nap.
    Always,
}

impl Spin {
    /// Limit with fewer cores than ranks: a spinning rank takes the core from the rank that it waits for.
    pub(crate) const CROWDED: Spin = Spin::Adaptive { most: Duration::from_micros(20) };
}

impl Default for Spin {
    fn default() -> Spin {
        Spin::Adaptive { most: Duration::from_millis(2) }
    }
}

impl FromStr for Spin {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Spin, SettingError> {
        match text {
            "" => Ok(Spin::default()),
            "always" => Ok(Spin::Always),
            number => match number.parse() {
                Ok(micros) => Ok(Spin::For(Duration::from_micros(micros))),
                Err(error) => Err(SettingError::Spin(text.to_owned(), error)),
            },
        }
    }
}

/// Traffic that the MPI library may await in shared memory of its own, where no event ends a nap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnMemory {
    /// Nothing: everything comes through the provider.
    None,
    /// Windows and their locks: Open MPI's.
    Windows,
    /// Messages as well: MPICH's and Intel MPI's.
    Messages,
}

/// Settings for waiting readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitSettings {
    spin: Spin,
    /// Number of this node's ranks per core, rounded up.
    crowd: u32,
    own_memory: OwnMemory,
}

impl WaitSettings {
    /// Reads `LANDBRIDGE_SPIN`, `LANDBRIDGE_CROWDED` and `LANDBRIDGE_MPI_SHM`. The second is set where ranks share
    /// cores, to the number of ranks per core; the third where several ranks run on one node.
    ///
    /// # Errors
    /// An invalid value, with its variable.
    pub(crate) fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<WaitSettings, SettingError> {
        let set = |name: &str| lookup(name).filter(|text| !text.is_empty());
        let crowd = set("LANDBRIDGE_CROWDED").map_or(Ok(1), |text| match text.parse() {
            Ok(0) => Err(SettingError::NotCrowded),
            Ok(ranks) => Ok(ranks),
            Err(error) => Err(SettingError::Crowded(text, error)),
        })?;
        let spin = match set("LANDBRIDGE_SPIN") {
            None if crowd > 1 => Spin::CROWDED,
            text => text.unwrap_or_default().parse()?,
        };
        let own_memory = match set("LANDBRIDGE_MPI_SHM").as_deref() {
            None => OwnMemory::None,
            Some("windows") => OwnMemory::Windows,
            Some("messages") => OwnMemory::Messages,
            Some(other) => return Err(SettingError::OwnMemory(other.to_owned())),
        };
        Ok(WaitSettings { spin, crowd, own_memory })
    }

    /// Longest nap. Every nap ends with a look, and where many ranks share a core, looks alone would fill it.
    fn longest(self, of_several: bool) -> Duration {
        let times = if self.crowd <= FEW { 1 } else { self.crowd.min(MOST_CROWD) };
        (if of_several { LONGEST_OF_SEVERAL } else { LONGEST }) * times
    }
}

/// Adaptive spinning starts at `FIRST`; a spin that grows becomes at least `GROWN`.
const FIRST: Duration = Duration::from_micros(50);
const GROWN: Duration = Duration::from_micros(10);
/// A reader that spins longer than this offers its core.
const POLITE: Duration = Duration::from_micros(100);
/// The shortest nap; shorter ones cost more than they give.
const SHORTEST: Duration = Duration::from_micros(10);
/// The longest nap: with naps of this length a reader uses a few percent of a core.
const LONGEST: Duration = Duration::from_micros(1250);
/// Longest nap in a process with several endpoints in use, where a message to another one waits for the end of the nap.
const LONGEST_OF_SEVERAL: Duration = Duration::from_micros(250);
/// With more than `FEW` ranks to a core, naps are longer by the number of ranks, up to `MOST_CROWD` times.
const FEW: u32 = 4;
const MOST_CROWD: u32 = 16;
/// A waiting reader comes back sooner than this, our own work included. A reader that comes back later was busy
/// elsewhere and only looks in now and then; it must not nap. With naps in such looks, MPICH's `MPI_Get_accumulate` to
/// itself took 30 times longer, and a program that computes for 10 µs between two calls of `MPI_Test` would come to a
/// standstill. The exception is a reader that lost its core to others: where ranks share cores, a reader that yields,
/// as MPICH's do with `MPI_THREAD_MULTIPLE`, comes back as late.
const AWAY: Duration = Duration::from_micros(8);
/// The clock is read once in this many looks, because it costs as much as a look.
const LOOKS: u32 = 8;
/// While our bytes are in flight, a reader waits this many times longer before a nap, up to `MOST_PATIENT`.
const PATIENCE: u32 = 20;
const MOST_PATIENT: Duration = Duration::from_millis(4);

/// Action of a reader that has found nothing, before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Nothing: it spins.
    None,
    /// Offers its core to other processes.
    Yield,
    /// Sleeps for this time, or until something arrives.
    Nap(Duration),
}

/// Event that a reader may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Nothing of this endpoint. The reader looks in while it waits for something we do not see, such as the MPI
    /// library's own shared memory, or takes messages that come unasked.
    Nothing,
    /// A message that is yet to come.
    Arrival,
    /// The end of an operation in flight.
    Departure,
}

/// Activity of a thread so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    /// CPU time used.
    pub time: Duration,
    /// Number of times that it gave up its core to wait for something. Yielding does not count.
    pub waits: i64,
}

impl Ran {
    /// Activity of the calling thread.
    pub(crate) fn now() -> Ran {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is writable and as large as the structure that the call fills in. The call cannot fail with
        // these arguments; if it did, all zeroes would still be a valid value.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
        Ran { time: time(usage.ru_utime) + time(usage.ru_stime), waits: usage.ru_nvcsw }
    }
}

/// Idle time of an endpoint's reader.
#[derive(Debug)]
pub(crate) struct Idle {
    waiting: WaitSettings,
    /// Current spin time before a nap.
    current: Duration,
    since: Option<Instant>,
    /// True if it has napped since then.
    napped: bool,
    /// Time of the last clock reading; `looks` counts the looks since then.
    read: Option<Instant>,
    looks: u32,
    /// Activity of its thread at that time, if it came back late.
    ran: Option<Ran>,
    /// Activity count of the other endpoints at the last look.
    others: u64,
}

impl Idle {
    /// A reader that has not waited yet.
    pub(crate) fn new(waiting: WaitSettings) -> Idle {
        let current = match waiting.spin {
            Spin::Adaptive { most } => FIRST.min(most),
            Spin::For(time) => time,
            Spin::Always => Duration::MAX,
        };
        Idle { waiting, current, since: None, napped: false, read: None, looks: 0, ran: None, others: 0 }
    }

    /// Something moved, or an operation began. Reads the clock only if the spin time may change.
    pub(crate) fn busy(&mut self, clock: impl FnOnce() -> Instant) {
        let since = self.since.take();
        if !std::mem::take(&mut self.napped) {
            return;
        }
        if let (Spin::Adaptive { most }, Some(since)) = (self.waiting.spin, since) {
            let waited = clock().saturating_duration_since(since);
            self.current =
                if waited <= most { (self.current * 2).clamp(GROWN.min(most), most) } else { self.current / 2 };
        }
    }

    /// Nothing moved: decides between spinning, yielding and a nap. `ran` gives this thread's activity; it is called
    /// only if the last look was long ago. `awaited` gives the event that the reader may wait for. `others` is the
    /// activity count of the process's endpoints, if others are in use. A change restarts the idle time: while others
    /// are active, nobody waits for this endpoint alone.
    pub(crate) fn pause(
        &mut self,
        clock: impl FnOnce() -> Instant,
        ran: impl FnOnce() -> Ran,
        awaited: impl FnOnce() -> Awaited,
        others: Option<u64>,
    ) -> Pause {
        self.looks += 1;
        if self.looks < LOOKS || self.waiting.spin == Spin::Always {
            return Pause::None;
        }
        let now = clock();
        let looks = std::mem::take(&mut self.looks);
        let passed = self.read.replace(now).map_or(Duration::ZERO, |read| now.saturating_duration_since(read));
        if passed <= AWAY * looks {
            self.ran = None;
        } else if self.was_elsewhere(ran(), AWAY * looks) {
            // Time spent elsewhere does not count as waiting.
            self.since = self.since.map(|since| (since + passed).min(now));
        }
        if others.is_some_and(|others| std::mem::replace(&mut self.others, others) != others) {
            self.since = None;
        }
        let since = *self.since.get_or_insert(now);
        let idle = now.saturating_duration_since(since);
        let adaptive = matches!(self.waiting.spin, Spin::Adaptive { .. });
        let patience =
            if adaptive { (self.current.max(FIRST) * PATIENCE).min(MOST_PATIENT) } else { self.current * PATIENCE };
        let spin = if adaptive && idle > POLITE { Pause::Yield } else { Pause::None };
        let own_memory = if adaptive { self.waiting.own_memory } else { OwnMemory::None };
        if idle <= self.current || (own_memory == OwnMemory::Messages && self.waiting.crowd == 1) {
            return spin;
        }
        match awaited() {
            Awaited::Nothing if own_memory != OwnMemory::None => return Pause::Yield,
            Awaited::Departure if idle <= patience => return spin,
            Awaited::Nothing | Awaited::Arrival | Awaited::Departure => (),
        }
        self.napped = true;
        Pause::Nap((idle / 4).clamp(SHORTEST, self.waiting.longest(others.is_some())))
    }

    /// Returns true if a reader that came back late did other work, false if it only lost its core to others.
    fn was_elsewhere(&mut self, ran: Ran, late: Duration) -> bool {
        let before = self.ran.replace(ran);
        before.is_none_or(|before| before.waits != ran.waits || ran.time.saturating_sub(before.time) > late)
    }

    /// A pause is over: its time does not count as absence.
    pub(crate) fn woke(&mut self, now: Instant, ran: impl FnOnce() -> Ran) {
        self.read = Some(now);
        self.looks = 0;
        if self.ran.is_some() {
            self.ran = Some(ran());
        }
    }
}

/// Number of this process's endpoints that have carried data: Open MPI opens a second one for windows. A nap in one
/// delays the others, so all of them must be idle before a nap, and naps are then short. The first message to an
/// endpoint that has carried nothing waits for the end of a nap, like traffic we do not see.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Number of times that data moved at an endpoint while several were in use.
static MOVES: AtomicU64 = AtomicU64::new(0);

/// Records that an endpoint has carried data, for the other endpoints of its process.
#[derive(Debug, Default)]
pub(crate) struct Use {
    counted: bool,
}

impl Use {
    /// Data has moved at this endpoint.
    pub(crate) fn moved(&mut self) {
        if !std::mem::replace(&mut self.counted, true) {
            USED.fetch_add(1, Ordering::Relaxed);
        }
        if USED.load(Ordering::Relaxed) > 1 {
            MOVES.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True once it has carried data.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted
    }

    /// Activity count of this process's endpoints, if others than this one are in use.
    pub(crate) fn others(&self) -> Option<u64> {
        (USED.load(Ordering::Relaxed) > usize::from(self.counted)).then(|| MOVES.load(Ordering::Relaxed))
    }

    /// The endpoint is closed.
    pub(crate) fn end(&mut self) {
        USED.fetch_sub(usize::from(std::mem::take(&mut self.counted)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Activity of a thread that has run all the time.
    const fn busy(at: u64) -> Ran {
        Ran { time: micros(at), waits: 0 }
    }

    /// One look, at `at` µs. Returns the length of the nap, if any.
    fn nap(idle: &mut Idle, start: Instant, at: u64, others: Option<u64>) -> Option<u128> {
        napping(idle.pause(|| start + micros(at), || busy(at), || Awaited::Arrival, others))
    }

    fn napping(pause: Pause) -> Option<u128> {
        if let Pause::Nap(time) = pause { Some(time.as_micros()) } else { None }
    }

    /// Looks every microsecond from `from` to `to`, without pausing. Returns the last answer of a look that read the
    /// clock.
    fn last_pause(idle: &mut Idle, start: Instant, from: u64, to: u64, pending: bool) -> Pause {
        idle.looks = 0;
        let mut last = Pause::None;
        for at in from..=to {
            let mut asked = false;
            let answer = idle.pause(
                || {
                    asked = true;
                    start + micros(at)
                },
                || busy(at),
                || if pending { Awaited::Departure } else { Awaited::Arrival },
                None,
            );
            if asked {
                last = answer;
            }
        }
        last
    }

    /// As `last_pause`, but returns the length of the nap.
    fn look(idle: &mut Idle, start: Instant, from: u64, to: u64, pending: bool) -> Option<u128> {
        napping(last_pause(idle, start, from, to, pending))
    }

    fn new(spin: Spin) -> Idle {
        Idle::new(WaitSettings { spin, crowd: 1, own_memory: OwnMemory::None })
    }

    fn pinned(spin: u64) -> Idle {
        new(Spin::For(micros(spin)))
    }

    #[test]
    fn naps_after_spinning_and_longer_the_longer_it_waits() {
        let mut idle = pinned(50);
        let start = Instant::now();
        assert_eq!(look(&mut idle, start, 0, 50, false), None);
        assert_eq!(look(&mut idle, start, 60, 67, false), Some(15));
        assert_eq!(look(&mut idle, start, 70, 207, false), Some(49));
        assert_eq!(look(&mut idle, start, 210, 9001, false), Some(1250));
        idle.busy(|| start + micros(9000));
        assert_eq!(look(&mut idle, start, 9010, 9060, false), None, "a pinned spin stays");
        assert_eq!(look(&mut idle, start, 9070, 9077, false), Some(15));
    }

    #[test]
    fn who_looks_in_now_and_then_is_not_kept() {
        let mut idle = pinned(50);
        let start = Instant::now();
        for at in (0..100_000).step_by(9) {
            assert_eq!(nap(&mut idle, start, at, None), None, "at {at} µs");
        }
        // A nap itself is no absence, and neither is a single slow look.
        assert_eq!(look(&mut idle, start, 200_000, 200_070, false), Some(14));
        idle.woke(start + micros(200_200), || busy(200_200));
        assert_eq!(look(&mut idle, start, 200_210, 200_217, false), Some(52));
        assert!(look(&mut idle, start, 200_250, 200_257, false).is_some());
    }

    /// Looks every 100 µs for 100 ms. Between two looks the thread runs for `ran` µs and gives up its core `waits`
    /// times. Returns the number of naps.
    fn late_looks(ran: u64, waits: i64) -> usize {
        let (mut idle, start) = (pinned(50), Instant::now());
        let looks = 0..1000;
        let nap = |look: u64| {
            let done = Ran { time: micros(look * ran), waits: look as i64 * waits };
            idle.pause(|| start + micros(look * 100), || done, || Awaited::Arrival, None)
        };
        looks.map(nap).filter(|pause| napping(*pause).is_some()).count()
    }

    #[test]
    fn who_is_late_because_others_had_its_core_waits_all_the_same() {
        assert_eq!(late_looks(20, 0), 0, "it computes");
        assert_eq!(late_looks(2, 1), 0, "it reads a file");
        assert!(late_looks(2, 0) > 100, "it yields");
    }

    #[test]
    fn a_thread_knows_what_it_has_done() {
        let before = Ran::now();
        std::thread::sleep(Duration::from_millis(1));
        let slept = Ran::now();
        assert!(slept.waits > before.waits);
        let begun = Instant::now();
        while Ran::now().time < slept.time + Duration::from_millis(1) {
            assert!(begun.elapsed() < Duration::from_secs(20), "no time runs");
        }
    }

    #[test]
    fn of_several_endpoints_one_naps_when_all_are_idle_and_not_for_long() {
        let mut idle = pinned(50);
        let start = Instant::now();
        let mut busy = (0..1000).map(|at| nap(&mut idle, start, at, Some(at / 40)));
        assert!(busy.all(|nap| nap.is_none()), "another one moved every 40 µs");
        let naps: Vec<u128> = (1000..3000).filter_map(|at| nap(&mut idle, start, at, Some(25))).collect();
        assert_eq!((naps.first(), naps.last()), (Some(&14), Some(&250)));
    }

    #[test]
    fn spins_longer_with_bytes_under_way() {
        let mut idle = pinned(50);
        let start = Instant::now();
        assert_eq!(look(&mut idle, start, 0, 1000, true), None);
        assert_eq!(look(&mut idle, start, 1010, 1017, true), Some(252));
    }

    /// Waits `count` times for `each` µs, with a look every microsecond. Returns the final spin time.
    fn after_waits(spin: Spin, each: u64, count: u64) -> Duration {
        let mut idle = new(spin);
        let start = Instant::now();
        for wait in 0..count {
            let begin = wait * 1_000_000;
            look(&mut idle, start, begin, begin + each, false);
            idle.busy(|| start + micros(begin + each));
        }
        idle.current
    }

    #[test]
    fn spinning_adapts_to_how_long_waits_are() {
        let adaptive = Spin::default();
        assert_eq!(after_waits(adaptive, 30, 20), FIRST, "a spin that suffices is kept");
        assert_eq!(after_waits(adaptive, 150, 20), micros(200), "an answer that comes soon is spun for");
        assert_eq!(
            after_waits(adaptive, 1700, 20),
            micros(2000),
            "so is a neighbour that computes for a little longer"
        );
        assert!(after_waits(adaptive, 5000, 20) < micros(1), "a late one is not");
        assert!(after_waits(Spin::CROWDED, 150, 20) < micros(1));
        assert_eq!(after_waits(Spin::For(micros(70)), 5000, 20), micros(70));
    }

    #[test]
    fn who_spins_for_long_offers_its_core() {
        let mut idle = new(Spin::default());
        idle.current = micros(1000);
        let start = Instant::now();
        assert_eq!(last_pause(&mut idle, start, 0, 100, false), Pause::None);
        assert_eq!(last_pause(&mut idle, start, 110, 1000, false), Pause::Yield);
        assert_eq!(look(&mut idle, start, 1010, 1017, false), Some(252));
        assert_eq!(last_pause(&mut pinned(1000), start, 0, 1000, false), Pause::None, "a pinned spin keeps its core");
    }

    #[test]
    fn it_recovers_from_not_spinning_at_all() {
        let mut idle = new(Spin::default());
        idle.current = Duration::ZERO;
        let start = Instant::now();
        for wait in 0..8 {
            let begin = wait * 1_000_000;
            look(&mut idle, start, begin, begin + 40, false);
            idle.busy(|| start + micros(begin + 40));
        }
        assert_eq!(idle.current, micros(40));
    }

    #[test]
    fn the_environment_says_how_long() {
        let waiting = |spin: &'static str, crowd: &'static str| {
            let value = move |name: &str| match name {
                "LANDBRIDGE_SPIN" => Some(spin.to_owned()),
                "LANDBRIDGE_CROWDED" => Some(crowd.to_owned()),
                _ => None,
            };
            WaitSettings::from_env(value)
        };
        assert_eq!(
            WaitSettings::from_env(|_| None),
            Ok(WaitSettings { spin: Spin::default(), crowd: 1, own_memory: OwnMemory::None })
        );
        assert_eq!(waiting("", ""), Ok(WaitSettings { spin: Spin::default(), crowd: 1, own_memory: OwnMemory::None }));
        assert_eq!(
            waiting("0", "3"),
            Ok(WaitSettings { spin: Spin::For(Duration::ZERO), crowd: 3, own_memory: OwnMemory::None })
        );
        assert_eq!(waiting("", "3"), Ok(WaitSettings { spin: Spin::CROWDED, crowd: 3, own_memory: OwnMemory::None }));
        assert_eq!(
            waiting("always", ""),
            Ok(WaitSettings { spin: Spin::Always, crowd: 1, own_memory: OwnMemory::None })
        );
        assert_eq!(look(&mut new(Spin::Always), Instant::now(), 0, 1000, false), None);
        let error = waiting("often", "").unwrap_err().to_string();
        assert!(error.contains("LANDBRIDGE_SPIN=often"), "{error}");
        let error = WaitSettings::from_env(|name| (name == "LANDBRIDGE_MPI_SHM").then(|| "some".into()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("LANDBRIDGE_MPI_SHM=some"), "{error}");
        for crowd in ["0", "many"] {
            let error = waiting("", crowd).unwrap_err().to_string();
            assert!(error.contains(&format!("LANDBRIDGE_CROWDED={crowd}: ")), "{error}");
        }
    }

    /// The pause after 100 ms of waiting beside an MPI library with shared memory of its own.
    fn beside(own_memory: OwnMemory, spin: Spin, crowd: u32, awaited: Awaited) -> Pause {
        let mut idle = Idle::new(WaitSettings { spin, crowd, own_memory });
        let start = Instant::now();
        let mut look = |at: u64| {
            idle.looks = LOOKS;
            idle.pause(|| start + micros(at), || busy(at), || awaited, None)
        };
        for at in (0..100_000).step_by(5) {
            look(at);
        }
        look(100_000)
    }

    #[test]
    fn beside_memory_that_we_do_not_see_naps_only_who_awaits_something() {
        use OwnMemory::{Messages, Windows};
        let nap = Pause::Nap(LONGEST);
        for awaited in [Awaited::Nothing, Awaited::Arrival, Awaited::Departure] {
            let nap_if_awaited = if awaited == Awaited::Nothing { Pause::Yield } else { nap };
            assert_eq!(beside(Messages, Spin::default(), 1, awaited), Pause::Yield);
            assert_eq!(beside(Messages, Spin::CROWDED, 2, awaited), nap_if_awaited);
            assert_eq!(beside(Windows, Spin::default(), 1, awaited), nap_if_awaited);
            assert_eq!(beside(Windows, Spin::CROWDED, 2, awaited), nap_if_awaited);
            assert_eq!(beside(Messages, Spin::For(Duration::ZERO), 1, awaited), nap, "power counts");
        }
    }

    #[test]
    fn many_on_a_core_nap_longer() {
        for (crowd, longest) in [(1, 1250), (4, 1250), (8, 10_000), (64, 20_000)] {
            let mut idle = Idle::new(WaitSettings { spin: Spin::CROWDED, crowd, own_memory: OwnMemory::None });
            assert_eq!(look(&mut idle, Instant::now(), 0, 100_000, false), Some(longest));
        }
    }
}
