//! The server side of PMIx, by which Open MPI's ranks learn who they are and exchange addresses.
//!
//! Owns the C interface of libpmix and nothing else: it loads the library when a job needs it (a site without Open MPI needs
//! none), hands its upcalls on as values of [`Upcall`] and takes answers back. It refuses to know where ranks run and how
//! nodes exchange data; that is the agent's.
//!
//! Start reading at [`Server`]. [`library`] says which libpmix is taken, `abi` what of its interface is relied on.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod abi;
mod error;
pub mod library;
mod server;
mod table;
mod upcall;

pub use error::{LoadError, PmixError};
pub use library::Library;
pub use server::{Job, Node, Options, Server};
pub use upcall::{Answer, GroupAnswer, Ranks, Upcall};
