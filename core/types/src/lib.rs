//! Ids, addresses, topology and configuration.
//!
//! Owns the vocabulary of all other crates: which [`Identity`] a process has, how it is packed into the 16 bytes that
//! an MPI library exchanges ([`Address`]), which ranks run on which node of which site ([`Roster`]), and what the user
//! wrote about the sites ([`SitesFile`]). Does no I/O: texts come in, values go out.
//!
//! Start reading at [`id`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod coupling;
pub mod id;
pub mod links;
pub mod log_lines;
pub mod patience;
pub mod quantity;
pub mod roster;
pub mod shell;
pub mod sites;
pub mod untrusted;

pub use id::{Address, Identity, Instance, JobId, NodeId, Rank, ServiceId, SiteId, Slot};
pub use patience::{Patience, Slowness};
pub use roster::{NodeRoster, Roster, SiteRoster};
pub use sites::SitesFile;
pub use untrusted::UntrustedText;

/// The variable by which an agent and its movers know how much of other users' time they may cost, in percent. A node
/// service sets it for what it starts.
pub const MOST_HARM: &str = "LANDBRIDGE_MOST_HARM";
