//! The receiver's half of a channel.

use std::collections::BTreeMap;

use crate::room::ACKNOWLEDGED;
use crate::{ChannelError, quarter};

/// What to do with a frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next: take it, then whatever [`Inbound::next_early`] gives.
    Next,
    /// Others have to come before it: [`Inbound::keep`] it.
    Early,
    /// It has been here before: drop it.
    Again,
}

/// See [the crate](crate). `F` is a frame that came early.
#[derive(Debug)]
pub struct Inbound<F> {
    window: u32,
    expected: u32,
    /// Bytes that came in order since the last acknowledgement.
    unacknowledged: u64,
    /// Frames that came early, and their bytes, by their place: a number like a sequence number that does not wrap.
    early: BTreeMap<u64, (u32, F)>,
    /// Bytes of them.
    early_bytes: u64,
    /// The largest frame since nothing was unacknowledged.
    largest: u32,
    /// The place of the expected frame.
    place: u64,
    /// The sender may not have heard what was acknowledged last.
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

    /// Takes note of a frame of `bytes` (header included).
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
        // The sender may put one frame of any size behind less than a quarter, and that may come before the others.
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

    /// A kept frame whose turn it is.
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

    /// What was acknowledged may have been lost on its way: say it again.
    pub fn ack_lost(&mut self) {
        self.ack_lost = self.place > 0;
    }

    /// The sender wants to know what has arrived.
    pub fn ack_now(&mut self) {
        self.ack_lost = true;
    }

    /// Whether anything has come that was not acknowledged.
    pub fn has_unacknowledged(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Whether the sender should hear from us even if we have nothing else to say: a quarter of the window or 128 KiB have
    /// come, it asked, or it may not have heard the last time.
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
