//! Why a gateway cannot be used.

use std::io;

use thiserror::Error;
use types::sites::{Fingerprint, Keys};
use wire::WireError;

use crate::handshake::HandshakeError;

/// Why a gateway cannot be used. Names its address.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No connection.
    #[error("gateway at {address}: {source}; is it running?")]
    Connect {
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Who answers holds another key than the gateway's site: nothing was said to it.
    #[error(
        "gateway at {address}: it shows the key {shown}, the sites file says {expected}: another program has its port, or its \
         site's key was changed; nothing was said to it"
    )]
    OtherKey {
        address: String,
        /// The key that it has shown.
        shown: Fingerprint,
        /// Those that were expected.
        expected: Box<Keys>,
    },
    /// Who answers shows no key: nothing was said to it.
    #[error(
        "gateway at {address}: it does not show the key {expected}: {source}; is this port a Landbridge gateway of this release?"
    )]
    NoKey {
        address: String,
        /// Those that were expected.
        expected: Box<Keys>,
        /// What went wrong.
        source: io::Error,
    },
    /// A user's secret is for a gateway whose key is known.
    #[error("gateway at {address}: its key is not known, and a user's secret is shown to no other")]
    UnknownKey { address: String },
    /// The handshake failed.
    #[error("gateway at {address}: {source}")]
    Handshake {
        address: String,
        /// Why.
        source: HandshakeError,
    },
    /// The gateway said nothing for too long: its machine, or the network to it, hangs.
    #[error("gateway at {address}: no sign of life for {seconds} s")]
    Silent {
        address: String,
        /// How long, in seconds.
        seconds: u64,
    },
    /// Nothing happened for too long.
    #[error("gateway at {address}: {what} took longer than {seconds} s")]
    Timeout {
        address: String,
        /// What was waited for.
        what: &'static str,
        /// How long, in seconds.
        seconds: u64,
    },
    /// The connection broke.
    #[error("gateway at {address}: connection lost: {source}")]
    Io {
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The gateway sent what cannot be.
    #[error("gateway at {address}: {source}")]
    Wire { address: String, source: WireError },
    /// The gateway said goodbye, without a reason.
    #[error("gateway at {address} closed the connection")]
    Left { address: String },
    /// The gateway said goodbye.
    #[error("gateway at {address} closed the connection: {reason}")]
    Closed {
        address: String,
        /// Its words.
        reason: String,
    },
    /// A gateway that was asked to let a site join did not.
    #[error("gateway at {address}: {problem}")]
    Join {
        address: String,
        /// Why, and what to do.
        problem: String,
    },
    /// A trunk that was probed does not work.
    #[error("{0}")]
    Probe(String),
}
