//! Why a gateway cannot run.

use std::io;

use client::key::KeyError;
use thiserror::Error;

/// Why a gateway cannot run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The sites file and what was asked for do not go together.
    #[error("{0}")]
    Config(String),
    /// The site's key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The port cannot be had.
    #[error("gateway {gateway} of site {site} cannot listen on {address}: {source}{hint}")]
    Listen {
        site: String,
        gateway: String,
        address: String,
        /// What the system said.
        source: io::Error,
        /// What to do, if known.
        hint: &'static str,
    },
    /// The system gives no event loop, timer or signal handler.
    #[error("gateway {gateway} of site {site}: {source}")]
    System {
        site: String,
        gateway: String,
        /// What the system said.
        source: io::Error,
    },
}
