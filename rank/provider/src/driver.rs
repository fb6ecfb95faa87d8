//! The thread behind `FI_PROGRESS_AUTO`: it drives the endpoints of one domain while their program does something else.
//!
//! A domain has this thread only if its user asked for automatic data progress. The thread sleeps as a program with
//! `FI_WAIT_FD` does, so an idle endpoint costs four wake-ups a second. Its completions go to the user's queues and
//! counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::bound::{Bound, Driven};
use crate::errno::{ENOMEM, Errno};
use crate::log;
use crate::wait_fd::{LONGEST, WaitFd};

/// Handle of the thread; dropping it ends the thread.
pub(crate) struct Driver {
    shared: Arc<DriverState>,
    thread: Option<JoinHandle<()>>,
}

struct DriverState {
    endpoints: Bound,
    wait: WaitFd,
    ended: AtomicBool,
}

impl Driver {
    /// Starts the thread.
    ///
    /// # Errors
    /// `FI_ENOMEM`: the system has no thread or descriptor left; the reason is on standard error.
    pub(crate) fn start() -> Result<Driver, Errno> {
        let failed = |error: std::io::Error| {
            log::fatal(format_args!("cannot start the thread for FI_PROGRESS_AUTO: {error}"));
            ENOMEM
        };
        let wait = WaitFd::new().map_err(|error| failed(error.into()))?;
        let shared = Arc::new(DriverState { endpoints: Bound::default(), wait, ended: AtomicBool::new(false) });
        let of_thread = shared.clone();
        let builder = std::thread::Builder::new().name("landbridge".into());
        let thread = without_signals(|| builder.spawn(move || of_thread.run())).map_err(failed)?;
        Ok(Driver { shared, thread: Some(thread) })
    }

    /// Drives this endpoint from now on.
    pub(crate) fn add(&self, endpoint: Arc<dyn Driven>) {
        self.shared.endpoints.add(endpoint);
        self.shared.wait.signal();
    }

    /// Stops driving this endpoint.
    pub(crate) fn remove(&self, endpoint: &Arc<dyn Driven>) {
        self.shared.endpoints.remove(endpoint);
    }

    /// The descriptor that the thread sleeps on.
    pub(crate) fn wait(&self) -> &WaitFd {
        &self.shared.wait
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.wait.signal();
        if let Some(thread) = self.thread.take() {
            // A panic of ours would have been reported when it happened.
            let _ = thread.join();
        }
    }
}

impl DriverState {
    fn run(&self) {
        while !self.ended.load(Ordering::SeqCst) {
            self.wait.begin();
            let due = self.endpoints.arm(&self.wait, true);
            if let Some(due) = due
                && !self.ended.load(Ordering::SeqCst)
            {
                self.wait.sleep(due.min(LONGEST));
            }
        }
    }
}

/// Runs `work` with all signals of the calling thread blocked. A thread started in `work` inherits the mask: signals
/// are for the program's own threads.
fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are writable; the first call fills in `all`, and the second `before`, unless it fails, which it
    // cannot with these arguments.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = work();
    if blocked {
        // SAFETY: `before` was filled in above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::tests::Noted;
    use std::time::{Duration, Instant};

    #[test]
    fn it_drives_what_it_is_given_until_it_is_dropped() {
        let driver = Driver::start().unwrap();
        let noted = Arc::new(Noted::default());
        driver.add(noted.clone());
        let begun = Instant::now();
        while noted.armed.load(Ordering::SeqCst) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "it drives nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(driver);
        let after = noted.armed.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(noted.armed.load(Ordering::SeqCst), after, "it has ended");
        assert_eq!(Arc::strong_count(&noted), 1);
    }
}
