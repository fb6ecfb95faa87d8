//! Network callers that have not yet proved their identity, all served by one thread.
//!
//! A caller whose line is complete goes on to one of a few threads that open credentials. So a caller with a complete
//! line is served before all silent ones, whatever their number. If there are more callers than the limit, or their
//! unfinished lines take too much memory, the caller that has been silent longest is dropped: an honest caller sends
//! its line as soon as it is connected.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admission::Refusal;
use crate::message::LONGEST;
use crate::service::{Service, accepted, refuse_now};
use crate::stream::{LineError, first_line};

/// Time limit for a caller to send its line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval of checks for callers that exceed it.
const LOOK: Duration = Duration::from_millis(250);
/// Number of threads that open credentials: each waits for a process of munge.
const OPENERS: usize = 4;
/// Largest number of complete lines that wait for one of these threads.
const MOST_READY: usize = 256;
/// Largest total of unfinished lines in bytes.
const MOST_BYTES: usize = 32 << 20;
/// Time for which a refused caller may go on sending: closing a connection with unread bytes would discard the reason.
const LAST: Duration = Duration::from_millis(500);
/// Largest number of callers accepted before others are read.
const MOST_ACCEPTED: usize = 64;

/// A caller that has not sent its line.
struct Stranger {
    stream: TcpStream,
    from: IpAddr,
    bytes: Vec<u8>,
    since: Instant,
    /// It was refused; its further bytes are discarded.
    is_refused: bool,
}

/// A caller with a complete line, and the bytes after it.
struct Ready {
    stream: TcpStream,
    from: IpAddr,
    line: Vec<u8>,
    rest: Vec<u8>,
}

#[derive(Default)]
struct ReadyQueue {
    ready: Mutex<VecDeque<Ready>>,
    filled: Condvar,
}

impl Service {
    /// Serves callers from the network, each with a credential, until the listener fails.
    ///
    /// # Errors
    /// [`std::io::Error`] of the listener.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let queue = Arc::new(ReadyQueue::default());
        for _ in 0..OPENERS {
            let (service, queue) = (self.clone(), queue.clone());
            std::thread::Builder::new().name("credentials".into()).spawn(move || {
                loop {
                    let Ready { stream, from, line, rest } = queue.next();
                    service.serve_line(stream, from, line, rest);
                }
            })?;
        }
        let mut strangers = VecDeque::new();
        loop {
            let ready = wait(listener, &strangers)?;
            if ready[0] {
                self.accept(listener, &mut strangers)?;
            }
            self.read(&mut strangers, &ready[1..], &queue);
        }
    }

    /// Accepts callers at the end of the list. If it is full, its first caller is dropped.
    fn accept(&self, listener: &TcpListener, strangers: &mut VecDeque<Stranger>) -> std::io::Result<()> {
        let limit = self.limits.strangers;
        for _ in 0..MOST_ACCEPTED {
            let (stream, from) = match listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                result => accepted(result)?,
            };
            let (Some(stream), Some(from)) = (stream, from) else { return Ok(()) };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if strangers.len() >= limit
                && let Some(first) = strangers.pop_front()
            {
                self.dismiss(&first, &Refusal::Crowded(limit));
            }
            // On a socket of both families, a caller with IPv4 counts as the same address.
            let (from, since) = (from.ip().to_canonical(), Instant::now());
            strangers.push_back(Stranger { stream, from, bytes: Vec::new(), since, is_refused: false });
        }
        Ok(())
    }

    /// Reads from the strangers. Those with a complete line, at the end of their connection, or too late, leave the
    /// list.
    fn read(&self, strangers: &mut VecDeque<Stranger>, ready: &[bool], queue: &ReadyQueue) {
        let mut kept = VecDeque::with_capacity(strangers.len());
        let mut bytes = 0;
        for (at, mut stranger) in strangers.drain(..).enumerate() {
            // A caller accepted after the poll is not in `ready`, and may have sent its line already.
            match step(&mut stranger, ready.get(at).copied().unwrap_or(true)) {
                Ok(None) => {
                    bytes += stranger.bytes.len();
                    kept.push_back(stranger);
                }
                Ok(Some((line, rest))) => {
                    let Stranger { stream, from, .. } = stranger;
                    queue.add(Ready { stream, from, line, rest });
                }
                Err(_) if stranger.is_refused => {}
                Err(error) => {
                    self.dismiss(&stranger, &error.into());
                    let (bytes, since) = (Vec::new(), Instant::now());
                    kept.push_back(Stranger { bytes, since, is_refused: true, ..stranger });
                }
            }
        }
        while bytes > MOST_BYTES
            && let Some(first) = kept.pop_front()
        {
            bytes -= first.bytes.len();
            self.dismiss(&first, &Refusal::Crowded(kept.len() + 1));
        }
        *strangers = kept;
    }

    fn dismiss(&self, stranger: &Stranger, refusal: &Refusal) {
        self.log_refusal(&stranger.from.to_string(), refusal);
        refuse_now(&stranger.stream, refusal);
        let _ = stranger.stream.shutdown(Shutdown::Write);
    }
}

/// Waits at most [`LOOK`]; returns whether the listener and each stranger, in order, can be read.
fn wait(listener: &TcpListener, strangers: &VecDeque<Stranger>) -> std::io::Result<Vec<bool>> {
    let streams = strangers.iter().map(|stranger| stranger.stream.as_fd());
    let all = std::iter::once(listener.as_fd()).chain(streams);
    let mut polled: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    match poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(polled.iter().map(|polled| !polled.revents().is_empty()).collect())
}

/// A line and the bytes after it.
type FirstLine = (Vec<u8>, Vec<u8>);

/// Returns the line of a stranger once it is complete.
fn step(stranger: &mut Stranger, is_ready: bool) -> Result<Option<FirstLine>, LineError> {
    let mut buffer = [0; 64 << 10];
    if is_ready {
        match stranger.stream.read(&mut buffer) {
            Ok(0) => return Err(LineError::Ended),
            Ok(_) if stranger.is_refused => {}
            Ok(count) => {
                let looked = stranger.bytes.len();
                stranger.bytes.extend_from_slice(&buffer[..count]);
                if let Some(line) = first_line(&mut stranger.bytes, looked, LONGEST)? {
                    return Ok(Some((line, std::mem::take(&mut stranger.bytes))));
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let limit = if stranger.is_refused { LAST } else { PATIENCE };
    match stranger.since.elapsed() > limit {
        true => Err(LineError::Slow(PATIENCE.as_secs())),
        false => Ok(None),
    }
}

impl ReadyQueue {
    /// If too many lines wait already, drops one in the middle: then a flood displaces neither the oldest nor the
    /// newest.
    fn add(&self, ready: Ready) {
        let mut waiting = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MOST_READY
            && let Some(dropped) = waiting.remove(MOST_READY / 2)
        {
            refuse_now(&dropped.stream, &Refusal::Crowded(MOST_READY));
        }
        waiting.push_back(ready);
        self.filled.notify_one();
    }

    fn next(&self) -> Ready {
        let mut waiting = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match waiting.pop_front() {
                Some(ready) => return ready,
                None => waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
