//! The receiver's half of a channel.

use std::collections::BTreeMap;

use crate::room::ACKNOWLEDGED;
use crate::{ChannelError, quarter};

/// What to do with a frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next in order: take it, then whatever [`Inbound::next_early`] returns.
    Next,
    /// It is early, others have to come before it: [`Inbound::keep`] it.
    Early,
    /// It has already arrived: drop it.
    Again,
}

/// See [the crate](crate). `F` is a frame that arrived early.
#[derive(Debug)]
pub struct Inbound<F> {
    window: u32,
    expected: u32,
    /// Bytes received in order since the last acknowledgement.
    unacknowledged: u64,
    /// Early frames and their lengths in bytes, by place: a number like a sequence number that does not wrap.
    early: BTreeMap<u64, (u32, F)>,
    /// Their total length in bytes.
    early_bytes: u64,
    /// The largest frame since the last time nothing was unacknowledged.
    largest: u32,
    /// The place of the expected frame.
    place: u64,
    /// The last acknowledgement may not have reached the sender.
    ack_lost: bool,
}

impl<F> Inbound<F> {
    /// A channel with this window in bytes.
    pub fn new(window: u32) -> Inbound<F> {
        Inbound {
            window,
            expected: 0,
            unacknowledged: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
            largest: 0,
            place: 0,
            ack_lost: false,
        }
    }

    #[cfg(test)]
    pub(crate) fn starting_at(window: u32, expected: u32) -> Inbound<F> {
        Inbound { expected, ..Inbound::new(window) }
    }

    /// Records the arrival of a frame of `bytes` (header included).
    ///
    /// # Errors
    /// The sender ignores the window.
    pub fn received(&mut self, sequence: u32, bytes: u32) -> Result<Arrival, ChannelError> {
        let ahead = sequence.wrapping_sub(self.expected);
        if ahead >= 1 << 31 || self.early.contains_key(&(self.place + u64::from(ahead))) {
            return Ok(Arrival::Again);
        }
        if ahead > self.window {
            return Err(ChannelError::OutOfSequence { got: sequence, expected: self.expected });
        }
        let after = self.unacknowledged + self.early_bytes + u64::from(bytes);
        self.largest = self.largest.max(bytes);
        // The sender may put one frame of any size behind less than a quarter of the window, and that frame may
        // overtake the others.
        if after > u64::from(self.window) && after - u64::from(self.largest) >= quarter(self.window) {
            return Err(ChannelError::WindowExceeded { bytes: after, window: self.window });
        }
        if ahead > 0 {
            return Ok(Arrival::Early);
        }
        self.advance(bytes);
        Ok(Arrival::Next)
    }

    /// Keeps a frame of `bytes` that is early.
    pub fn keep(&mut self, sequence: u32, bytes: u32, frame: F) {
        self.early_bytes += u64::from(bytes);
        self.early.insert(self.place + u64::from(sequence.wrapping_sub(self.expected)), (bytes, frame));
    }

    /// A kept frame that is next in order.
    pub fn next_early(&mut self) -> Option<F> {
        let (bytes, frame) = self.early.remove(&self.place)?;
        self.early_bytes -= u64::from(bytes);
        self.advance(bytes);
        Some(frame)
    }

    fn advance(&mut self, bytes: u32) {
        self.unacknowledged += u64::from(bytes);
        self.expected = self.expected.wrapping_add(1);
        self.place += 1;
    }

    /// The number of the next frame in order: every one before it has arrived.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// The last acknowledgement may have been lost: send it again.
    pub fn ack_lost(&mut self) {
        self.ack_lost = self.place > 0;
    }

    /// The sender wants to know what has arrived.
    pub fn ack_now(&mut self) {
        self.ack_lost = true;
    }

    /// Whether anything has arrived that was not acknowledged.
    pub fn has_unacknowledged(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Whether to send an acknowledgement even if there is nothing else to send: a quarter of the window or 128 KiB
    /// have arrived, the sender asked, or the last acknowledgement may have been lost.
    pub fn ack_is_due(&self) -> bool {
        self.ack_lost || self.unacknowledged >= quarter(self.window).min(ACKNOWLEDGED)
    }

    /// The acknowledgement to put into a frame that is being sent now.
    pub fn acknowledge(&mut self) -> u32 {
        self.unacknowledged = 0;
        self.ack_lost = false;
        if self.early.is_empty() {
            self.largest = 0;
        }
        self.expected
    }
}
