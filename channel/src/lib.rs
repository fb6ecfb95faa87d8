//! End-to-end delivery from one member to another: sequence numbers, a window in bytes, cumulative acknowledgement.
//!
//! One [`Outbound`] at the sender and one [`Inbound`] at the receiver make a channel. A frame counts against the window
//! from the moment it is sent until the *receiving member* acknowledges it, so the window bounds everything
//! in between: sockets, gateways, trunks. Neither half does I/O or knows the time: the caller sends and receives,
//! and asks here what it may do.
//!
//! ```
//! use channel::{Inbound, Outbound};
//! let (mut out, mut inn) = (Outbound::new(1000), Inbound::new(1000));
//! assert!(out.may_send(600));
//! let sequence = out.sent(600);
//! assert!(!out.may_send(600));
//! inn.received(sequence, 600).unwrap();
//! assert!(inn.ack_is_due());
//! out.acknowledged(inn.acknowledge()).unwrap();
//! assert!(out.may_send(600));
//! ```
//! Sequence numbers wrap; comparisons are modulo 2³² (RFC 1982).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::collections::VecDeque;

use thiserror::Error;

/// The peer broke the channel's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A frame is missing, or came twice.
    #[error("frame {got} came where frame {expected} was expected")]
    OutOfSequence {
        /// The number that came.
        got: u32,
        /// The number expected.
        expected: u32,
    },
    /// More bytes under way than the window allows.
    #[error("{bytes} bytes under way, the window is {window}")]
    WindowExceeded {
        /// Bytes under way.
        bytes: u64,
        /// The window in bytes.
        window: u32,
    },
    /// An acknowledgement of a frame that was never sent.
    #[error("acknowledged up to frame {ack}, but only {sent} were sent")]
    AckOfUnsent {
        /// The acknowledgement.
        ack: u32,
        /// The next number to be sent.
        sent: u32,
    },
}

fn quarter(window: u32) -> u64 {
    u64::from(window / 4).max(1)
}

/// The sender's half.
#[derive(Debug)]
pub struct Outbound {
    window: u32,
    next: u32,
    in_flight: u64,
    sizes: VecDeque<u32>,
}

impl Outbound {
    /// A channel with this window in bytes.
    pub fn new(window: u32) -> Outbound {
        Outbound { window, next: 0, in_flight: 0, sizes: VecDeque::new() }
    }

    /// Whether a frame of `bytes` (header included) may be sent now.
    ///
    /// Below a quarter of the window a frame of any size may go: the receiver need not acknowledge so little, and a
    /// sender that waited for it would wait for ever.
    pub fn may_send(&self, bytes: u32) -> bool {
        self.in_flight < quarter(self.window) || self.in_flight + u64::from(bytes) <= u64::from(self.window)
    }

    /// Counts a frame as sent and gives its number.
    pub fn sent(&mut self, bytes: u32) -> u32 {
        let sequence = self.next;
        self.next = self.next.wrapping_add(1);
        self.in_flight += u64::from(bytes);
        self.sizes.push_back(bytes);
        sequence
    }

    /// Takes an acknowledgement: every frame before number `ack` has arrived. Older ones are harmless.
    ///
    /// # Errors
    /// [`ChannelError::AckOfUnsent`].
    pub fn acknowledged(&mut self, ack: u32) -> Result<(), ChannelError> {
        let left = self.next.wrapping_sub(ack);
        if left > self.sizes.len() as u32 {
            // Behind what is already acknowledged (old), or ahead of what was sent (wrong).
            let old = left < 1 << 31;
            return if old { Ok(()) } else { Err(ChannelError::AckOfUnsent { ack, sent: self.next }) };
        }
        while self.sizes.len() as u32 > left {
            self.in_flight -= u64::from(self.sizes.pop_front().unwrap_or(0));
        }
        Ok(())
    }

    /// Bytes sent and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }
}

/// The receiver's half.
#[derive(Debug)]
pub struct Inbound {
    window: u32,
    expected: u32,
    unacknowledged: u64,
}

impl Inbound {
    /// A channel with this window in bytes.
    pub fn new(window: u32) -> Inbound {
        Inbound { window, expected: 0, unacknowledged: 0 }
    }

