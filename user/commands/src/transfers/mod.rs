//! Moving files and folders: the places and their nodes, the job of movers, and commands for running transfers.
//!
//! Start reading at [`moving`] or [`allocation`], which plan a transfer; [`job`] runs it.

pub mod allocation;
pub mod beside;
pub mod job;
pub mod look;
pub mod moving;
pub mod places;
pub mod request;
pub mod silence;
pub mod socket;
