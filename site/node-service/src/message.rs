//! Messages between a caller and the service: lines of JSON on the local socket. On the network each line is a munge
//! credential, in which a [`Request`] or a [`Reply`] is encrypted for the one user who may read it. A user who takes
//! the service's port while it restarts learns and changes nothing: only root can read the request's nonce, and only
//! root can make a reply that the caller believes.

use std::io::Read;

use serde::{Deserialize, Serialize};
use types::UntrustedText;

/// The release of this conversation. Both ends are of one release, or one of them says that they are not.
pub const VERSION: u32 = 2;
/// The longest line in bytes. The longest order, 64 KiB, is longer once it is encrypted.
pub const LONGEST: usize = 256 << 10;
/// Most bytes of a step's output that are sent back to a hook.
pub const MOST_OUTPUT: usize = 1 << 20;
/// Most bytes of a program's output that are sent back over the network: a credential holds less than a mebibyte.
pub const MOST_REMOTE_OUTPUT: usize = 16 << 10;
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
    /// A number that this request alone has, so that a reply to another one is not taken for its own.
    pub nonce: Nonce,
    pub work: Work,
}

/// 128 random bits, in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nonce(String);

impl Nonce {
    const DIGITS: usize = 32;

    /// # Errors
    /// The system has no random numbers.
    pub fn fresh() -> std::io::Result<Nonce> {
        let mut bytes = [0; Nonce::DIGITS / 2];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Nonce(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

impl TryFrom<String> for Nonce {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Nonce, &'static str> {
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        match text.len() == Nonce::DIGITS && text.chars().all(is_digit) {
            true => Ok(Nonce(text)),
            false => Err("a nonce has 32 hexadecimal digits"),
        }
    }
}

impl From<Nonce> for String {
    fn from(Nonce(text): Nonce) -> String {
        text
    }
}

impl std::fmt::Debug for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nonce")
    }
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
    /// # Errors
    /// The system has no random numbers.
    pub fn new(node: &str, work: Work) -> std::io::Result<Request> {
        Ok(Request { landbridge_node_service: VERSION, node: node.to_owned(), nonce: Nonce::fresh()?, work })
    }
}

/// An answer on the network, in a credential of root's for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    pub landbridge_node_service: u32,
    /// The request's.
    pub nonce: Nonce,
    pub answer: Answer,
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
        words: UntrustedText,
    },
    /// It was not started, and why. The last answer. A caller who has not proved who it is gets this one without a
    /// credential.
    Refused { reason: UntrustedText },
}