    /// Takes note of a frame of `bytes` (header included).
    ///
    /// # Errors
    /// The frame is not the next one, or the sender ignores the window.
    pub fn received(&mut self, sequence: u32, bytes: u32) -> Result<(), ChannelError> {
        if sequence != self.expected {
            return Err(ChannelError::OutOfSequence { got: sequence, expected: self.expected });
        }
        let before = self.unacknowledged;
        self.unacknowledged += u64::from(bytes);
        if before >= quarter(self.window) && self.unacknowledged > u64::from(self.window) {
            return Err(ChannelError::WindowExceeded { bytes: self.unacknowledged, window: self.window });
        }
        self.expected = self.expected.wrapping_add(1);
        Ok(())
    }

    /// Whether the sender should hear from us even if we have nothing else to say: a quarter of the window has come.
    pub fn ack_is_due(&self) -> bool {
        self.unacknowledged >= quarter(self.window)
    }

    /// The acknowledgement to put into a frame that is being sent now.
    pub fn acknowledge(&mut self) -> u32 {
        self.unacknowledged = 0;
        self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wrong_numbers_are_refused() {
        let mut inn = Inbound::new(100);
        inn.received(0, 10).unwrap();
        assert_eq!(inn.received(0, 10), Err(ChannelError::OutOfSequence { got: 0, expected: 1 }));
        assert_eq!(inn.received(2, 10), Err(ChannelError::OutOfSequence { got: 2, expected: 1 }));
        inn.received(1, 91).unwrap();
        assert!(matches!(inn.received(2, 1), Err(ChannelError::WindowExceeded { bytes: 102, .. })));
        let mut out = Outbound::new(100);
        out.sent(10);
        assert_eq!(out.acknowledged(2), Err(ChannelError::AckOfUnsent { ack: 2, sent: 1 }));
        out.acknowledged(1).unwrap();
        out.acknowledged(0).unwrap();
        assert_eq!(out.in_flight(), 0);
    }

    #[test]
    fn numbers_wrap() {
        let mut out = Outbound { window: 100, next: u32::MAX, in_flight: 0, sizes: VecDeque::new() };
        let mut inn = Inbound { window: 100, expected: u32::MAX, unacknowledged: 0 };
        for _ in 0..3 {
            let sequence = out.sent(30);
            inn.received(sequence, 30).unwrap();
        }
        out.acknowledged(inn.acknowledge()).unwrap();
        assert_eq!((out.in_flight(), out.next), (0, 2));
    }

    proptest! {
        /// Two ends in virtual time: frames and acknowledgements arrive after seeded delays, in order per direction.
        #[test]
        fn everything_arrives_within_the_window(
            window in 64u32..5000, sizes in prop::collection::vec(1u32..2000, 1..200), delays in prop::collection::vec(1u64..50, 1..40),
        ) {
            let (mut out, mut inn) = (Outbound::new(window), Inbound::new(window));
            let (mut forward, mut back) = (VecDeque::new(), VecDeque::new());
            let (mut now, mut turn, mut arrived) = (0u64, 0usize, 0usize);
            let mut pending: VecDeque<u32> = sizes.iter().copied().collect();
            while arrived < sizes.len() {
                now += 1;
                prop_assert!(now < 1_000_000, "stalled: {} of {} arrived", arrived, sizes.len());
                turn += 1;
                let due = now + delays[turn % delays.len()];
                while pending.front().is_some_and(|size| out.may_send(*size)) {
                    let size = pending.pop_front().unwrap();
                    let last = forward.back().map_or(0, |(at, _, _)| *at);
                    forward.push_back((due.max(last), out.sent(size), size));
                }
                while forward.front().is_some_and(|(at, _, _)| *at <= now) {
                    let (_, sequence, size) = forward.pop_front().unwrap();
                    inn.received(sequence, size).unwrap();
                    arrived += 1;
                    if inn.ack_is_due() {
                        let last = back.back().map_or(0, |(at, _)| *at);
                        back.push_back((due.max(last), inn.acknowledge()));
                    }
                }
                while back.front().is_some_and(|(at, _)| *at <= now) {
                    out.acknowledged(back.pop_front().unwrap().1).unwrap();
                }
                let lone = sizes.iter().copied().max().unwrap_or(0);
                prop_assert!(out.in_flight() <= u64::from(window.max(window / 4 + lone)));
            }
        }
    }
}
