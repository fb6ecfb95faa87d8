//! How a site's users, agents and newcomers talk to gateways: connecting, dialling again, asking, keys and TLS.
//!
//! Gateways use the same keys, TLS and handshakes for what they dial and accept. Knows no job: what a launcher or an agent does with
//! its connections is their business. Start reading at [`Client`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[allow(clippy::module_inception, reason = "the noun of the crate")]
mod client;
mod connections;
mod error;
pub mod handshake;
mod join;
pub mod key;
pub mod patience;
mod questions;
pub mod tls;

pub use client::{CONNECT_TIMEOUT, Client, Frame, Gateway, Receiver, Role, SEND_TIMEOUT, Sender};
pub use connections::{Connections, Entry, News};
pub use error::ClientError;
pub use join::{Invitation, join};
pub use questions::Standing;
