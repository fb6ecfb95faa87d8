//! The wire format of connections: bytes to values, and back. No sockets, no clocks.
//!
//! A connection begins with a [`handshake`] and then carries frames. A [`frame`] is a 32-byte header, the only part
//! that a gateway reads, and a payload. The frame's kind determines the payload: [`message`]s of endpoints, which
//! gateways relay unread, or [`control`] between launcher and gateways. [`proof`] shows knowledge of a secret, and a
//! [`token`] does so in the first bytes of a connection.
//!
//! Every decoder is total: any bytes give a value or a [`WireError`], never a panic, and never an allocation larger
//! than the input. All integers are little endian.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod control;
pub mod frame;
pub mod handshake;
pub mod introduction;
pub mod links;
pub mod many;
pub mod message;
pub mod passage;
pub mod proof;
mod reader;
pub mod receipt;
pub mod text;
pub mod token;
pub mod view;

pub use control::Control;
pub use frame::{FrameHeader, FrameKind};
pub use introduction::Introduction;
pub use message::Message;
pub use passage::Passage;
pub use proof::{ProvingEnd, Secret};
pub use token::Token;
pub use view::View;

use thiserror::Error;

/// The protocol's version. Both ends must agree.
pub const VERSION: u8 = 7;

/// Bytes that violate the protocol. The peer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Fewer bytes than the value needs.
    #[error("{what}: truncated at {have} bytes, needs {need}")]
    Truncated {
        /// The value being read.
        what: &'static str,
        /// Bytes available.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The first bytes are not Landbridge's preface.
    #[error("not a Landbridge connection: it begins with {0:02x?}")]
    Magic([u8; 7]),
    /// Another version of the protocol.
    #[error("peer speaks protocol version {theirs}, we speak {ours}: install the same release on both sides")]
    Version {
        /// The peer's version.
        theirs: u8,
        ours: u8,
    },
    /// An unknown code number.
    #[error("{what}: unknown code {code}")]
    Unknown {
        /// The field with the code.
        what: &'static str,
        /// The number.
        code: u8,
    },
    /// A length beyond the limit.
    #[error("{what}: {length} bytes; at most {limit} are allowed")]
    TooLong {
        /// The value with this length.
        what: &'static str,
        /// Its length in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Any other invalid value.
    #[error("{what}: {problem}")]
    Invalid {
        /// The value being read.
        what: &'static str,
        /// The reason.
        problem: String,
    },
}
