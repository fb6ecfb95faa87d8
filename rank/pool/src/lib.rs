//! The shared region beneath the memory link: a file that the processes of a node (or of several nodes, on a pool that
//! they all map) share, with a ring of bytes from each of them to each other one.
//!
//! The design is that of Imoto, Taniguchi, Baba and Murata, "Implementation and Evaluation of MPI Library with Globus
//! Toolkit for Establishing λ Computing Environment": n² queues, queue `[i, j]` written by i and read by j only, and a
//! way to wake a sleeping reader. Their shared-memory board on an optical ring is today a pool of memory behind a
//! switch, or any folder whose files several nodes can map.
//!
//! What each side writes is in cache lines of its own, and there are no atomic read-modify-write operations: plain
//! aligned loads and stores with fences are enough, which is all that such a pool guarantees between nodes. The file is
//! sparse: pages exist for processes that have joined and for pairs that communicate.
//!
//! Knows nothing about messages; never waits, sleeps, or opens a socket. Start reading at [`Region`], then [`ring`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod host;
mod layout;
pub mod lending;
mod mapping;
mod process;
mod region;
pub mod ring;
mod seat;

pub use error::PoolError;
pub use host::HostId;
pub use layout::INSTANCES;
pub use process::{allow_reading, read_process};
pub use region::{Region, Shape};
pub use ring::{Consumer, Corrupt, Kind, Permission, Producer, Record};
pub use seat::{Seat, State};
