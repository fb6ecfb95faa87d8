//! The program at a site's edge: it admits members of jobs, relays their frames, and connects sites by encrypted
//! trunks.
//!
//! Owns admission, the identity table, forwarding, trunks and counters. Never interprets the traffic it relays: it
//! reads frame headers, never the payload of a `Data` frame. A [`gateway_hooks::AgentStarter`] starts the agents.
//!
//! One thread, one task per connection. Start reading at `table` (admission to jobs, routes of frames, the life of a
//! job; no I/O) and `path` (the way of a frame from one connection to another). `trunks` is everything between two
//! gateways, `door` handles connections before admission, `services` does everything besides relaying.

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
