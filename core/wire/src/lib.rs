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
mod error;
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
pub use error::WireError;
pub use frame::{FrameHeader, FrameKind};
pub use introduction::Introduction;
pub use message::Message;
pub use passage::Passage;
pub use proof::{ProvingEnd, Secret};
pub use token::Token;
pub use view::View;

/// The protocol's version. Both ends must agree.
pub const VERSION: u8 = 7;
