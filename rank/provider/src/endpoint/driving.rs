//! Progress of an endpoint: polls, waits, and the time that both may take.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Endpoint, EndpointState, Prepared, SHORTEST_WAIT, SOON, Stage};
use crate::bound::Driven;
use crate::progress::{Awaited, Pause, Ran};
use crate::wait_fd::{LONGEST, WaitFd};

impl Driven for Endpoint {
    fn poll(&self, may_nap: bool) {
        let Ok(mut state) = self.state.try_lock() else { return };
        let Stage::Open(transport) = &mut state.stage else { return };
        if transport.progress() {
            state.used.moved();
            state.idle.busy(Instant::now);
            state.prepared.quiet_since = None;
            state.pass_on(self.caps);
            return;
        }
        // Operations may fail although nothing has moved: a peer took too long.
        if transport.has_completed() {
            state.pass_on(self.caps);
        } else if may_nap {
            self.maybe_pause(&mut state, |transport| {
                if !transport.is_idle() {
                    Awaited::Departure
                } else if transport.is_awaited() {
                    Awaited::Arrival
                } else {
                    Awaited::Nothing
                }
            });
        }
    }

    fn wait(&self, time: Duration) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        self.sleep(&mut self.lock(), time);
    }

    fn arm(&self, wait: &WaitFd, by_driver: bool) -> Option<Duration> {
        if self.domain.driver.is_some() != by_driver {
            return Some(Duration::MAX);
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        let mut state = self.lock();
        let state = &mut *state;
        let Stage::Open(transport) = &mut state.stage else { return Some(Duration::MAX) };
        // If the descriptors cannot be watched (no room for another one), the wait is short.
        let most = if wait.watch(transport.wait_fds()).is_ok() { LONGEST } else { SHORTEST_WAIT };
        let Some(due) = transport.arm() else {
            state.used.moved();
            state.idle.busy(Instant::now);
            state.prepared.quiet_since = None;
            state.pass_on(self.caps);
            return None;
        };
        let most = if transport.is_idle() { most } else { most.min(SOON) };
        let quiet = state.prepared.quiet_since.get_or_insert_with(Instant::now).elapsed();
        let due = due.min((quiet / 4).clamp(SHORTEST_WAIT, most));
        state.prepared = Prepared { armed: true, due, ..state.prepared };
        Some(due)
    }
}

impl Endpoint {
    /// Wakes all threads that wait on a descriptor for this endpoint: they have to prepare their waits again.
    pub(super) fn end_waits(&self, state: &mut EndpointState) {
        if std::mem::take(&mut state.prepared.armed) {
            [&state.tx.cq, &state.rx.cq].into_iter().flatten().for_each(|cq| cq.wake());
            state.counters.all().for_each(|cntr| cntr.wake());
            if let Some(driver) = &self.domain.driver {
                driver.wait().signal();
            }
        }
    }

    /// A reader found nothing: yields or naps if that is due and no other thread waits for the endpoint.
    pub(super) fn maybe_pause(&self, state: &mut EndpointState, awaited: impl FnOnce(&endpoint::Endpoint) -> Awaited) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return;
        }
        let Stage::Open(transport) = &mut state.stage else { return };
        match state.idle.pause(Instant::now, Ran::now, || awaited(transport), state.used.others()) {
            Pause::None => return,
            Pause::Yield => {
                std::thread::yield_now();
                transport.ask_sockets_soon();
            }
            Pause::Nap(time) => self.sleep(state, time),
        }
        state.idle.woke(Instant::now(), Ran::now);
    }
}
