//! The endpoints that a completion queue or counter drives.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wait_fd::WaitFd;

/// An endpoint, which moves data only while it is driven.
pub(crate) trait Driven: Send + Sync {
    /// Moves data without waiting; naps if that is due and `may_nap`. Does nothing while another thread drives the
    /// endpoint.
    fn poll(&self, may_nap: bool);
    /// Sleeps until something arrives or the time is over, then moves data.
    fn wait(&self, time: Duration);
    /// Moves data. If nothing moved, prepares for a wait on `wait` and returns the time limit after which the endpoint
    /// must be driven even if nothing arrives. An endpoint driven by a [`Driver`](crate::driver::Driver) needs no other
    /// driving, so for it this does nothing unless `by_driver`.
    fn arm(&self, wait: &WaitFd, by_driver: bool) -> Option<Duration>;
}

/// The endpoints that a completion queue or counter is bound to, and so drives.
#[derive(Default)]
pub(crate) struct Bound {
    all: Mutex<Vec<Arc<dyn Driven>>>,
}

fn is_same(one: &Arc<dyn Driven>, other: &Arc<dyn Driven>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

impl Bound {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Driven>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds an endpoint, if it is not bound yet.
    pub(crate) fn add(&self, driven: Arc<dyn Driven>) {
        let mut all = self.lock();
        if !all.iter().any(|known| is_same(known, &driven)) {
            all.push(driven);
        }
    }

    /// Unbinds an endpoint.
    pub(crate) fn remove(&self, driven: &Arc<dyn Driven>) {
        self.lock().retain(|known| !is_same(known, driven));
    }

    /// Returns true if nothing is bound.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Drives all of them once; naps if that is due and `may_nap`. Skips those that another thread is driving.
    pub(crate) fn poll(&self, may_nap: bool) {
        let Ok(all) = self.all.try_lock() else { return };
        all.iter().for_each(|driven| driven.poll(may_nap));
    }

    /// Waits at each endpoint in turn, for an equal share of `time`; see [`Driven::wait`].
    pub(crate) fn wait(&self, time: Duration) {
        let all = self.lock().clone();
        match all.len() {
            0 => std::thread::sleep(time),
            count => all.iter().for_each(|driven| driven.wait(time / count as u32)),
        }
    }

    /// Prepares a wait for all endpoints; see [`Driven::arm`]. `None`: something has moved. [`Bound::remove`] waits
    /// until this has ended.
    pub(crate) fn arm(&self, wait: &WaitFd, by_driver: bool) -> Option<Duration> {
        // Drives every endpoint, even after one has returned `None`.
        let all: Vec<Option<Duration>> = self.lock().iter().map(|driven| driven.arm(wait, by_driver)).collect();
        all.into_iter().try_fold(Duration::MAX, |least, due| Some(least.min(due?)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Records how it was driven.
    #[derive(Default)]
    pub(crate) struct Noted {
        /// For each poll, true if it was allowed to nap.
        pub polls: Mutex<Vec<bool>>,
        /// Number of prepared waits.
        pub armed: AtomicUsize,
    }

    impl Driven for Noted {
        fn poll(&self, may_nap: bool) {
            self.polls.lock().unwrap().push(may_nap);
        }

        fn wait(&self, _: Duration) {}

        fn arm(&self, _: &WaitFd, _: bool) -> Option<Duration> {
            self.armed.fetch_add(1, Ordering::SeqCst);
            Some(Duration::from_millis(1))
        }
    }

    #[test]
    fn each_is_bound_once_and_driven_until_it_is_removed() {
        let (bound, noted) = (Bound::default(), Arc::new(Noted::default()));
        let driven: Arc<dyn Driven> = noted.clone();
        bound.add(driven.clone());
        bound.add(noted.clone());
        bound.poll(false);
        assert_eq!(*noted.polls.lock().unwrap(), [false]);
        bound.remove(&driven);
        assert!(bound.is_empty());
        bound.poll(true);
        assert_eq!(*noted.polls.lock().unwrap(), [false]);
    }
}
