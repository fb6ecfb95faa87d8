//! Installs Landbridge at a user's sites: from two ssh accounts to sites that can run a job, without root.
//!
//! Owns the connection to a site's machine over the user's own ssh, the copying of programs, the requests to the
//! program at the other end ([`here`]), edits of the sites file, and gateways that run in the background. Knows nothing
//! about jobs and MPI, and prints nothing: its caller passes a [`Progress`].
//!
//! Start reading at [`add`]: the order of the steps, and the undoing when one fails. [`machine`] is the connection,
//! [`message`] defines its messages, and [`here`] is the other end.

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
mod frames;
pub mod here;
pub mod join;
mod lift;
pub mod machine;
pub mod message;
mod newcomers;
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
mod turn;

pub use error::SetupError;

/// Receives progress, for a user who is waiting.
pub trait Progress {
    /// A step at a site was done or has begun.
    fn step(&mut self, site: &str, text: &str);

    /// `done` of the `total` bytes for a site have been sent.
    fn part(&mut self, site: &str, done: u64, total: u64) {
        let _ = (site, done, total);
    }

    /// Asks the user a yes-or-no question. The default is no, for callers without a user.
    fn accepts(&mut self, question: &str) -> bool {
        let _ = question;
        false
    }
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _site: &str, _text: &str) {}
}
