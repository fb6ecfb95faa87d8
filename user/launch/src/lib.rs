//! Jobs: the launcher behind `landbridge run`, an agent per node, starters of agents, a PMI-1 server.
//!
//! Owns starting a program on the nodes of several sites, passing on its output, exit codes and signals, and ending all
//! of it. It knows nothing of MPI's data and prints nothing: the caller passes a [`launcher::Observer`].
//!
//! Start reading at [`message`], the messages between launcher and agents; then [`launcher`] and [`agent`].

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agent;
pub mod capture;
pub mod check;
pub mod coupling;
mod descriptors;
pub mod environment;
pub mod fence;
pub mod folder;
pub mod forward;
pub mod group;
pub mod held;
pub mod home;
pub mod hosts;
pub mod keeper;
pub mod launcher;
pub mod leash;
mod leftovers;
pub mod lines;
pub mod links;
pub mod measure;
pub mod message;
pub mod modules;
pub mod mpi;
pub mod order;
pub mod parts;
pub mod pmi;
pub mod processes;
pub mod program;
pub mod rates;
pub mod signals;
pub mod spread;
pub mod starter;
pub mod tailor;
pub mod tunnel;
pub mod watch;

/// Waits until `at_ns` nanoseconds after `since`; forever if it is `None`.
pub(crate) async fn until(since: tokio::time::Instant, at_ns: Option<u64>) {
    match at_ns {
        Some(at_ns) => tokio::time::sleep_until(since + std::time::Duration::from_nanos(at_ns)).await,
        None => std::future::pending().await,
    }
}
