//! What a gateway leaves to others, so that neither knows the other: starting agents and asking a batch system for nodes
//! ([`AgentStarter`]), taking a site that joins into the sites file ([`Doorkeeper`]). Whoever runs the gateway hands it both.
//!
//! Beside it, what a gateway and the agents that it starts do alike: [`open_files`].

#![forbid(unsafe_code)]

mod doorkeeper;
pub mod open_files;
mod starter;

pub use doorkeeper::{Doorkeeper, NotTaken};
pub use starter::{
    AgentHandle, AgentOrder, AgentStarter, AllocationHandle, AllocationNews, AllocationOrder, GatewayAddress,
    StartError,
};
