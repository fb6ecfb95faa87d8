//! Connections of a site's users, agents and newcomers to gateways: connecting, reconnecting, requests, keys and TLS.
//!
//! Gateways use the same keys, TLS and handshakes for the connections they make and accept. Knows nothing about jobs:
//! launchers and agents decide how to use their connections. Start reading at [`Client`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[allow(clippy::module_inception, reason = "it is the crate's main type")]
mod client;
mod connections;
pub mod dial;
mod error;
pub mod handshake;
mod join;
pub mod key;
pub mod patience;
mod questions;
mod race;
pub mod tls;

pub use client::{CONNECT_TIMEOUT, Client, Frame, Gateway, Receiver, Role, SEND_TIMEOUT, Sender};
pub use connections::{Connections, Entry, News};
pub use error::ClientError;
pub use join::{Invitation, join};
pub use questions::Standing;
pub use race::race;
