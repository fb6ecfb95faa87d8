//! The program at a site's edge: it admits members of jobs, relays their frames, and joins sites by encrypted trunks.
//!
//! Owns admission, the identity table, forwarding, trunks and counters. Refuses to know what it relays: it reads
//! frame headers, never the payload of a `Data` frame. How agents are started is the business of an [`AgentStarter`].
//!
//! One thread, one task per connection. Start reading at `relay` (who may join, where frames go; no I/O) and
//! `forward` (the path of a frame); `job` is the life of a job, `trunk` and `listener` are the sockets,
//! `meeting` is how gateways that nobody can dial get a trunk; `observe`, `page` and `metrics` what it shows of itself.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allocation;
pub mod config;
mod control;
pub mod counters;
mod descriptors;
mod error;
mod forward;
mod hellos;
mod job;
mod job_entry;
mod job_message;
mod job_site;
mod join;
mod link;
mod listener;
mod lobby;
mod log;
mod measure;
mod meeting;
mod member;
mod metrics;
mod observe;
mod outlet;
mod page;
mod queue;
mod relay;
mod server;
mod shares;
mod shortage;
mod standing;
pub mod starter;
mod stream;
mod tcp_info;
mod trunk;
pub mod window;

pub use config::{GatewayConfig, site_key};
pub use error::GatewayError;
pub use join::Doorkeeper;
pub use server::{serve, serve_until};
pub use starter::{
    AgentHandle, AgentOrder, AgentStarter, AllocationHandle, AllocationNews, AllocationOrder, GatewayAddress,
    StartError,
};

/// A number of bytes for people.
pub(crate) fn quantity(bytes: u64) -> String {
    match bytes {
        0..=1023 => format!("{bytes} B"),
        1024..=1_048_575 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
