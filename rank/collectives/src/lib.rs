//! Collective operations for communicators that reach several sites: each trunk is crossed as seldom as possible.
//!
//! This crate runs inside a rank, in the provider's shared object. The preloaded layer passes covered MPI calls to it
//! through a [`FunctionTable`], and makes the MPI library's own call when a function returns [`PASS`]. The crate calls
//! the rank's own MPI library through function pointers (`mpi`) and knows each library's constants (`abi`). Data for
//! gateways to copy goes through the rank's endpoint (`shares`), along trees of sites planned from measured links
//! (`trees`). The crate knows nothing of frames or libfabric.
//!
//! Every decision here must be the same on all ranks of a communicator, or they wait for each other forever. So
//! decisions rest on data that all ranks share: the group, the job's roster, the number of calls so far, and byte
//! counts. Data that only one rank knows is first agreed on (`communicator`). Start reading at `bcast`.

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
mod table;
mod trees;
mod world;

pub use door::{BufferArguments, FunctionTable, INTERFACE, LibraryLookup, PASS, Sides, Transport};
pub use table::table;
