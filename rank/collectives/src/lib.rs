//! Collective operations for communicators that reach several sites: each trunk is crossed as seldom as possible.
//!
//! Runs inside a rank, in the provider's shared object. The preloaded layer hands it covered MPI calls through a
//! [`Table`] and passes on what it leaves alone ([`PASS`]). It calls the rank's own MPI library through function
//! pointers (`mpi`) and knows each library's constants (`abi`). What gateways are to copy goes through the rank's
//! endpoint (`shares`), along trees of sites planned from measured links (`trees`). It knows nothing of frames or
//! libfabric.
//!
//! Every decision here must be the same on all ranks of a communicator, or they wait for each other forever. So
//! decisions rest on what all ranks share: the group, the job's roster, the number of calls so far, and byte counts.
//! What only one rank knows is first agreed on (`communicator`). Start reading at `bcast`.

#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod abi;
mod allgather;
mod alltoall;
mod barrier;
mod bcast;
mod blocks;
mod bundle;
mod calls;
mod chunks;
mod communicator;
mod datatype;
mod door;
mod gather;
mod group;
mod lanes;
mod leaders;
mod mpi;
mod nodes;
mod payload;
mod reduce;
mod requests;
mod route;
mod scatter;
mod shares;
mod span;
mod state;
mod trees;
mod world;

pub use door::{INTERFACE, PASS, Side, Sides, Source, Table, Transport};
pub use state::table;
