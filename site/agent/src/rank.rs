//! A rank's process: its output in lines, its PMI bytes in both directions, and its end.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::Rlimit;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdin};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use wire::Secret;

use super::memory::Shared;
use super::prepare::{Prepared, Start};
use super::spawn::{Limits, spawn};
use crate::modules::ModulesError;
use job::lines::LineBuffer;
use job::message::{End, Program, Stream};
use job::processes::signal_group;

/// Silence after a rank's end that counts as the end of its output, even if another process holds the pipe open.
const SILENCE: Duration = Duration::from_millis(500);
/// Pause after which an unfinished line is passed on: it may be a question or a progress indicator.
const PAUSE: Duration = Duration::from_millis(50);
/// Most output that is read after a rank's end. More than a pipe holds comes from a process that the rank left behind.
const LATE_OUTPUT: usize = 1 << 20;
/// Time limit for the PMI connection to close after a rank's end.
const PMI_LINGER: Duration = Duration::from_millis(300);
/// Most replies queued for a rank.
const REPLIES: usize = 64;

/// An event of a rank, or of the preparation of ranks.
#[derive(Debug)]
pub(super) enum RankEvent {
    /// Loading the program's modules has ended.
    Modules {
        program: Box<Program>,
        roster: String,
        /// The variables that the modules changed.
        loaded: Result<Vec<(OsString, OsString)>, ModulesError>,
    },
    /// The rank's provider lacks something. `local`, here and below: the rank's number on the node.
    Trouble { local: usize, reason: String },
    /// The rank sent these bytes to its PMI server.
    Pmi { local: usize, bytes: Vec<u8> },
    /// The rank's pipe has taken bytes of standard input. `None`: it takes no more.
    Input { local: usize, bytes: Option<u32> },
    /// The rank's process has ended, its output has been read, and its process group is dead.
    Exited { local: usize, end: End },
}

/// Output of a rank: whole lines, or an unfinished line after a pause.
#[derive(Debug)]
pub(super) struct Output {
    /// The rank's number on the node.
    pub local: usize,
    pub stream: Stream,
    pub bytes: Vec<u8>,
}

/// Channels from ranks to the agent. Output has a small channel of its own, so a rank waits when the agent does not
/// take its output.
#[derive(Clone, Debug)]
pub(super) struct Sinks {
    pub events: mpsc::Sender<RankEvent>,
    pub outputs: mpsc::Sender<Output>,
}

/// A rank that does not read its PMI replies.
#[derive(Debug, Error)]
#[error("it does not read the answers to its PMI commands")]
pub(super) struct NotRead;

/// A running rank.
#[derive(Debug)]
pub(super) struct RankHandle {
    /// The rank's process, which leads its process group.
    pub pid: u32,
    replies: mpsc::Sender<String>,
}

impl RankHandle {
    /// Sends a reply to the rank's PMI client.
    ///
    /// # Errors
    /// The rank does not read its replies.
    pub(super) fn reply(&self, line: String) -> Result<(), NotRead> {
        match self.replies.try_send(line) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(NotRead),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }
}

/// Standard input for a rank. The launcher's credit bounds the queued bytes.
pub(super) type Feed = mpsc::UnboundedReceiver<Arc<[u8]>>;

