//! Broadcast plans: how one node's data reaches all others over links that differ: instances (nodes, latencies, rates),
//! cost models, trees from the literature and the bounds that no schedule can beat.
//!
//! A *node* here is a vertex of the instance: usually a site, seen through its gateway. Pure computation: no socket, no
//! thread, no clock. Everything is deterministic: the same instance gives the same tree on every machine.
//!
//! Start at [`Instance`], then [`choose()`], which picks a [`Schedule`] close to the fastest; or [`Algorithm`], which
//! builds one [`Tree`], [`Model`], which gives its completion time, and [`pack`], which bounds the rate.
//! [`redistribution`] plans how an array moves from one layout to another.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod algorithm;
mod arborescence;
mod choose;
mod dense;
mod greedy;
mod instance;
mod limits;
mod local;
mod matrix;
mod model;
mod optimum;
mod pace;
mod packing;
mod pool;
mod prune;
mod queue;
mod read;
pub mod redistribution;
mod schedule;
mod simple;
mod simplex;
#[cfg(test)]
mod testing;
mod tps;
mod transfer;
mod tree;
mod uplinks;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use choose::{MOST_SIMULATED, candidates, choose};
pub use instance::{Instance, InstanceError, MOST_NODES, MOST_PACKETS, NetworkLinks};
pub use matrix::Matrix;
pub use model::Model;
pub use optimum::{MOST_FOR_OPTIMUM, optimum};
pub use packing::{Effort, Packing, Ports, pack, pack_of, rate};
pub use schedule::Schedule;
pub use tps::bottlenecks;
pub use tree::{Tree, TreeError};
pub use uplinks::{shallow_packing, shallow_trees, uplink_bound};
