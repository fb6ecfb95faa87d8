//! Errors in using a gateway.

use std::io;

use thiserror::Error;
use types::sites::{Fingerprint, Keys};
use wire::WireError;

use crate::handshake::HandshakeError;

/// Reasons for not being able to use a gateway. Each names the gateway's address.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Cannot connect.
    #[error("gateway at {address}: {source}; is it running?")]
    Connect {
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The peer holds a key other than the gateway site's; nothing was sent to it.
    #[error(
        "gateway at {address}: it presented the key {shown}, but the sites file has {expected}: another program uses \
         its port, or its site's key was changed; nothing was sent to it"
    )]
    OtherKey {
        address: String,
        /// The key that it presented.
        shown: Fingerprint,
        /// The keys that were expected.
        expected: Box<Keys>,
    },
    /// The peer presented no key; nothing was sent to it.
    #[error(
        "gateway at {address}: it did not present the key {expected}: {source}; is a Landbridge gateway of this \
         release on that port?"
    )]
    NoKey {
        address: String,
        /// The keys that were expected.
        expected: Box<Keys>,
        /// The error of the TLS handshake.
        source: io::Error,
    },
    /// A user's secret may only be sent to a gateway whose key is known.
    #[error("gateway at {address}: its key is not in the sites file, so a user's secret is not sent to it")]
    UnknownKey { address: String },
    /// The handshake failed.
    #[error("gateway at {address}: {source}")]
    Handshake {
        address: String,
        /// The error.
        source: HandshakeError,
    },
    /// The gateway was silent for too long: its machine, or the network to it, hangs.
    #[error("gateway at {address}: no sign of life for {seconds} s")]
    Silent {
        address: String,
        /// Length of the silence, in seconds.
        seconds: u64,
    },
    /// An operation made no progress for too long.
    #[error("gateway at {address}: {what} took longer than {seconds} s")]
    Timeout {
        address: String,
        /// The operation, such as `connecting`.
        what: &'static str,
        /// The time limit, in seconds.
        seconds: u64,
    },
    /// The connection broke.
    #[error("gateway at {address}: connection lost: {source}")]
    Io {
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The connection broke after a time in which this process did not run: it was stopped, or its machine was.
    #[error("{source}; this process did not run for {seconds} s before, so the gateway may have given it up")]
    Paused {
        /// Length of that time, in seconds.
        seconds: u64,
        /// The error.
        source: Box<ClientError>,
    },
    /// The gateway sent something invalid.
    #[error("gateway at {address}: {source}")]
    Wire { address: String, source: WireError },
    /// The gateway sent a goodbye without a reason.
    #[error("gateway at {address} closed the connection")]
    Left { address: String },
    /// The gateway sent a goodbye with a reason.
    #[error("gateway at {address} closed the connection: {reason}")]
    Closed {
        address: String,
        /// Its reason.
        reason: String,
    },
    /// A gateway refused to let a site join.
    #[error("gateway at {address}: {problem}")]
    Join {
        address: String,
        /// The reason and the remedy.
        problem: String,
    },
    /// A probed trunk does not work.
    #[error("{0}")]
    Probe(String),
}

impl ClientError {
    /// True if a connection broke, which does not mean that its gateway is down: a single reset is enough.
    pub fn is_break(&self) -> bool {
        match self {
            ClientError::Io { .. } => true,
            ClientError::Paused { source, .. } => source.is_break(),
            _ => false,
        }
    }

    /// True if nothing listens at the gateway's address, or nothing leads there. Other errors do not mean that it is
    /// lost: a gateway that has not noticed yet that a connection broke refuses the next one for a second.
    pub fn is_down(&self) -> bool {
        matches!(self, ClientError::Connect { .. })
    }
}
