//! Who drives an endpoint, and when it may sleep.
//!
//! Nothing moves by itself: reading a completion queue or counter drives the endpoints bound to it. MPI libraries read
//! in a tight loop while they wait, so a reader that has found nothing for a while sleeps in the endpoint for
//! some microseconds, which gives the core to whoever is to send (other ranks, a gateway). A nap ends early when a
//! socket has something. Its length follows the time already waited, so it delays by a fraction of that time at most,
//! also where the MPI library waits for something we do not see, such as its own shared memory.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;

/// How long a reader spins before it may nap: `LANDBRIDGE_SPIN`, in microseconds, or `always`. Default 50 µs.
///
/// Raise it when every rank has a core of its own and latency counts most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// That long.
    For(Duration),
    /// Never nap.
    Always,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin::For(Duration::from_micros(50))
    }
}

impl FromStr for Spin {
    type Err = String;

    fn from_str(text: &str) -> Result<Spin, String> {
        match text {
            "" => Ok(Spin::default()),
            "always" => Ok(Spin::Always),
            number => match number.parse() {
                Ok(micros) => Ok(Spin::For(Duration::from_micros(micros))),
                Err(error) => Err(format!("LANDBRIDGE_SPIN={text}: {error}; give microseconds, or \"always\"")),
            },
        }
    }
}

/// A nap is at least that long; shorter ones cost more than they give.
const SHORTEST: Duration = Duration::from_micros(10);
/// A nap is at most that long: what arrives by a way that does not wake us waits as long.
const LONGEST: Duration = Duration::from_micros(100);
/// While bytes of ours are under way, we wait this many times longer before napping.
const PATIENCE: u32 = 20;

/// Since when an endpoint has had nothing to do.
#[derive(Debug)]
pub struct Idle {
    spin: Spin,
    since: Option<Instant>,
}

impl Idle {
    /// Just busy.
    pub fn new(spin: Spin) -> Idle {
        Idle { spin, since: None }
    }

    /// Something moved, or an operation was begun.
    pub fn busy(&mut self) {
        self.since = None;
    }

    /// Nothing moved. How long to nap now, if at all. `pending`: bytes of ours are still under way.
    pub fn nap(&mut self, now: Instant, pending: bool) -> Option<Duration> {
        let Spin::For(spin) = self.spin else { return None };
        let since = *self.since.get_or_insert(now);
        let idle = now.saturating_duration_since(since);
        let enough = if pending { spin * PATIENCE } else { spin };
        (idle > enough).then(|| (idle / 4).clamp(SHORTEST, LONGEST))
    }
}

/// Open endpoints of this process. With several, a nap in one would keep the others waiting.
pub static OPEN_ENDPOINTS: AtomicUsize = AtomicUsize::new(0);

/// The endpoints that a completion queue or counter is bound to, and so drives.
#[derive(Default)]
pub struct Bound {
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
}

impl Bound {
    pub fn add(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        if !endpoints.iter().any(|known| Arc::ptr_eq(known, endpoint)) {
            endpoints.push(endpoint.clone());
        }
    }

    pub fn remove(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|known| !Arc::ptr_eq(known, endpoint));
    }

    pub fn is_empty(&self) -> bool {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Drives the endpoints once; naps if that is due and `may_nap`. Leaves those alone that another thread is driving.
    pub fn poll(&self, may_nap: bool) {
        let Ok(endpoints) = self.endpoints.try_lock() else { return };
        let may_nap = may_nap && OPEN_ENDPOINTS.load(Ordering::Relaxed) == 1;
        endpoints.iter().for_each(|endpoint| endpoint.poll(may_nap));
    }

    /// Sleeps until something arrives at an endpoint, or the time is over; then drives them.
    pub fn wait(&self, time: Duration) {
        let endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match endpoints.len() {
            0 => std::thread::sleep(time),
            count => endpoints.iter().for_each(|endpoint| endpoint.wait(time / count as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn naps_after_spinning_and_longer_the_longer_it_is_idle() {
        let mut idle = Idle::new(Spin::For(micros(50)));
        let start = Instant::now();
        for (after, expected) in [(0, None), (50, None), (51, Some(12)), (200, Some(50)), (9000, Some(100))] {
            let nap = idle.nap(start + micros(after), false);
            assert_eq!(nap.map(|nap| nap.as_micros()), expected, "after {after} µs");
        }
        idle.busy();
        assert_eq!(idle.nap(start + micros(9000), false), None);
        assert_eq!(idle.nap(start + micros(9040), false), None);
        assert_eq!(idle.nap(start + micros(9060), false), Some(micros(15)));
    }

    #[test]
    fn spins_longer_with_bytes_under_way() {
        let mut idle = Idle::new(Spin::For(micros(50)));
        let start = Instant::now();
        assert_eq!(idle.nap(start, true), None);
        assert_eq!(idle.nap(start + micros(1000), true), None);
        assert_eq!(idle.nap(start + micros(1001), true), Some(micros(100)));
    }

    #[test]
    fn the_environment_says_how_long() {
        assert_eq!("".parse(), Ok(Spin::default()));
        assert_eq!("0".parse(), Ok(Spin::For(Duration::ZERO)));
        assert_eq!("always".parse(), Ok(Spin::Always));
        assert_eq!(Idle::new(Spin::Always).nap(Instant::now() + micros(1 << 40), false), None);
        let error = "often".parse::<Spin>().unwrap_err();
        assert!(error.contains("LANDBRIDGE_SPIN=often"), "{error}");
    }
}
