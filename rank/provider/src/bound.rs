//! What a completion queue or counter drives: the endpoints bound to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wait_fd::WaitFd;

/// An endpoint, which moves data only while it is driven.
pub(crate) trait Driven: Send + Sync {
    /// Moves what can be moved without waiting; naps if that is due and `may_nap`. Does
    /// nothing while another thread drives it.
    fn poll(&self, may_nap: bool);
    /// Sleeps until something arrives or the time is over, then moves what can be moved.
    fn wait(&self, time: Duration);
    /// Moves what can be moved; if nothing can, prepares for a wait on `wait`, and returns the longest time until it
    /// must be driven even if nothing arrives. What a [`Driver`](crate::driver::Driver) drives needs no other driving,
    /// so it does nothing unless `by_driver`.
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

    /// Binds one, if it is not bound yet.
    pub(crate) fn add(&self, driven: Arc<dyn Driven>) {
        let mut all = self.lock();
        if !all.iter().any(|known| is_same(known, &driven)) {
            all.push(driven);
        }
    }

    /// Forgets one.
    pub(crate) fn remove(&self, driven: &Arc<dyn Driven>) {
        self.lock().retain(|known| !is_same(known, driven));
    }

    /// Whether nothing is bound.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Drives all of them once; naps if that is due and `may_nap`. Skips those that another thread is driving.
    pub(crate) fn poll(&self, may_nap: bool) {
        let Ok(all) = self.all.try_lock() else { return };
        all.iter().for_each(|driven| driven.poll(may_nap));
    }

    /// Sleeps until something arrives at one, or the time is over; then drives them.
    pub(crate) fn wait(&self, time: Duration) {
        let all = self.lock().clone();
        match all.len() {
            0 => std::thread::sleep(time),
            count => all.iter().for_each(|driven| driven.wait(time / count as u32)),
        }
    }

    /// Prepares for a wait for all of them; see [`Driven::arm`]. `None`: something has moved. Removing one waits until
    /// this has ended.
    pub(crate) fn arm(&self, wait: &WaitFd, by_driver: bool) -> Option<Duration> {
        // Every one is driven, whatever the others return.
        let all: Vec<Option<Duration>> = self.lock().iter().map(|driven| driven.arm(wait, by_driver)).collect();
        all.into_iter().try_fold(Duration::MAX, |least, due| Some(least.min(due?)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Notes how it was driven.
    #[derive(Default)]
    pub(crate) struct Noted {
        /// For each poll, whether it was allowed to nap.
        pub polls: Mutex<Vec<bool>>,
        /// How often a wait for it was prepared.
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
