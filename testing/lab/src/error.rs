use serde::{Deserialize, Serialize};

/// Errors of a lab, grouped by who must act.
///
/// Most of these arise in another process and are sent to the caller, so they carry text instead of sources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LabError {
    /// The caller's options are invalid; nothing was started.
    #[error("lab: {0}")]
    Options(String),
    /// This machine or this user lacks something that an isolated lab needs. A loopback lab may still work.
    #[error("lab: {what}; {remedy}")]
    Unavailable {
        /// The missing requirement, with the system's error message.
        what: String,
        /// The remedy for the user.
        remedy: String,
    },
    /// A step of building the lab failed although the machine has what it needs.
    #[error("lab: {place}: {problem}")]
    Setup {
        /// The host, program or file concerned.
        place: String,
        /// The problem.
        problem: String,
    },
    /// A gateway did not come up.
    #[error("lab: gateway {gateway}: {problem}\n{log_tail}")]
    Gateway {
        /// Host name of the gateway, for example `a-gw1`.
        gateway: String,
        /// The problem.
        problem: String,
        /// The last lines the gateway printed.
        log_tail: String,
    },
    /// The command could not be started on its node.
    #[error("{node}: {problem}")]
    Command {
        /// Host name of the node.
        node: String,
        /// The problem, naming the program or the directory.
        problem: String,
        /// The system's error number; 2 is "no such file or directory".
        errno: i32,
    },
    /// The request names a host that this lab does not have, or was made outside a lab.
    #[error("lab: {0}")]
    NoSuchNode(String),
    /// A process of the lab ended prematurely.
    #[error("lab: {process} ended unexpectedly: {how}")]
    Ended {
        process: String,
        /// The end of the process, as far as known.
        how: String,
    },
    /// A signal arrived before the command ran.
    #[error("lab: ended by signal {signal} while it was being built")]
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// A wait of the lab timed out.
    #[error("lab: no answer from {place} within {seconds} s")]
    Timeout {
        /// The process that did not answer.
        place: String,
        /// Seconds that the lab waited.
        seconds: u64,
    },
}

impl LabError {
    /// The exit code that a shell would give: 127 for a missing program, 126 for one that cannot run, 128 plus the
    /// number for a signal, 125 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            LabError::Command { errno, .. } if *errno == libc::ENOENT => 127,
            LabError::Command { .. } => 126,
            LabError::Interrupted { signal } => u8::try_from(128 + signal).unwrap_or(125),
            _ => 125,
        }
    }

    /// The error for a request to a loopback lab that needs isolated hosts. `lacks` states the reason.
    pub(crate) fn loopback(lacks: &str) -> Self {
        LabError::Unavailable {
            what: format!("this is a loopback lab: all its hosts are one machine, which {lacks}"),
            remedy: "start the lab with --isolation namespaces".to_owned(),
        }
    }

    pub(crate) fn setup(place: impl Into<String>, problem: impl ToString) -> Self {
        LabError::Setup { place: place.into(), problem: problem.to_string() }
    }
}
