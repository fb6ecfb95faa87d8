//! The logic of the commands: the placement of a run, commands carried to a site, detached jobs, transfers, forwards,
//! and staging behind other users' jobs on Slurm clusters.
//!
//! Each command takes a request, which knows no flags, and returns values; its caller prints them. A command that takes
//! long passes notes and progress to its caller meanwhile. Nothing here parses flags or prints.
//!
//! Start reading at [`run`] and [`transfers`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod alone;
pub mod carried;
pub mod error;
pub mod forward;
pub mod gateways;
pub mod jobs;
pub mod machine;
pub mod plan;
pub mod push;
pub mod run;
pub mod runtime;
pub mod site_id;
pub mod sites_file;
pub mod slurm;
pub mod transfers;

pub use error::{CommandError, Result};
