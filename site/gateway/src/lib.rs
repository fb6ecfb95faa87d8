//! The program at a site's edge: it admits members of jobs, relays their frames, and joins sites by encrypted trunks.
//!
//! Owns admission, the identity table, forwarding, trunks and counters. Refuses to know what it relays: it reads frame
//! headers, never the payload of a `Data` frame. How agents are started is up to a [`gateway_hooks::AgentStarter`].
//!
//! One thread, one task per connection. Start reading at `table` (who may join, where frames go, the life of a job; no
//! I/O) and `path` (how a frame gets from one connection to another). `trunks` is everything between two gateways,
//! `door` handles connections before admission, `services` is what the gateway does besides relaying.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod config;
pub mod counters;
mod door;
mod error;
mod gateway;
mod log;
mod path;
mod server;
mod services;
mod table;
mod trunks;

pub use config::{GatewayConfig, site_key};
pub use error::GatewayError;
pub use server::{serve, serve_on, serve_until};

/// A number of bytes in readable form.
pub(crate) fn quantity(bytes: u64) -> String {
    match bytes {
        0..=1023 => format!("{bytes} B"),
        1024..=1_048_575 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
