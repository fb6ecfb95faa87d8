//! The service of a Slurm node: it does what a user orders with a munge credential, as that user.
//!
//! Movers behind other users' jobs need somebody who starts them there; only root can. This service decides who a
//! caller is ([`credential`]), whether the order is one that it does ([`admission`]), and starts this program again as
//! that user ([`child`]). Before that, nothing of the user's is opened: no path of a user's ever reaches a process with
//! root's rights. It knows nothing of gateways, or of what is moved: an order is bytes that the started program reads.
//!
//! It refuses root, callers without an account, orders for another node, and credentials that were used before, are
//! too old or come from the future. Start reading at [`service`].
//!
//! Slurm's hooks have the service of the controller's machine do steps as a job's user. What they do for a job is in
//! [`hook`] and [`teardown`], which know Slurm and the service by interfaces only.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod account;
pub mod admission;
pub mod bounded;
pub mod child;
pub mod client;
pub mod credential;
pub mod directive;
pub mod hook;
pub mod install;
pub mod listener;
mod lobby;
mod log;
pub mod memory;
pub mod message;
mod output;
pub mod record;
pub mod service;
pub mod slurm;
pub mod step;
mod stream;
pub mod teardown;
