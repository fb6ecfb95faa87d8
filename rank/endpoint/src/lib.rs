//! The endpoint inside a rank: tag matching, transfers, and the links that carry them.
//!
//! An [`Endpoint`] is driven by polling: nothing happens outside its methods, there is no thread and no signal.
//! Operations ([`operation`]) go in, completions come out, `progress` moves bytes. The crate knows nothing of
//! libfabric's ABI (that is `provider`) and nothing of MPI.
//!
//! Start reading at [`Endpoint`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod config;
mod endpoint;
mod gateway_link;
mod handshake;
mod link;
mod lists;
mod matching;
mod memory_link;
pub mod operation;
mod protocol;
mod reader;
mod sharing;
mod site_link;
mod stream;
mod writer;

pub use config::{Config, ConfigError, EndpointLimits, JobConfig, NativeConfig, NativeError};
pub use endpoint::{Carried, Endpoint, OpenError, Traffic};
pub use member::ShareTree;
pub use operation::{Completion, Failure, NotBegun, PeerId, ShareOp, UserData};

/// An endpoint may move between threads (behind a lock).
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Endpoint>();
};
