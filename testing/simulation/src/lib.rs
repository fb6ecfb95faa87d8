//! A packet-level network simulator for broadcast trees: transit-stub topologies, store-and-forward links with finite
//! queues, TCP, background traffic, and broadcasts over trees of connections.
//!
//! Everything happens in virtual time and depends on the seed alone. It shows the effects that cost models of trees
//! leave out: queues, slow start, losses and background traffic. Nothing here runs in a rank.
//!
//! Owns: the network and its TCP. Refuses to know: the algorithm that chooses a tree, sockets, threads, the clock.
//!
//! Start at [`Scenario`], which builds a [`Network`] with members and traffic. [`Measured`] holds the members'
//! measurements of it, and [`broadcast()`] carries a message over the trees that a planner builds from them.
//! `examples/broadcast.rs` does all of this.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod broadcast;
mod error;
mod event;
mod measure;
mod network;
mod packet;
mod random;
mod route;
mod scenario;
mod tcp;
#[cfg(test)]
mod tests;
mod time;
mod topology;
mod transit_stub;

pub use broadcast::{Outcome, RelayMode, Schedule, broadcast};
pub use error::SimulationError;
pub use measure::Measured;
pub use network::{ConnectionId, ConnectionReport, FlowId, Network, Notice, PacketCounts};
pub use random::Random;
pub use scenario::Scenario;
pub use tcp::TcpSettings;
pub use time::Time;
pub use topology::{Cable, LinkId, NodeId, NodeRole, SimulatedLink, Topology};
pub use transit_stub::{RateRange, Rates, TransitStub};
