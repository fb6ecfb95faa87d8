//! The program at a site's edge: it admits members of jobs, relays their frames, and connects sites by encrypted
//! trunks.
//!
//! Owns admission, the identity table, forwarding, trunks and counters. Never interprets the traffic it relays: it
//! reads frame headers, never the payload of a `Data` frame. A [`gateway_tasks::AgentStarter`] starts the agents.
//!
//! One thread, one task per connection. Each part uses only the parts above it in this list:
//! - `table`: admission to jobs, routes of frames, the life of a job. It decides and performs no I/O;
//! - `path`: the way of a frame from one connection, of a member or a link, to another;
//! - `trunks`: everything between two gateways. A link's frames for the gateway itself are handled here;
//! - `services`: agents and nodes of jobs, sites that join, reloading the sites file;
//! - `door`: connections before admission;
//! - `gateway`: owns all parts. It carries out what the table decides (`table::shared::CarryOut`) and passes members'
//!   control messages to the parts (`messages`). These two calls are the only ones that go up;
//! - `status`: the gateway's view of itself, for users, browsers and collectors; `server`: start and end.
//!
//! Start reading at `table` and `path`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod config;
pub mod counters;
mod door;
mod error;
mod gateway;
mod load;
mod log;
mod messages;
mod path;
mod server;
mod services;
mod sites;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod trunks;

pub use config::{GatewayConfig, site_key};
pub use error::GatewayError;
pub use server::{serve, serve_on, serve_until};
pub use trunks::board::{Answers, Board};
