//! The signals that a launcher catches: those that end its job, those that it passes to the ranks, and Ctrl-Z.
//!
//! A signal that was ignored when this program started stays ignored: a job under `nohup` outlives its terminal.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::{getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals with which a user or a batch system ends a job: SIGINT, SIGTERM, SIGHUP.
pub const ENDING: [i32; 3] = [2, 15, 1];
/// Signals that are passed to the ranks. Batch systems send one of them before they end a job: SIGUSR1, SIGUSR2,
/// SIGALRM, SIGURG, SIGXCPU.
pub const PASSED: [i32; 5] = [10, 12, 14, 23, 24];
/// SIGTSTP, which Ctrl-Z sends, and SIGCONT, which resumes a process.
pub const STOP: i32 = 20;
pub const CONTINUE: i32 = 18;

/// Caught signals, as they arrive.
#[derive(Debug)]
pub struct Signals(Vec<(i32, Signal)>);

impl Signals {
    /// Catches these signals, except those that are ignored.
    ///
    /// # Errors
    /// The system refuses.
    pub fn catch(numbers: &[i32]) -> io::Result<Signals> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored(&status);
        let caught = numbers.iter().filter(|number| (ignored >> (**number - 1)) & 1 == 0);
        let caught = caught.map(|number| Ok((*number, signal(SignalKind::from_raw(*number))?)));
        Ok(Signals(caught.collect::<io::Result<_>>()?))
    }

    /// The number of the next signal that arrives. Cancel-safe.
    pub async fn next(&mut self) -> i32 {
        poll_fn(|cx| {
            let ready = |(number, signal): &mut (i32, Signal)| signal.poll_recv(cx).is_ready().then_some(*number);
            self.0.iter_mut().find_map(ready).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Stops this process as Ctrl-Z does, until it is continued.
pub async fn stand_still(continued: &mut Signals) {
    // A process can always stop itself.
    if kill_process(getpid(), rustix::process::Signal::STOP).is_ok() {
        continued.next().await;
    }
}

/// The ignored signals in the text of a `/proc/PID/status`: bit n - 1 for signal n.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_linux() {
        assert_eq!(ignored("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n"), 1 | (1 << 12));
        assert_eq!(ignored("SigIgn:\tno\n"), 0);
    }
}
