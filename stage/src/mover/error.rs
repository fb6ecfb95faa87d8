//! Errors of movers.

use thiserror::Error;

use super::pmi::PmiError;
use crate::error::StageError;

/// Reasons why a mover could not work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MoverError {
    #[error("not part of a job: this program is started by `landbridge stage`")]
    NoJob,
    #[error(transparent)]
    Environment(#[from] endpoint::ConfigError),
    #[error(transparent)]
    Open(#[from] endpoint::OpenError),
    #[error(transparent)]
    Pmi(#[from] PmiError),
    #[error("rank {rank} has `{text}` for an address")]
    Address { rank: u32, text: String },
    /// The connection to another mover is lost, perhaps because this one has lost its gateway.
    #[error("the connection to {place} is lost: {reason}; the same command continues")]
    Lost { place: String, reason: String },
    #[error("{place} stopped before all files were read; its own message gives the cause")]
    Ended { place: String },
    #[error("cannot begin to send or read: {0}")]
    Begin(endpoint::NotBegun),
    #[error("message of a mover: {0}")]
    Message(String),
    #[error(transparent)]
    Region(#[from] memory::RegionError),
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error("{0}")]
    System(#[from] std::io::Error),
    #[error("the order on standard input: {0}")]
    Order(String),
}
