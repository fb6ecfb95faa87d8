//! The caller's end: sends a user's credential to a node's service, or a hook's request to the service of its own
//! machine.
//!
//! The program that answers must prove that it runs as root: on the network by a credential for each answer, on the
//! local socket by the identity that the system reports. Otherwise any user could take the place of a service that
//! restarts.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use thiserror::Error;
use types::UntrustedText;

use crate::credential::{BEGIN, CredentialError, Credentials, OpenedCredential};
use crate::message::{Answer, HookRequest, LONGEST, MOST_OUTPUT, Nonce, Reply, Request, VERSION};
use crate::stream::{LineError, Timed, keep_alive, line};

/// Time limits for a node to accept a connection, and to answer.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);
/// Time limit for a hook to reach the service of its own machine, which may be restarting; and the interval of its
/// attempts.
const BACK: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);
/// Time limit for the ordered work. Connections to lost machines end by themselves.
const WORK: Duration = Duration::from_secs(365 * 24 * 3600);
/// The user who makes a service's credentials and opens those of callers.
const ROOT: u32 = 0;

const REMEDY: &str = "does the node service run there (`systemctl status landbridge-node`)? An administrator installs it \
                      with `landbridge slurm install`";

/// Reasons for an order not being carried out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    #[error("{address}: {source}: {REMEDY}")]
    Connect { address: String, source: std::io::Error },
    #[error("{address}: no such host")]
    Unknown { address: String },
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("the system has no random numbers: {0}")]
    Random(std::io::Error),
    #[error("{address}: the node service refuses: {reason}")]
    Refused { address: String, reason: UntrustedText },
    #[error("{address}: the connection to the node service is lost: {problem}")]
    Lost { address: String, problem: LineError },
    #[error("{address}: not a Landbridge node service: {problem}: {REMEDY}")]
    Answer { address: String, problem: UntrustedText },
    #[error("{address} has not proved that it is the node service ({problem}), so its answer is ignored: {REMEDY}")]
    Unproven { address: String, problem: UntrustedText },
}

/// The result of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub code: i32,
    pub output: String,
    pub words: UntrustedText,
}

/// Has a node do work as this process's user. Bytes from `input` go to the started program; the end of `input` also
/// ends the program.
///
/// # Errors
/// [`CallError`].
pub fn order(
    address: &str,
    credentials: &dyn Credentials,
    request: &Request,
    input: impl Read + Send + 'static,
) -> Result<Ended, CallError> {
    let failed = |source| CallError::Connect { address: address.to_owned(), source };
    let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
    if found.is_empty() {
        return Err(CallError::Unknown { address: address.to_owned() });
    }
    // Serialising a request cannot fail. Seal before connecting, because a service first serves callers that have
    // proved something.
    let mut credential = credentials.seal(&serde_json::to_vec(request).unwrap_or_default(), ROOT)?;
    credential.push(b'\n');
    let stream = connect(&found).map_err(failed)?;
    keep_alive(&stream);
    // A service that refuses at once may have closed its end; its answer contains the reason.
    let _ = (&stream).write_all(&credential);
    let write = stream.try_clone().map_err(failed)?;
    let read = |line: &[u8]| proven(address, credentials, &request.nonce, line);
    converse(address, stream, read, input, write, |write| drop(write.shutdown(Shutdown::Write)))
}

