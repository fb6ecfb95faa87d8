//! The server side of PMIx, through which Open MPI's ranks learn their identities and exchange addresses.
//!
//! Owns only the C interface of libpmix: it loads the library when a job needs it (a site without Open MPI needs none),
//! passes its upcalls on as values of [`Upcall`] and takes answers back. It does not know where ranks run or how nodes
//! exchange data; that is up to the agent.
//!
//! Start reading at [`Server`]. [`library`] decides which libpmix is used, `abi` declares the part of its interface
//! that this crate relies on.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod abi;
mod error;
pub mod library;
mod server;
mod table;
mod upcall;

pub use error::{LoadError, PmixError};
pub use library::Library;
pub use server::{JobDescription, NodeRanks, Options, Server};
pub use upcall::{Answer, GroupAnswer, Ranks, Upcall};
