//! End-to-end delivery from one member to another over several routes: sequence numbers, a window in bytes,
//! acknowledgement, and retransmission of frames that are lost with a route.
//!
//! One [`Outbound`] at the sender and one [`Inbound`] at the receiver make a channel. A frame counts against the window
//! from the moment it is sent until the *receiving member* acknowledges it, so the window bounds the bytes in all
//! sockets, gateways and trunks between the two. The sender keeps every frame until then. A [`Route`] delivers in order
//! and without loss until it breaks; the end that notices the break reports it ([`Outbound::lost`]). There are no
//! timers and no guesses. Frames of different routes overtake each other: the receiver restores the order and drops
//! duplicates. A sender may adapt the part of the window that it uses to the path's capacity. Neither half does I/O or
//! knows the time: the caller sends and receives, passes the time in, and asks for permission to send.
//!
//! ```
//! use channel::{Arrival, Inbound, Outbound, Route};
//! let (mut out, mut inn) = (Outbound::new(1000), Inbound::new(1000));
//! assert!(out.may_send(600));
//! let sequence = out.sent(Route(0), 600, "frame");
//! assert!(!out.may_send(600));
//! out.lost(Route(0));
//! assert_eq!(out.resend(Route(1)), Some(&"frame"));
//! assert_eq!(inn.received(sequence, 600).unwrap(), Arrival::Next);
//! assert!(inn.next_early().is_none());
//! assert!(inn.ack_is_due());
//! out.acknowledged(inn.acknowledge()).unwrap();
//! assert!(out.may_send(600));
//! # let _: Inbound<&str> = inn;
//! ```
//! Sequence numbers wrap; comparisons are modulo 2³² (RFC 1982).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod inbound;
mod outbound;
mod room;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use inbound::{Arrival, Inbound};
pub use outbound::Outbound;

/// A route from one member to another, by its number at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route(pub u8);

impl Route {
    /// The set with only this route, one bit per route.
    pub fn bit(self) -> u64 {
        1 << (self.0 % 64)
    }
}

/// The peer violated the channel's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A frame beyond the window.
    #[error("frame {got} arrived, beyond the window that starts at frame {expected}")]
    OutOfSequence {
        /// The number that arrived.
        got: u32,
        /// The number expected.
        expected: u32,
    },
    /// More bytes in flight than the window allows.
    #[error("{bytes} bytes in flight, but the window is {window}")]
    WindowExceeded {
        /// Bytes in flight.
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