/// Starts a rank and the tasks that serve it. `input`: its standard input; `None` means an empty one. `pmix`: the
/// variables with which it finds its PMIx server; without them it gets a PMI-1 connection.
///
/// # Errors
/// The system's error.
pub(super) fn start(
    prepared: &Prepared,
    local: u32,
    window: u32,
    open_files: Rlimit,
    pmix: Option<Vec<(OsString, OsString)>>,
    input: Option<Feed>,
    sinks: &Sinks,
) -> io::Result<RankHandle> {
    let part = prepared.part(local).ok_or_else(|| io::Error::other("no program"))?;
    let path = part.path.as_deref().ok_or_else(|| io::Error::other("no program"))?;
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let theirs = OwnedFd::from(theirs);
    let start = pmix.map_or_else(|| Start::Pmi(theirs.as_raw_fd()), Start::Pmix);
    let secret = sealed(&prepared.secret)?;
    let mut environment = prepared.rank_environment(local, window, &start);
    environment.set("LANDBRIDGE_SECRET_FD", secret.as_raw_fd().to_string());
    let pmi = matches!(start, Start::Pmi(_)).then_some(theirs);
    let memory = prepared.shared.as_ref().map(Shared::descriptor).transpose()?.flatten();
    if let Some(memory) = &memory {
        environment.set("LANDBRIDGE_MEMORY_FD", memory.as_raw_fd().to_string());
    }
    let inherited = std::iter::once(secret).chain(pmi).chain(memory).collect();
    let cores = prepared.cores.as_ref().and_then(|cores| cores.get(local as usize));
    let limits = Limits { cores: cores.copied(), open_files, timer_slack: prepared.timer_slack };
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = spawn(path, &part.words, &part.directory, &environment, inherited, limits, stdin)?;
    let pid = child.id().ok_or_else(|| io::Error::other("ended at once"))?;
    let (exited, watch_exit) = watch::channel(false);
    let local = local as usize;
    let feeding = input.zip(child.stdin.take()).map(|(input, pipe)| {
        let feeding = feed(pipe, input, local, sinks.events.clone());
        tokio::spawn(feeding).abort_handle()
    });
    let (mut forwards, raw) = (Vec::new(), prepared.raw);
    if let Some(pipe) = child.stdout.take() {
        forwards.push(tokio::spawn(forward(pipe, local, Stream::Out, sinks.clone(), (raw, None), watch_exit.clone())));
    }
    if let Some(pipe) = child.stderr.take() {
        let place = Some(prepared.place.clone());
        forwards.push(tokio::spawn(forward(pipe, local, Stream::Err, sinks.clone(), (raw, place), watch_exit)));
    }
    let (replies, inbox) = mpsc::channel(REPLIES);
    let pmi = tokio::spawn(converse(UnixStream::from_std(ours)?, local, sinks.events.clone(), inbox));
    let tasks = Tasks { feeding, forwards, pmi };
    tokio::spawn(watch_over(child, pid, local, exited, tasks, sinks.events.clone()));
    Ok(RankHandle { pid, replies })
}

