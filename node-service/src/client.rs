//! The caller's end: a user's credential to a node's service, or a hook's request to that of its own machine.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::credential::{CredentialError, Munge};
use crate::message::{Answer, HookRequest, LONGEST, MOST_OUTPUT, Request};
use crate::service::keep_alive;
use crate::stream::{LineError, Timed, line};

/// How long a node may take to accept a connection, and to answer.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);
/// How long what was ordered may take. Connections to lost machines end by themselves.
const WORK: Duration = Duration::from_secs(365 * 24 * 3600);

const REMEDY: &str = "does the node service run there (`systemctl status landbridge-node`)? An administrator installs it \
                      with `landbridge slurm install`";

/// Why nothing was done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    #[error("{address}: {source}: {REMEDY}")]
    Connect { address: String, source: std::io::Error },
    #[error("{address}: no such host")]
    Unknown { address: String },
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("{address}: the node service refuses: {reason}")]
    Refused { address: String, reason: String },
    #[error("{address}: the connection to the node service is lost: {problem}")]
    Lost { address: String, problem: LineError },
    #[error("{address} answers something else than a node service does: {problem}: {REMEDY}")]
    Answer { address: String, problem: String },
}

/// How what was ordered has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub code: i32,
    pub output: String,
    pub words: String,
}

/// Has a node do something as this process's user. What is read from `input` goes to what was started, which the end
/// of `input` ends too.
///
/// # Errors
/// [`CallError`].
pub fn order(
    address: &str,
    munge: &Munge,
    request: &Request,
    input: impl Read + Send + 'static,
) -> Result<Ended, CallError> {
    let failed = |source| CallError::Connect { address: address.to_owned(), source };
    let found = address.to_socket_addrs().map_err(failed)?.next();
    let found = found.ok_or_else(|| CallError::Unknown { address: address.to_owned() })?;
    // A request can be written.
    let payload = serde_json::to_vec(request).unwrap_or_default();
    let stream = TcpStream::connect_timeout(&found, CONNECT).map_err(failed)?;
    keep_alive(&stream);
    // Last, because it is good for a short time only.
    let mut credential = munge.seal(&payload)?;
    credential.push(b'\n');
    // A service that refuses at once may have closed its end; its answer says why.
    let _ = (&stream).write_all(&credential);
    let write = stream.try_clone().map_err(failed)?;
    converse(address, stream, input, write, |write| drop(write.shutdown(Shutdown::Write)))
}

/// Has the service of this machine do a step of a hook's.
///
/// # Errors
/// [`CallError`].
pub fn hook(socket: &Path, request: &HookRequest, input: impl Read + Send + 'static) -> Result<Ended, CallError> {
    let address = socket.display().to_string();
    let failed = |source| CallError::Connect { address: address.clone(), source };
    let stream = UnixStream::connect(socket).map_err(failed)?;
    let mut line = serde_json::to_vec(request).unwrap_or_default();
    line.push(b'\n');
    let _ = (&stream).write_all(&line);
    let write = stream.try_clone().map_err(failed)?;
    converse(&address, stream, input, write, |write| drop(write.shutdown(Shutdown::Write)))
}

fn converse<W: Write + Send + 'static>(
    address: &str,
    mut stream: impl Timed,
    mut input: impl Read + Send + 'static,
    mut write: W,
    end: impl FnOnce(&W) + Send + 'static,
) -> Result<Ended, CallError> {
    let mut bytes = Vec::new();
    let first = answer(address, &mut stream, &mut bytes, ANSWER)?;
    if first != Answer::Started {
        return ended(address, first);
    }
    // It ends with this process at the latest; the answer does not wait for it.
    std::thread::spawn(move || {
        // If the service is gone, its missing answer says so.
        let _ = std::io::copy(&mut input, &mut write);
        end(&write);
    });
    let last = answer(address, &mut stream, &mut bytes, WORK)?;
    ended(address, last)
}

fn answer(address: &str, stream: &mut impl Timed, bytes: &mut Vec<u8>, within: Duration) -> Result<Answer, CallError> {
    // Each byte of output may take six in JSON.
    let line = line(stream, bytes, LONGEST.max(7 * MOST_OUTPUT), within);
    let line = line.map_err(|problem| CallError::Lost { address: address.to_owned(), problem })?;
    let wrong = |e: serde_json::Error| CallError::Answer { address: address.to_owned(), problem: e.to_string() };
    serde_json::from_slice(&line).map_err(wrong)
}

fn ended(address: &str, answer: Answer) -> Result<Ended, CallError> {
    match answer {
        Answer::Ended { code, output, words } => Ok(Ended { code, output, words }),
        Answer::Refused { reason } => Err(CallError::Refused { address: address.to_owned(), reason }),
        Answer::Started => {
            Err(CallError::Answer { address: address.to_owned(), problem: "it started twice".to_owned() })
        }
    }
}
