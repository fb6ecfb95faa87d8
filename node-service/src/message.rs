//! What a caller and the service write to each other: lines of JSON. The first line of a caller from the network is a
//! munge credential instead, in which its [`Request`] is encrypted.

use serde::{Deserialize, Serialize};

/// The release of this conversation. Both ends are of one release, or one of them says that they are not.
pub const VERSION: u32 = 1;
/// The longest line in bytes. The longest order, 64 KiB, is longer once it is encrypted.
pub const LONGEST: usize = 256 << 10;
/// Most bytes of a started program's output that are sent back.
pub const MOST_OUTPUT: usize = 1 << 20;
/// The port that the service listens on unless its configuration says otherwise.
pub const PORT: u16 = 7760;

/// What a caller wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Also tells an order for this service from whatever else a user has made a credential for.
    pub landbridge_node_service: u32,
    /// The node that shall do it, by Slurm's name, so that no other node can be made to do it.
    pub node: String,
    pub work: Work,
}

/// What the service starts as the user. Never a program of the user's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Work {
    /// An agent that runs nothing but movers. The line that an agent reads first.
    Agent { order: String },
    /// Is something there? Raw bytes of an absolute path. The exit code is 1 if there is.
    Look { path: Vec<u8> },
    /// Removal of what was staged, complete or not. Raw bytes of absolute paths.
    Remove { paths: Vec<Vec<u8>> },
}

impl Request {
    pub fn new(node: &str, work: Work) -> Request {
        Request { landbridge_node_service: VERSION, node: node.to_owned(), work }
    }
}

/// What the hooks of Slurm's controller ask for, on the service's local socket. Only root and Slurm's own user may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookRequest {
    pub landbridge_node_service: u32,
    /// The job's user.
    pub user: u32,
    /// The line that `landbridge slurm step` reads.
    pub step: String,
}

/// What the service answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It runs. What the caller writes from now on is its standard input, which ends with the connection.
    Started,
    /// It has ended. The last answer.
    Ended {
        /// As a shell has it: 128 and the signal's number if a signal has ended it.
        code: i32,
        output: String,
        /// The end of its standard error.
        words: String,
    },
    /// It was not started, and why. The last answer.
    Refused { reason: String },
}
