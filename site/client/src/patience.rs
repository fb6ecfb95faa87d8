//! Waits whose time limits scale with how slow this machine is; see [`types::patience`].

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use types::patience::{CoreTime, Patience, Slowness};

/// Time that this process (its first thread) has run on a core and has waited for one, and the time in which any
/// process of this machine waited for one. Zero or unknown if the kernel does not report it.
pub fn core_time() -> CoreTime {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let own = CoreTime::of_schedstat(&read("/proc/self/schedstat")).unwrap_or_default();
    own.with_pressure(&read("/proc/pressure/cpu"))
}

/// The current slowness of this machine for other processes: the number of processes that want each core. A process
/// that sleeps cannot infer from its own core time how late the process is that it waits for.
fn crowd() -> Slowness {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    crowd_of(&text, cores as u32)
}

/// As [`crowd`], from the text of `/proc/loadavg`, whose fourth field is RUNNABLE/ALL. This process is one of the
/// runnable ones.
fn crowd_of(text: &str, cores: u32) -> Slowness {
    let runnable = text.split_whitespace().nth(3).and_then(|field| field.split('/').next()?.parse().ok());
    let others = runnable.unwrap_or(1u32).saturating_sub(1);
    let second = Duration::from_secs(1);
    Slowness::new(second, (second * others / cores.max(1)).saturating_sub(second))
}

/// The slowness of this machine since `before`, which was `time` ago, for this process and for those that it waits for.
/// A process that waits has mostly slept.
pub fn slowness_in(time: Duration, before: CoreTime) -> Slowness {
    let (now, crowd) = (core_time(), crowd());
    let own = now.since_for_sleepers(before, time);
    let estimate = if own > crowd { own } else { crowd };
    now.most_since(before, time).map_or(estimate, |most| estimate.min(most))
}

/// A wait in synchronous code. Its limit grows if the machine is slow for this process, or was.
#[derive(Debug)]
pub struct Wait {
    begun: std::time::Instant,
    before: CoreTime,
    patience: Patience,
    limit: Duration,
}

impl Wait {
    /// Starts a wait. `calm`: its limit on a machine that is not overloaded.
    pub fn new(calm: Duration) -> Wait {
        Wait { begun: std::time::Instant::now(), before: core_time(), patience: Patience::new(calm), limit: calm }
    }

    /// Time for which to wait before the next call; `None`: the wait is over. The machine's load is read only after the
    /// limit of an idle machine.
    pub fn left(&mut self) -> Option<Duration> {
        let (before, elapsed) = (self.before, self.begun.elapsed());
        self.left_on(elapsed, || slowness_in(elapsed, before))
    }

    fn left_on(&mut self, elapsed: Duration, slowness: impl FnOnce() -> Slowness) -> Option<Duration> {
        if elapsed >= self.limit {
            self.limit = self.patience.next_look(elapsed, slowness())?;
        }
        self.limit.checked_sub(elapsed).filter(|left| !left.is_zero())
    }

    /// Time since the wait began.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// Waits for `future`: for `calm` on a machine that is not overloaded, and longer on a slower one. Calls `slowness`
/// after `calm`, and again and again while it waits longer.
///
/// # Errors
/// The time waited, if the limit was exceeded.
pub async fn patiently<T>(
    calm: Duration,
    slowness: impl Fn() -> Slowness,
    future: impl Future<Output = T>,
) -> Result<T, Duration> {
    let begun = Instant::now();
    let patience = Patience::new(calm);
    tokio::pin!(future);
    let mut limit = calm;
    loop {
        if let Ok(done) = timeout_at(begun + limit, &mut future).await {
            return Ok(done);
        }
        limit = patience.next_look(begun.elapsed(), slowness()).ok_or(limit)?;
    }
}

/// Like [`patiently`], with the slowness of this machine while this process waits.
///
/// # Errors
/// As [`patiently`].
pub async fn patiently_here<T>(calm: Duration, future: impl Future<Output = T>) -> Result<T, Duration> {
    let (before, begun) = (core_time(), Instant::now());
    patiently(calm, || slowness_in(begun.elapsed(), before), future).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use super::*;

    const CALM: Duration = Duration::from_secs(5);

    fn slow(factor: u64) -> Slowness {
        Slowness::new(Duration::from_secs(1), Duration::from_secs(factor - 1))
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_well_gets_the_calm_limit() {
        let begun = Instant::now();
        assert_eq!(patiently(CALM, || Slowness::NONE, pending::<()>()).await, Err(CALM));
        assert_eq!(begun.elapsed(), CALM);
        let late = tokio::time::sleep(CALM + Duration::from_millis(1));
        assert!(patiently(CALM, || Slowness::NONE, late).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_late_on_a_slow_machine_is_taken() {
        let late = async {
            tokio::time::sleep(CALM * 2).await;
            7
        };
        assert_eq!(patiently(CALM, || slow(3), late).await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_becomes_slower_and_slower_has_an_end_too() {
        let (begun, asked) = (Instant::now(), Cell::new(1));
        let slowness = || {
            asked.set(asked.get() + 1);
            slow(asked.get())
        };
        assert_eq!(patiently(CALM, slowness, pending::<()>()).await, Err(CALM * types::patience::MOST));
        assert_eq!(begun.elapsed(), CALM * types::patience::MOST);
        // It was busy, and no longer is.
        let (begun, busy) = (Instant::now(), Cell::new(3));
        let slowness = || slow(busy.replace(2));
        assert_eq!(patiently(CALM, slowness, pending::<()>()).await, Err(CALM * 2));
        assert_eq!(begun.elapsed(), CALM * 2);
    }

    #[test]
    fn a_crowd_is_slow_for_those_that_are_waited_for() {
        assert_eq!(crowd_of("0.1 0.2 0.3 1/300 4711\n", 2), Slowness::NONE);
        assert_eq!(crowd_of("0.1 0.2 0.3 3/300 4711\n", 2), Slowness::NONE);
        assert_eq!(crowd_of("28.0 9.0 3.0 29/300 4711\n", 2), slow(14));
        assert_eq!(crowd_of("", 2), Slowness::NONE);
    }

    #[test]
    fn linux_says_how_long_this_process_ran() {
        let before = core_time();
        let until = std::time::Instant::now() + Duration::from_millis(30);
        while std::time::Instant::now() < until {}
        // The process's first thread waits for this one, so it may not have run.
        assert!(core_time().ran >= before.ran);
        assert_ne!(core_time(), CoreTime::default());
    }

    #[test]
    fn a_wait_is_longer_on_a_slow_machine_and_ends_there_too() {
        let (calm, second) = (CALM * 2, Duration::from_secs(1));
        let mut wait = Wait::new(calm);
        assert_eq!(wait.left_on(4 * second, || unreachable!("nobody asks the machine yet")), Some(6 * second));
        assert_eq!(wait.left_on(calm, || Slowness::new(second, second)), Some(calm / 8));
        assert_eq!(wait.left_on(2 * calm, || Slowness::new(second, second)), None);
        assert_eq!(wait.left_on(8 * calm, || Slowness::new(second, 99 * second)), None);
    }
}
