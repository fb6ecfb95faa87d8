//! The helper process that finds the other side: `landbridge couple`, which holds the site's key. A side's first
//! process starts it, and the two exchange lines of JSON ([`types::coupling`]).

use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};
use types::coupling::{HelperOrder, HelperReport};

use crate::call::{Patience, SETTLE};
use crate::side::JoinError;

/// Time limit for the helper's exit; it is killed afterwards.
const FAREWELL: Duration = Duration::from_secs(5);
/// Interval between two checks whether the caller wants to stop.
const LOOK: Duration = Duration::from_millis(200);

/// Time for a line that has arrived before a time limit to be read.
const LATE: Duration = Duration::from_millis(100);

/// The reason of a helper that has not stated one: it was killed, or it cannot be understood.
const ENDED: &str = "its helper has ended";

/// Called once the coupling has ended.
type Watcher = Box<dyn FnOnce(&HelperEnd) + Send>;

/// The end of a coupling.
#[derive(Clone, Debug)]
pub(crate) struct HelperEnd {
    pub(crate) reason: String,
    /// True if the helper itself is lost, so the other side does not know the reason.
    pub(crate) is_lost: bool,
}

impl HelperEnd {
    fn lost(reason: &str) -> HelperEnd {
        HelperEnd { reason: reason.to_owned(), is_lost: true }
    }
}

pub(crate) struct Helper {
    child: Child,
    /// A socket, not a pipe: a program that does not ignore SIGPIPE must survive the end of its helper.
    input: Option<UnixStream>,
    reports: Receiver<HelperReport>,
    watched: Arc<Mutex<HelperWatch>>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct HelperWatch {
    /// The event that the coupling waits for.
    waiting: Option<String>,
    /// The end, once it has ended.
    over: Option<HelperEnd>,
    watcher: Option<Watcher>,
}

impl Helper {
    pub(crate) fn start(command: &Path, name: &str, site: Option<&str>) -> io::Result<Helper> {
        let mut words = Command::new(command);
        let (input, of_child) = UnixStream::pair()?;
        words.arg("couple").arg(name).stdin(OwnedFd::from(of_child)).stdout(Stdio::piped());
        if let Some(site) = site {
            words.args(["--from", site]);
        }
        let mut child = words.spawn().map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", command.display())))?;
        let watched = Arc::<Mutex<HelperWatch>>::default();
        let (sink, reports) = channel();
        let (of_thread, output) = (watched.clone(), child.stdout.take());
        let builder = std::thread::Builder::new().name("landbridge".into());
        let listener = builder.spawn(move || {
            if let Some(output) = output {
                listen(BufReader::new(output), &sink, &of_thread);
            }
            end(&of_thread, HelperEnd::lost(ENDED));
        })?;
        Ok(Helper { child, input: Some(input), reports, watched, listener: Some(listener) })
    }

    /// Sends a line to the helper.
    pub(crate) fn tell(&mut self, order: &HelperOrder) {
        self.input.iter().for_each(|input| tell(input, order));
    }

    /// Returns a function that ends the coupling for a reason; it may outlive this value.
    pub(crate) fn leaving(&self) -> impl FnOnce(&str) + Send + use<> {
        let input = self.input.as_ref().and_then(|input| input.try_clone().ok());
        move |reason| input.iter().for_each(|input| tell(input, &HelperOrder::Leave(reason.to_owned())))
    }

