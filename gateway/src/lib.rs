//! The program at a site's edge: it admits members of jobs, relays their frames, and joins sites by encrypted trunks.
//!
//! Owns admission, the identity table, forwarding, trunks, TLS and counters. Refuses to know what it relays: it reads
//! frame headers, never the payload of a `Data` frame. How agents are started is the business of an [`AgentStarter`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod client;
pub mod handshake;
pub mod key;
pub mod starter;

pub use starter::{AgentHandle, AgentOrder, AgentStarter, StartError};
