//! Reasons why a gateway cannot run.

use std::io;

use client::key::KeyError;
use thiserror::Error;

/// Reasons why a gateway cannot run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The sites file lacks the requested site, gateway or key, or has several gateways to choose from.
    #[error("{0}")]
    Config(String),
    /// The site's key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The port cannot be bound.
    #[error("gateway {gateway} of site {site} cannot listen on {address}: {source}{hint}")]
    Listen {
        site: String,
        gateway: String,
        address: String,
        /// The system's error.
        source: io::Error,
        /// Advice for the user, if there is any.
        hint: &'static str,
    },
    /// The system provides no event loop, timer or signal handler.
    #[error("gateway {gateway} of site {site} has no {what}: {source}")]
    System {
        site: String,
        gateway: String,
        /// The missing resource.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