/// Connects to the first of a name's addresses, of either family, that accepts.
fn connect(found: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in found {
        match TcpStream::connect_timeout(address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The answer in a line from the network, if root made it for this request.
fn proven(address: &str, credentials: &dyn Credentials, nonce: &Nonce, line: &[u8]) -> Result<Answer, CallError> {
    let unproven = |problem: UntrustedText| CallError::Unproven { address: address.to_owned(), problem };
    if !line.starts_with(BEGIN) {
        // A service cannot seal an answer before the caller has proved its identity; it then only refuses.
        let said = serde_json::from_slice(line).map_or(UntrustedText::from_bytes(line), |answer| match answer {
            Answer::Refused { reason } => reason,
            Answer::Started => "started".into(),
            Answer::Ended { .. } => "ended".into(),
        });
        return Err(unproven(format!("it says `{}`", said.raw()).into()));
    }
    let OpenedCredential { user, payload } = credentials.open(line).map_err(|e| unproven(e.to_string().into()))?;
    if user != ROOT {
        return Err(unproven(format!("its credential is of user id {user}").into()));
    }
    let reply: Reply = serde_json::from_slice(&payload).map_err(|e| unproven(e.to_string().into()))?;
    match reply.landbridge_node_service == VERSION && reply.nonce == *nonce {
        true => Ok(reply.answer),
        false => Err(unproven("its credential answers another request".into())),
    }
}

/// Has the service of this machine carry out a step of a hook. If nothing listens, the service may be restarting: this
/// waits for it, at most 20 s.
///
/// # Errors
/// [`CallError`].
pub fn hook(socket: &Path, request: &HookRequest, input: impl Read + Send + 'static) -> Result<Ended, CallError> {
    hook_within(BACK, socket, request, input)
}

pub(crate) fn hook_within(
    back: Duration,
    socket: &Path,
    request: &HookRequest,
    input: impl Read + Send + 'static,
) -> Result<Ended, CallError> {
    let address = socket.display().to_string();
    let failed = |source| CallError::Connect { address: address.clone(), source };
    let begun = Instant::now();
    let stream = loop {
        match UnixStream::connect(socket) {
            Err(error) if is_absent(&error) && begun.elapsed() < back => sleep(LOOK),
            connected => break connected.map_err(failed)?,
        }
    };
    let peer = sockopt::socket_peercred(stream.as_fd()).map_err(|e| failed(e.into()))?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        let problem = format!("it runs as user id {}", peer.as_raw()).into();
        return Err(CallError::Unproven { address, problem });
    }
    let mut line = serde_json::to_vec(request).unwrap_or_default();
    line.push(b'\n');
    let _ = (&stream).write_all(&line);
    let write = stream.try_clone().map_err(failed)?;
    let read = |line: &[u8]| {
        let wrong = |e: serde_json::Error| wrong_answer(&address, e.to_string());
        serde_json::from_slice(line).map_err(wrong)
    };
    converse(&address, stream, read, input, write, |write| drop(write.shutdown(Shutdown::Write)))
}

/// True if nothing listens at the socket, or the socket does not exist yet.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

fn converse<W: Write + Send + 'static>(
    address: &str,
    mut stream: impl Timed,
    read: impl Fn(&[u8]) -> Result<Answer, CallError>,
    mut input: impl Read + Send + 'static,
    mut write: W,
    end: impl FnOnce(&W) + Send + 'static,
) -> Result<Ended, CallError> {
    let mut bytes = Vec::new();
    let mut answer = |within| {
        // Each byte of output may take six bytes in JSON.
        let line = line(&mut stream, &mut bytes, LONGEST.max(7 * MOST_OUTPUT), within);
        read(&line.map_err(|problem| CallError::Lost { address: address.to_owned(), problem })?)
    };
    let first = answer(ANSWER)?;
    if first != Answer::Started {
        return ended(address, first);
    }
    // This thread ends with the process at the latest; the answer does not wait for it.
    std::thread::spawn(move || {
        // If the service is gone, reading its answer fails.
        let _ = std::io::copy(&mut input, &mut write);
        end(&write);
    });
    ended(address, answer(WORK)?)
}

fn ended(address: &str, answer: Answer) -> Result<Ended, CallError> {
    match answer {
        Answer::Ended { code, output, words } => Ok(Ended { code, output, words }),
        Answer::Refused { reason } => Err(CallError::Refused { address: address.to_owned(), reason }),
        Answer::Started => Err(wrong_answer(address, "it started twice".to_owned())),
    }
}

fn wrong_answer(address: &str, problem: String) -> CallError {
    CallError::Answer { address: address.to_owned(), problem: problem.into() }
}
