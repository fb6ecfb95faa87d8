//! The descriptor behind `FI_WAIT_FD`: readable when its queue or counter should be read.
//!
//! It is an epoll descriptor over three kinds of descriptors. The first kind belongs to the endpoints that the object
//! drives, because nothing arrives without a call: sockets, and the doorbell that neighbours ring after writing to our
//! memory. The second is an event descriptor, which another thread signals after it has added to the object. The third
//! is a timer, which becomes readable when an endpoint has timed work, such as a retransmission.
//!
//! `fi_trywait`, or `fi_cq_sread` itself, prepares a wait: it calls [`WaitFd::begin`], arms the endpoints, checks the
//! object, and calls [`WaitFd::set_timer`]. Any event after `begin` makes the descriptor readable.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

/// Longest time without a look at an endpoint: it checks its connections for silence at this interval.
pub(crate) const LONGEST: Duration = Duration::from_millis(250);

/// A descriptor to wait on.
pub(crate) struct WaitFd {
    epoll: OwnedFd,
    event: OwnedFd,
    timer: OwnedFd,
    /// If true, a signal has to write to `event`.
    armed: AtomicBool,
    /// Descriptors of endpoints in `epoll`.
    watched: Mutex<Vec<RawFd>>,
}

impl WaitFd {
    /// Opens a descriptor. Until the first [`WaitFd::begin`] every signal makes it readable.
    pub(crate) fn new() -> Result<WaitFd, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &event, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&epoll, &timer, EventData::new_u64(0), EventFlags::IN)?;
        Ok(WaitFd { epoll, event, timer, armed: AtomicBool::new(true), watched: Mutex::default() })
    }

    /// The descriptor for the user to poll.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Makes the descriptor readable, if this has not been done since the last [`WaitFd::begin`].
    pub(crate) fn signal(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            // The event cannot be full: it is emptied before it is armed.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Clears earlier signals; later ones make the descriptor readable again.
    pub(crate) fn begin(&self) {
        // Without an earlier signal there is nothing to read. A signal that is just being written ends this wait early.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Makes the descriptor readable after this time; replaces the earlier time. [`Duration::MAX`] disarms the timer.
    pub(crate) fn set_timer(&self, time: Duration) {
        // A timer of zero never fires.
        let time = if time == Duration::MAX { Duration::ZERO } else { time.max(Duration::from_micros(1)) };
        let it_value = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval, it_value };
        // The arguments are valid, and there is no other cause of failure.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
    }

    /// Watches an endpoint's descriptors, unless they are watched already.
    pub(crate) fn watch<'a>(&self, fds: impl Iterator<Item = BorrowedFd<'a>>) -> Result<(), Errno> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for fd in fds {
            if !watched.contains(&fd.as_raw_fd()) {
                epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
                watched.push(fd.as_raw_fd());
            }
        }
        Ok(())
    }

    /// Stops watching the descriptors of an endpoint that is about to close.
    pub(crate) fn unwatch<'a>(&self, fds: impl Iterator<Item = BorrowedFd<'a>>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for fd in fds {
            if let Some(at) = watched.iter().position(|known| *known == fd.as_raw_fd()) {
                watched.swap_remove(at);
                // The descriptor is in the set, so this succeeds.
                let _ = epoll::delete(&self.epoll, fd);
            }
        }
    }

    /// Waits until the descriptor is readable, for at most this time or an hour.
    pub(crate) fn sleep(&self, time: Duration) {
        // Very long times (`Duration::MAX`) do not fit the system's type.
        let time = time.min(Duration::from_secs(3600));
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        // An interrupted or failed wait counts as a short one.
        let _ = poll(&mut fds, Some(&time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(wait: &WaitFd) -> bool {
        let mut fds = [PollFd::new(&wait.epoll, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn a_signal_after_the_beginning_of_a_wait_ends_it() {
        let wait = WaitFd::new().unwrap();
        assert!(!is_readable(&wait));
        wait.signal();
        wait.signal();
        assert!(is_readable(&wait), "a program that does not call fi_trywait is woken as well");
        wait.begin();
        assert!(!is_readable(&wait), "earlier signals are forgotten");
        wait.signal();
        assert!(is_readable(&wait));
    }

    #[test]
    fn a_timer_ends_a_wait_and_a_later_one_replaces_it() {
        let wait = WaitFd::new().unwrap();
        wait.set_timer(Duration::from_micros(1));
        wait.sleep(Duration::from_secs(20));
        assert!(is_readable(&wait));
        wait.set_timer(Duration::MAX);
        assert!(!is_readable(&wait));
    }

    #[test]
    fn watched_descriptors_count_until_they_are_no_longer_watched() {
        let (wait, other) = (WaitFd::new().unwrap(), WaitFd::new().unwrap());
        let fds = || std::iter::once(other.fd());
        wait.watch(fds()).unwrap();
        wait.watch(fds()).unwrap();
        other.signal();
        assert!(is_readable(&wait));
        wait.unwatch(fds());
        assert!(!is_readable(&wait));
    }
}
