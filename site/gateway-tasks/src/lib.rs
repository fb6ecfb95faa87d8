//! Tasks that a gateway delegates, so that neither side depends on the other: starting agents and asking a batch system
//! for nodes ([`AgentStarter`]), adding a joining site to the sites file ([`Doorkeeper`]), carrying links through ssh
//! ([`Tunneller`]). The program that runs the gateway passes the implementations in.
//!
//! Also code that a gateway and the agents it starts share: [`open_files`].

#![forbid(unsafe_code)]

mod doorkeeper;
pub mod open_files;
mod starter;
mod tunnel;

pub use doorkeeper::{Doorkeeper, NotTaken};
pub use starter::{
    AgentHandle, AgentOrder, AgentStarter, AllocationHandle, AllocationNews, AllocationOrder, GatewayAddress,
    StartError,
};
pub use tunnel::{Tunnel, TunnelOrder, Tunneller};
