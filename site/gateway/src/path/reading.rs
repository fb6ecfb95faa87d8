//! The reading side of every connection: the start of a frame whose rest has not arrived, a fair share of the thread's
//! time, and the reasons to stop.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use channel::ChannelError;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::Instant;

use crate::counters::Counters;
use crate::path::limits::MAX_DATA;
use crate::table::error::Violation;

/// Capacity that a connection keeps for the start of a frame.
const LASTING: usize = 4 * MAX_DATA as usize;

/// Reasons why a connection is no longer read.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The peer sent a goodbye with this text.
    Goodbye(String),
    /// The connection broke.
    Lost(String),
    /// The peer broke the rules.
    Violation(String),
}

impl Stop {
    /// The peer closed the connection without a goodbye.
    pub(crate) fn closed() -> Stop {
        Stop::Lost("connection closed without goodbye".into())
    }
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Stop {
        Stop::Violation(violation.to_string())
    }
}

impl From<ChannelError> for Stop {
    fn from(error: ChannelError) -> Stop {
        Stop::Violation(format!("control messages: {error}"))
    }
}

/// Approximate time for which a connection that always has bytes to read keeps the thread before others get their turn.
const FAIR: Duration = Duration::from_millis(2);

/// A connection's share of the thread's time.
#[derive(Debug, Default)]
pub(crate) struct TimeShare(Option<Instant>);

impl TimeShare {
    /// Records the result of a read. A connection with nothing more to read has already yielded the thread.
    pub(crate) fn of<T>(&mut self, come: Poll<T>) -> Poll<T> {
        if come.is_pending() {
            self.0 = None;
        }
        come
    }

    /// Yields to others if the share is used up. Call it after each read, with the current time.
    pub(crate) async fn taken(&mut self, now: Instant) {
        if now - *self.0.get_or_insert(now) > FAIR {
            self.0 = None;
            tokio::task::yield_now().await;
        }
    }
}

/// The start of a frame whose rest has not arrived. Counted as held.
#[derive(Debug)]
pub(crate) struct Partial {
    bytes: Vec<u8>,
    counters: Arc<Counters>,
}

impl Partial {
    pub(crate) fn new(counters: Arc<Counters>) -> Partial {
        Partial { bytes: Vec::new(), counters }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Puts the bytes back at the front of the scratch space.
    pub(crate) fn restore(&mut self, scratch: &mut [u8]) {
        scratch[..self.bytes.len()].copy_from_slice(&self.bytes);
        self.save(&[]);
    }

    pub(crate) fn save(&mut self, bytes: &[u8]) {
        self.counters.release(self.bytes.len() as u64);
        self.bytes.clear();
        if self.bytes.capacity() > LASTING {
            // Frees the memory of control messages, which are rare.
            self.bytes = Vec::new();
        }
        self.bytes.extend_from_slice(bytes);
        self.counters.hold(bytes.len() as u64);
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        self.counters.release(self.bytes.len() as u64);
    }
}

/// The reading side of a new connection, and the bytes that were read with the end of its handshake.
#[derive(Debug)]
pub(crate) struct Inflow {
    pub read: OwnedReadHalf,
    pub cipher: Vec<u8>,
    pub plain: Vec<u8>,
}
