//! Errors when an endpoint opens, and the opening of the memory that ranks share.

use std::net::SocketAddr;
use std::path::PathBuf;

use pool::PoolError;
use thiserror::Error;

use crate::config::{EndpointLimits, NativeError};
use crate::handshake::Credentials;
use crate::memory_link::MemoryLink;

/// Reasons why an endpoint could not open.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The listener cannot be opened.
    #[error("cannot listen on {address}: {source}; LANDBRIDGE_ADDRESS must be an address of this node")]
    Listen {
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// A gateway of the site cannot be reached.
    #[error("gateway {address}: {reason}")]
    Gateway {
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The memory shared with other ranks cannot be used.
    #[error("{place}: {source}")]
    Memory {
        /// Site and node.
        place: String,
        /// The reason.
        source: pool::PoolError,
    },
    /// The site's own network cannot be used.
    #[error(
        "{place}: the site's fabric `{provider}` cannot be used: {source}; set in the sites file by `fabric` and \
         `libfabric`"
    )]
    Native {
        /// Site and node, as far as known.
        place: String,
        /// libfabric's provider.
        provider: String,
        /// The reason, and the providers that exist instead.
        source: NativeError,
    },
    /// The rank has more endpoints than an address can name.
    #[error("a rank can have at most 256 endpoints")]
    TooMany,
    /// An error of the operating system.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl OpenError {
    pub(crate) fn io(error: rustix::io::Errno) -> OpenError {
        OpenError::Io(error.into())
    }
}

/// Opens the region by the first path that leads to it. A rank in a user namespace of its own, as containers without
/// setuid have, may not look into its agent's `/proc`. If the container also closes descriptors, the rank has inherited
/// none, and works without shared memory.
pub(super) fn open_memory(
    paths: &[PathBuf],
    own: &Credentials,
    limits: EndpointLimits,
) -> Result<(Option<MemoryLink>, Option<String>), PoolError> {
    let mut failed = None;
    for path in paths {
        match MemoryLink::open(path, own, limits) {
            Ok(memory) => return Ok((memory, None)),
            Err(error) => failed = Some((path, error)),
        }
    }
    let Some((path, error)) = failed else { return Ok((None, None)) };
    match std::fs::metadata(path) {
        Err(closed) if path.starts_with("/proc") => {
            let note = format!(
                "this rank cannot open the memory that its node's ranks share ({}: {closed}), as in a container that closes inherited \
                 descriptors: it uses the network, which is slower",
                path.display()
            );
            Ok((None, Some(note)))
        }
        _ => Err(error),
    }
}
