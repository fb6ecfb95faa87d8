//! A job, as the launcher and the agents of its nodes both know it: their messages, the ranks' environment, the MPI
//! library and its settings, groups and fences, and what both do with processes and signals.
//!
//! Start reading at [`message`].

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod capture;
pub mod descriptors;
pub mod environment;
pub mod fence;
pub mod forward;
pub mod group;
pub mod home;
pub mod lines;
pub mod message;
pub mod mpi;
pub mod order;
pub mod processes;
pub mod program;
pub mod settings;
pub mod signals;

/// This machine's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Waits until `at_ns` nanoseconds after `since`; forever if it is `None`.
pub async fn until(since: tokio::time::Instant, at_ns: Option<u64>) {
    match at_ns {
        Some(at_ns) => tokio::time::sleep_until(since + std::time::Duration::from_nanos(at_ns)).await,
        None => std::future::pending().await,
    }
}
