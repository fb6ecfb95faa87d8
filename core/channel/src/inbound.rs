//! The receiver's half of a channel.

use std::collections::BTreeMap;

use crate::room::ACKNOWLEDGED;
use crate::{ChannelError, quarter};

/// The receiver's action for a frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next in order: take it, then every frame that [`Inbound::next_early`] returns.
    Next,
    /// Early, because frames before it are missing: [`Inbound::keep`] it.
    Early,
    /// Already received: drop it.
    Again,
}

/// The receiver's half; see [the crate](crate). `F` is a frame that arrived early.
#[derive(Debug)]
pub struct Inbound<F> {
    window: u32,
    expected: u32,
    /// Bytes received in order since the last acknowledgement.
    unacknowledged: u64,
    /// Early frames and their lengths in bytes, by place: a sequence number that does not wrap.
    early: BTreeMap<u64, (u32, F)>,
    /// Their total length in bytes.
    early_bytes: u64,
    /// The largest frame since the last acknowledgement that left no early frames.
    largest: u32,
    /// The place of the expected frame.
    place: u64,
    /// An acknowledgement is due at once: the last one may be lost, or the sender asked.
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
    /// The sender exceeds the window.
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
        // With less than a quarter of the window in flight, the sender may send one more frame of any size, and that
        // frame may overtake the others. It may be acknowledged while one that overtook it is kept: then it is longer
        // than all that counts now.
        if after > u64::from(self.window) && after.saturating_sub(self.largest.into()) >= quarter(self.window) {
            return Err(ChannelError::WindowExceeded { bytes: after, window: self.window });
        }
        if ahead > 0 {
            return Ok(Arrival::Early);
        }
        self.advance(bytes);
        Ok(Arrival::Next)
    }

    /// Keeps an early frame of `bytes`.
    pub fn keep(&mut self, sequence: u32, bytes: u32, frame: F) {
        self.early_bytes += u64::from(bytes);
        self.early.insert(self.place + u64::from(sequence.wrapping_sub(self.expected)), (bytes, frame));
    }

    /// Returns a kept frame if it is the next in order.
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

    /// The number of the next frame in order: every frame before it has arrived.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// The last acknowledgement may be lost: makes another one due.
    pub fn ack_lost(&mut self) {
        self.ack_lost = self.place > 0;
    }

    /// The sender asked for an acknowledgement: makes one due.
    pub fn ack_now(&mut self) {
        self.ack_lost = true;
    }

    /// Returns true if bytes have arrived in order since the last acknowledgement.
    pub fn has_unacknowledged(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Returns true if an acknowledgement must be sent even without other traffic: a quarter of the window or 128 KiB
    /// have arrived, the sender asked, or the last acknowledgement may be lost.
    pub fn ack_is_due(&self) -> bool {
        self.ack_lost || self.unacknowledged >= quarter(self.window).min(ACKNOWLEDGED)
    }

    /// The acknowledgement for a frame that is being sent now.
    pub fn acknowledge(&mut self) -> u32 {
        self.unacknowledged = 0;
        self.ack_lost = false;
        if self.early.is_empty() {
            self.largest = 0;
        }
        self.expected
    }
}
