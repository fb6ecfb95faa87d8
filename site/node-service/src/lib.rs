//! The service of a Slurm node: it carries out orders that users send with munge credentials, as these users.
//!
//! Movers beside other users' jobs must be started on their nodes, which only root can do. This service authenticates a
//! caller ([`credential`]), decides whether the order is acceptable ([`admission`]), and starts this program again as
//! that user ([`child`]). Before that it opens no file of the user: no path from a user ever reaches a process with
//! root's rights. It knows nothing of gateways or of the moved files: an order is bytes that the started program reads.
//!
//! It refuses root, callers without an account, orders for another node, and credentials that were used before, are too
//! old or come from the future. Start reading at [`service`].
//!
//! Slurm's hooks have the service of the controller's machine carry out steps as a job's user. Their work for a job is
//! in [`hook`] and [`teardown`], which know Slurm and the service only through interfaces.

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
