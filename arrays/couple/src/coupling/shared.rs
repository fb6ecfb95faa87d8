//! The state of a coupling behind a lock, for the program's calls and for its thread, and waits for a change of it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::state::CouplingState;
use crate::call::{CallError, Patience};
use crate::exchange::{Exchange, ExchangeError, Party};
use crate::helper::HelperEnd;

/// The longest sleep of the thread: the endpoint checks its connections for silence at this interval.
const LONGEST: Duration = Duration::from_millis(250);

pub(super) struct SharedCoupling {
    pub(super) state: Mutex<CouplingState>,
    /// Notified when the thread has moved bytes, and when the exchange has ended.
    pub(super) changed: Condvar,
    /// Wakes the thread.
    pub(super) wake: OwnedFd,
    pub(super) ended: AtomicBool,
    pub(super) watcher: Mutex<Option<EndWatcher>>,
}

/// Called once with the reason, when the exchange has ended.
pub(super) type EndWatcher = Box<dyn FnOnce(&str) + Send>;

impl SharedCoupling {
    pub(super) fn lock(&self) -> MutexGuard<'_, CouplingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        // The counter cannot overflow: the thread resets it.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn fail(&self, over: &HelperEnd) {
        self.end(|exchange| match over.is_lost {
            true => exchange.fail_alone(over.reason.clone(), format!("the other side has left: {}", over.reason)),
            false => exchange.fail(over.reason.clone(), Some(Party { own: false, process: 0 })),
        });
    }

    /// Ends the exchange, and every wait on it.
    pub(super) fn end(&self, end: impl FnOnce(&mut Exchange)) {
        let mut state = self.lock();
        end(&mut state.exchange);
        self.step(state);
        self.changed.notify_all();
    }

    /// Moves bytes without blocking, and wakes the thread for the rest.
    pub(super) fn step(&self, mut state: MutexGuard<'_, CouplingState>) {
        state.step();
        drop(state);
        self.wake();
    }

    /// Waits until `done` returns a result.
    pub(super) fn until<T>(
        &self,
        patience: &mut Patience<'_>,
        what: impl Fn() -> String,
        mut done: impl FnMut(&mut CouplingState) -> Result<Option<T>, ExchangeError>,
    ) -> Result<T, CallError> {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            state.step();
            if let Some(result) = done(&mut state)? {
                self.step(state);
                return Ok(result);
            }
            if let Some(limit) = patience.limit.filter(|limit| begun.elapsed() >= *limit) {
                return Err(CallError::Slow { what: what(), seconds: limit.as_secs_f64() });
            }
            self.wake();
            let nap = Duration::from_millis(100);
            state = self.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
            drop(state);
            if (patience.stop)() {
                return Err(CallError::Interrupted);
            }
            state = self.lock();
        }
    }

    pub(super) fn run(&self, sleeps_on: &[OwnedFd]) {
        while !self.ended.load(Ordering::SeqCst) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            let mut state = self.lock();
            let moved = state.step();
            let due = if moved { None } else { state.endpoint.arm() };
            let over = state.exchange.check().err();
            drop(state);
            if let Some(ExchangeError::Over(reason)) = over {
                let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take();
                watcher.into_iter().for_each(|watcher| watcher(&reason));
            }
            if moved {
                self.changed.notify_all();
            }
            let Some(due) = due else { continue };
            let due = due.min(LONGEST);
            let due = Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() };
            let mut fds: Vec<PollFd<'_>> =
                sleeps_on.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
            // An interrupted or failed wait counts as a short one.
            let _ = poll(&mut fds, Some(&due));
        }
    }
}
