//! The errors of an agent.

use client::ClientError;
use job::mpi;
use job::order::OrderError;
use member::PostError;
use thiserror::Error;
use types::Identity;

/// Reasons why an agent ended before its job did.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(transparent)]
    Gateway(#[from] ClientError),
    /// The gateway's name does not resolve.
    #[error("gateway {address}: {source}")]
    Resolve {
        /// The address as written in the sites file.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The order is not allowed for a user without a job on this node.
    #[error("{0}")]
    NotHere(&'static str),
    /// A correspondent violated the protocol.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The provider is missing.
    #[error(transparent)]
    Provider(#[from] mpi::MpiError),
    /// A message that is not allowed now.
    #[error("{from}: {problem}")]
    Message {
        /// The sender.
        from: Identity,
        /// The violation.
        problem: &'static str,
    },
    /// The process that started the agent is gone.
    #[error("{0} ended")]
    Orphaned(&'static str),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The purpose of the call.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}
