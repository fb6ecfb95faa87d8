//! Messages between a caller and the service: lines of JSON on the local socket. On the network each line is a munge
//! credential, in which a [`Request`] or a [`Reply`] is encrypted for the one user who may read it. A user who takes
//! the service's port while it restarts learns and changes nothing: only root can read the request's nonce, and only
//! root can make a reply that the caller believes.

use std::io::Read;

use serde::{Deserialize, Serialize};
use types::UntrustedText;

/// The version of this protocol. If the two ends differ, one of them reports it.
pub const VERSION: u32 = 2;
/// The longest line in bytes. The longest order, 64 KiB, grows when it is encrypted.
pub const LONGEST: usize = 256 << 10;
/// Limit on a step's output that is sent back to a hook, in bytes.
pub const MOST_OUTPUT: usize = 1 << 20;
/// Limit on a program's output that is sent back over the network, in bytes: a credential holds less than a mebibyte.
pub const MOST_REMOTE_OUTPUT: usize = 16 << 10;
/// The port that the service listens on, unless its configuration sets another.
pub const PORT: u16 = 7760;

/// A caller's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Also distinguishes an order for this service from any other credential that a user has made.
    pub landbridge_node_service: u32,
    /// The node that is to do the work, by Slurm's name, so that no other node can be made to do it.
    pub node: String,
    /// A number unique to this request, so that a reply to another request is not taken for its own.
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
    /// [`std::io::Error`]: the system has no random numbers.
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

/// The work that the service starts as the user. It never runs a program of the user's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Work {
    /// Starts an agent that only runs movers. The order is the first line that an agent reads.
    Agent { order: String },
    /// Checks whether something exists at an absolute path, given as raw bytes. The exit code is 1 if it does.
    Look { path: Vec<u8> },
    /// Removes staged files, complete or not, at absolute paths, given as raw bytes.
    Remove { paths: Vec<Vec<u8>> },
}

impl Request {
    /// # Errors
    /// [`std::io::Error`]: the system has no random numbers.
    pub fn new(node: &str, work: Work) -> std::io::Result<Request> {
        Ok(Request { landbridge_node_service: VERSION, node: node.to_owned(), nonce: Nonce::fresh()?, work })
    }
}

/// An answer on the network, in a credential that root makes for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    pub landbridge_node_service: u32,
    /// The nonce of the request.
    pub nonce: Nonce,
    pub answer: Answer,
}

/// A request of the hooks of Slurm's controller, on the service's local socket. Only root and Slurm's own user may send
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookRequest {
    pub landbridge_node_service: u32,
    /// The job's user.
    pub user: u32,
    /// The line that `landbridge slurm step` reads.
    pub step: String,
}

/// An answer of the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The program runs. From now on the caller's bytes are its standard input, which ends with the connection.
    Started,
    /// The program has ended. The last answer.
    Ended {
        /// The exit code as in a shell: 128 plus the signal's number if a signal ended the program.
        code: i32,
        output: String,
        /// The end of the program's standard error.
        words: UntrustedText,
    },
    /// The program was not started, for this reason. The last answer. A caller that has not proved its identity gets
    /// this one without a credential.
    Refused { reason: UntrustedText },
}
