//! Putting Landbridge on a user's sites: from two ssh accounts to sites that a job can run on, without root.
//!
//! Owns how a site's machine is reached over the user's own ssh, what is copied there, what is asked of the program at the
//! other end ([`here`]), the editing of the sites file, and gateways that run in the background. Refuses to know jobs and
//! MPI, and prints nothing: who calls it hands it a [`Progress`].
//!
//! Start reading at [`add`]: what happens in which order, and what is undone when something fails. [`machine`] is the
//! connection, [`message`] what goes over it, [`here`] the other end.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
pub mod add;
pub mod apply;
pub mod book;
pub mod carry;
mod company;
pub mod doctor;
mod error;
pub mod here;
pub mod join;
mod lift;
pub mod machine;
pub mod message;
pub mod nodes;
pub mod parcel;
pub mod place;
pub mod push;
pub mod release;
pub mod remedy;
pub mod remove;
pub mod slurm;
pub mod start;
pub mod status;
mod sums;
pub mod ticket;
pub mod tunnel;

pub use error::SetupError;

/// Is told what happens, for a person who waits.
pub trait Progress {
    /// Something was done or begun at a site.
    fn step(&mut self, site: &str, text: &str);

    /// So many bytes of all that goes to a site are there.
    fn part(&mut self, site: &str, done: u64, total: u64) {
        let _ = (site, done, total);
    }
}
