//! How a site's users, agents and newcomers talk to gateways: connecting, reconnecting, requests, keys and TLS.
//!
//! Gateways use the same keys, TLS and handshakes for the connections they make and accept. Knows nothing about jobs:
//! what launchers and agents do with their connections is up to them. Start reading at [`Client`].

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
