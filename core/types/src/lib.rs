//! Ids, addresses, topology and configuration.
//!
//! Owns the vocabulary of all other crates: the [`Identity`] of a process, its encoding in the 16 bytes that an MPI
//! library exchanges ([`Address`]), the placement of ranks on nodes and sites ([`Roster`]), and the user's description
//! of the sites ([`SitesFile`]). Does no I/O: texts come in, values go out.
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
pub mod settings;
pub mod shell;
pub mod sites;
pub mod untrusted;

pub use id::{Address, Identity, Instance, JobId, NodeId, Rank, ServiceId, SiteId, Slot};
pub use patience::{Patience, Slowness};
pub use roster::{NodeRoster, Roster, SiteRoster};
pub use sites::SitesFile;
pub use untrusted::UntrustedText;

/// Environment variable that limits how much of other users' time an agent and its movers may cost, in percent. A node
/// service sets it for the processes it starts.
pub const MOST_HARM: &str = "LANDBRIDGE_MOST_HARM";
