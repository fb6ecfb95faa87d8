//! Reasons for not admitting a connection.

use std::io;

use client::handshake::HandshakeError;
use thiserror::Error;

use crate::services::join::JoinError;
use crate::trunks::error::ArrivalError;

/// Reasons for not admitting a connection. The text is logged; an honest peer also receives it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum DoorError {
    #[error("too many connections are waiting for admission, most of them from its address")]
    Crowded,
    #[error("handshake not done within {0} s")]
    Slow(u64),
    #[error("not a Landbridge peer: its first byte is {0:#04x}")]
    Stranger(u8),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The peer was sent this reason.
    #[error("{0}")]
    Refused(String),
}
