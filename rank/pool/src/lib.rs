//! The shared region beneath the memory link: a file shared by the processes of a node, or of several nodes that map
//! the same pool. It has a ring of bytes from each process to each other one.
//!
//! The design is that of Imoto, Taniguchi, Baba and Murata, "Implementation and Evaluation of MPI Library with Globus
//! Toolkit for Establishing λ Computing Environment": n² queues, queue `[i, j]` written by i and read by j only, and a
//! way to wake a sleeping reader. Their shared-memory board on an optical ring is today a pool of memory behind a
//! switch, or any folder whose files several nodes can map.
//!
//! Each side writes only to cache lines of its own, without atomic read-modify-write operations. Plain aligned loads
//! and stores with fences are enough, and a pool between nodes guarantees no more. The file is sparse: pages exist for
//! processes that have joined and for pairs that communicate.
//!
//! The crate knows nothing about messages; it never waits, sleeps, or opens a socket. Start reading at [`Region`], then
//! [`ring`].

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
pub use ring::{Consumer, Corrupt, Permission, Producer, Record, RecordKind};
pub use seat::{Seat, SeatState};