/// The job's secret in a file without a name. The provider reads and closes the file, so processes that the rank starts
/// later do not have it.
fn sealed(secret: &Secret) -> io::Result<OwnedFd> {
    let file = memfd_create("landbridge", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(file);
    file.write_all(secret.to_hex().as_bytes())?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// The tasks that serve a running rank.
struct Tasks {
    feeding: Option<AbortHandle>,
    forwards: Vec<JoinHandle<()>>,
    pmi: JoinHandle<()>,
}

async fn watch_over(
    mut child: Child,
    pid: u32,
    local: usize,
    exited: watch::Sender<bool>,
    mut tasks: Tasks,
    events: mpsc::Sender<RankEvent>,
) {
    let end = match child.wait().await {
        Ok(status) => status.code().map_or_else(|| End::Signal(status.signal().unwrap_or(0)), End::Code),
        Err(_) => End::Code(1),
    };
    signal_group(pid, 9);
    if let Some(feeding) = tasks.feeding {
        feeding.abort();
    }
    let _ = exited.send(true);
    if timeout(PMI_LINGER, &mut tasks.pmi).await.is_err() {
        tasks.pmi.abort();
    }
    for forward in tasks.forwards {
        let _ = forward.await;
    }
    let _ = events.send(RankEvent::Exited { local, end }).await;
}

/// Writes standard input into a rank's pipe as fast as the rank reads it. Dropping the sender ends the input.
async fn feed(mut pipe: ChildStdin, mut input: Feed, local: usize, events: mpsc::Sender<RankEvent>) {
    while let Some(bytes) = input.recv().await {
        // The write fails once the rank has closed its standard input.
        let bytes = pipe.write_all(&bytes).await.ok().map(|()| bytes.len() as u32);
        if events.send(RankEvent::Input { local, bytes }).await.is_err() || bytes.is_none() {
            return;
        }
    }
}

/// Passes a rank's output on in whole lines; an unfinished line only after a pause. `raw`: passes all bytes on at once.
/// `place`: the beginning of the line with which the rank's provider reports on this stream why the rank will fail. MPI
/// libraries print their own messages after it.
async fn forward(
    mut pipe: impl AsyncRead + Unpin,
    local: usize,
    stream: Stream,
    sinks: Sinks,
    (raw, place): (bool, Option<String>),
    mut exited: watch::Receiver<bool>,
) {
    let mut lines = LineBuffer::default();
    let mut buffer = vec![0; 16 << 10];
    let mut late = 0;
    loop {
        let silence = async {
            let _ = exited.wait_for(|exited| *exited).await;
            sleep(SILENCE).await;
        };
        // `None`: the rank paused within a line.
        let count = tokio::select! {
            biased;
            read = pipe.read(&mut buffer) => Some(read.unwrap_or(0)),
            () = silence => Some(0),
            () = sleep(PAUSE), if lines.has_begun() => None,
        };
        if *exited.borrow() {
            late += count.unwrap_or(0);
        }
        let ended = count == Some(0) || late > LATE_OUTPUT;
        let mut bytes = lines.push(&buffer[..count.unwrap_or(0)]);
        if raw || ended || count.is_none() {
            bytes.extend(lines.rest());
        }
        if let Some(place) = &place
            && let Some(reason) = bytes.split(|byte| *byte == b'\n').find_map(|line| trouble(line, place))
            && sinks.events.send(RankEvent::Trouble { local, reason }).await.is_err()
        {
            return;
        }
        if !bytes.is_empty() && sinks.outputs.send(Output { local, stream, bytes }).await.is_err() {
            return;
        }
        if ended {
            return;
        }
    }
}

/// The reason why a rank will fail, if this line is its provider's report of it; see `rank/provider/src/log.rs`.
fn trouble(line: &[u8], place: &str) -> Option<String> {
    let line = line.strip_prefix(b"landbridge [")?;
    let (process, text) = std::str::from_utf8(line).ok()?.split_once("]: ")?;
    let text = text.strip_prefix("cannot open an endpoint: ").unwrap_or(text);
    let reason = text.strip_prefix(place)?;
    process.bytes().all(|byte| byte.is_ascii_digit()).then(|| format!("cannot go on: {reason}"))
}

/// Carries PMI bytes in both directions until the rank closes its end.
async fn converse(
    stream: UnixStream,
    local: usize,
    events: mpsc::Sender<RankEvent>,
    mut replies: mpsc::Receiver<String>,
) {
    let (mut read, mut write) = stream.into_split();
    let writer = async {
        while let Some(line) = replies.recv().await {
            if write.write_all(line.as_bytes()).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let reader = async {
        let mut buffer = vec![0; 8 << 10];
        while let Ok(count @ 1..) = read.read(&mut buffer).await {
            let bytes = buffer[..count].to_vec();
            if events.send(RankEvent::Pmi { local, bytes }).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = writer => {}
        () = reader => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_providers_last_line_is_the_reason() {
        let place = "site a: node n1: ";
        let reason = |line: &str| trouble(line.as_bytes(), place);
        assert_eq!(reason("landbridge [12]: site a: node n1: memory full").unwrap(), "cannot go on: memory full");
        let opening = "landbridge [12]: cannot open an endpoint: site a: node n1: no fabric";
        assert_eq!(reason(opening).unwrap(), "cannot go on: no fabric");
        for other in [
            "landbridge [12]: LANDBRIDGE_LOG_FILE=/x: no",
            "landbridge [x]: site a: node n1: no",
            "site a: node n1: no",
        ] {
            assert_eq!(reason(other), None, "{other}");
        }
    }
}