    /// Returns the helper's next message. `begun`: the time from which the caller's limit counts.
    ///
    /// # Errors
    /// The helper has ended, the caller has stopped, or its time limit has passed.
    pub(crate) fn next(&self, patience: &mut Patience<'_>, begun: Instant) -> Result<HelperReport, JoinError> {
        loop {
            let left = patience.limit.map_or(LOOK, |limit| limit.saturating_sub(begun.elapsed()).min(LOOK));
            match self.reports.recv_timeout(left) {
                Ok(report) => return Ok(report),
                Err(RecvTimeoutError::Disconnected) => {
                    let over = lock(&self.watched).over.clone();
                    return Err(JoinError::Over(over.map_or_else(|| ENDED.to_owned(), |over| over.reason)));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if (patience.stop)() {
                return Err(JoinError::Interrupted);
            }
            if let Some(limit) = patience.limit.filter(|limit| begun.elapsed() >= *limit) {
                // If this process was stopped, the thread that listens may not have run since.
                if let Ok(report) = self.reports.recv_timeout(LATE) {
                    return Ok(report);
                }
                let waiting = lock(&self.watched).waiting.clone();
                let waiting =
                    waiting.unwrap_or_else(|| "its helper has not reached a gateway of its own site yet".to_owned());
                return Err(JoinError::Slow { seconds: limit.as_secs_f64(), waiting });
            }
        }
    }

    /// The reason, if the coupling has ended or ends within [`SETTLE`].
    pub(crate) fn reason(&self) -> Option<String> {
        let begun = Instant::now();
        loop {
            let over = lock(&self.watched).over.clone();
            if over.is_some() || begun.elapsed() > SETTLE {
                return over.map(|over| over.reason);
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Calls `watcher` once the coupling has ended; at once if it has.
    pub(crate) fn watch(&self, watcher: Watcher) {
        let mut watched = lock(&self.watched);
        match watched.over.clone() {
            None => watched.watcher = Some(watcher),
            Some(over) => {
                drop(watched);
                watcher(&over);
            }
        }
    }

    /// Ends the coupling for this reason.
    pub(crate) fn leave(mut self, reason: &str) {
        lock(&self.watched).watcher = None;
        self.tell(&HelperOrder::Leave(reason.to_owned()));
    }
}

/// Sends a line to a helper. Errors are ignored: if the helper has ended, its last line states the reason.
fn tell(input: &UnixStream, order: &HelperOrder) {
    let Ok(mut line) = serde_json::to_vec(order) else { return };
    line.push(b'\n');
    let mut rest = &line[..];
    while !rest.is_empty() {
        match send(input, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = &rest[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        lock(&self.watched).watcher = None;
        // The helper ends the coupling when its input closes, also if [`Helper::leaving`] still holds a copy of it.
        if let Some(input) = self.input.take() {
            let _ = input.shutdown(std::net::Shutdown::Write);
        }
        let begun = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if begun.elapsed() > FAREWELL {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            sleep(Duration::from_millis(2));
        }
        if let Some(listener) = self.listener.take() {
            // A panic of the thread was reported when it happened.
            let _ = listener.join();
        }
    }
}

fn lock(watched: &Mutex<HelperWatch>) -> std::sync::MutexGuard<'_, HelperWatch> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(lines: impl BufRead, sink: &Sender<HelperReport>, watched: &Mutex<HelperWatch>) {
    for line in lines.lines() {
        let report =
            line.map_err(|e| e.to_string()).and_then(|line| serde_json::from_str(&line).map_err(|e| e.to_string()));
        match report {
            Ok(HelperReport::Waiting(what)) => lock(watched).waiting = Some(what),
            Ok(HelperReport::Over(reason)) => end(watched, HelperEnd { reason, is_lost: false }),
            // The send fails only if nobody reads the channel any more; the line is then not needed.
            Ok(report) => _ = sink.send(report),
            Err(problem) => return end(watched, HelperEnd::lost(&format!("bad line from its helper: {problem}"))),
        }
    }
}

/// Records the end of the coupling, and calls the watcher. Only the first one is kept.
fn end(watched: &Mutex<HelperWatch>, over: HelperEnd) {
    let mut watched = lock(watched);
    if watched.over.is_some() {
        return;
    }
    watched.over = Some(over.clone());
    let watcher = watched.watcher.take();
    drop(watched);
    if let Some(watcher) = watcher {
        watcher(&over);
    }
}
