//! A member of a job (rank, agent, launcher) as its peers and gateways know it: reliable conversations with peers behind
//! the gateways of its site. No sockets, no clocks, no threads: whoever does the I/O calls in and carries out.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod handshake;
