//! Errors of connections to gateways of the user's own site.

use client::ClientError;
use client::key::KeyError;
use member::PostError;
use thiserror::Error;

use crate::outcome::Failure;

/// Reasons why a job could not be opened, or why its connection was lost.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The sites file does not have this site.
    #[error("unknown site `{site}`: the sites file has {known}")]
    UnknownSite {
        /// The name.
        site: String,
        /// The names of the sites that it has.
        known: String,
    },
    /// The sites file names no key for the user's own site.
    #[error("site {0} has no `key` in the sites file: jobs are opened at one's own site (--from), whose key is here")]
    NoKey(String),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A gateway cannot be used, or its connection was lost.
    #[error("site {site}: gateway {gateway}: {source}")]
    Gateway {
        /// The site.
        site: String,
        /// The gateway's name.
        gateway: String,
        /// The error.
        source: ClientError,
    },
    /// The gateway closed the connection.
    #[error("site {0}: the gateway closed the connection")]
    Closed(String),
    /// An agent violated the protocol.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The system gives no random numbers.
    #[error("no random numbers: {0}")]
    Random(String),
    /// The roster does not contain the user's own site.
    #[error("site {0} is not in the job's roster")]
    NotInRoster(String),
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        let site = match &error {
            SessionError::Gateway { site, .. } | SessionError::Closed(site) => Some(site.clone()),
            _ => None,
        };
        match site {
            Some(site) => Failure::at_site(&site, error.to_string()),
            None => Failure::new(error.to_string()),
        }
    }
}
