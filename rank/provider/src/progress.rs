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

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use types::settings;

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

impl From<settings::Spin> for Spin {
    fn from(chosen: settings::Spin) -> Spin {
        match chosen {
            settings::Spin::For(time) => Spin::For(time),
            settings::Spin::Always => Spin::Always,
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
        let spin = match set(settings::SPIN) {
            Some(text) => settings::spin(&text)?.into(),
            None if crowd > 1 => Spin::CROWDED,
            None => Spin::default(),
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
mod tests;
