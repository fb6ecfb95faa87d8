//! Runs commands on hosts of the lab, like ssh between real machines.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::LabError;
use crate::message::{Channel, LabMessageKind};
use crate::process::{PATIENCE, expect_within, readable};
use crate::signals::Signals;
use crate::state::LabDirectory;

/// Runs `command` on the host `node` of the lab around this process (for example `a-n2` or `b-gw1`) and waits for it.
///
/// Standard files, working directory and environment are this process's own. SIGINT, SIGTERM and SIGHUP are forwarded.
/// If this process dies, the command's process group gets SIGHUP, and no other signal until the lab ends. If the host
/// loses power ([`kill`](crate::kill)), it stays silent, as with ssh: this function then waits for a signal or for the
/// lab's end.
///
/// # Errors
/// [`LabError::NoSuchNode`] outside a lab or for an unknown host; [`LabError::Command`] if the command cannot start;
/// [`LabError::Ended`] if the host lost power and then a signal or the lab's end came.
pub fn enter(node: &str, command: &[OsString]) -> Result<ExitStatus, LabError> {
    let wrong = |e: io::Error| LabError::setup(format!("enter {node}"), e);
    let signals = Signals::watch(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]).map_err(wrong)?;
    let directory = std::env::current_dir().map_err(|e| LabError::setup("the working directory", e))?;
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let files = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let state = LabDirectory::around_us();
    let session = Session::start(&state, node, command, &environment, &directory, files)?;
    loop {
        let mut fds = [PollFd::new(&session, PollFlags::IN), PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(wrong(e.into())),
        }
        if !fds[0].revents().is_empty() {
            let outcome = session.outcome();
            if matches!(outcome, Err(LabError::Ended { .. })) {
                await_end(&signals, &state).map_err(wrong)?;
            }
            return outcome;
        }
        for signal in signals.take() {
            session.signal(signal).map_err(wrong)?;
        }
    }
}

/// Waits for a signal or for the end of the lab.
fn await_end(signals: &Signals, state: &LabDirectory) -> io::Result<()> {
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    // Inside the lab this process ends with it; a caller outside has to check.
    while state.cables_socket().exists() {
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)], Some(&second)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// One command on one host, as seen by its client. Dropping the session sends SIGHUP to the command's process group if
/// it still runs.
#[derive(Debug)]
pub(crate) struct Session {
    channel: Channel,
    node: String,
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Connects to the first process of a host.
pub(crate) fn connect(state: &LabDirectory, node: &str) -> Result<Channel, LabError> {
    let path = state.socket(node);
    UnixStream::connect(&path).map(Channel::new).map_err(|e| {
        let mut known: Vec<String> = std::fs::read_dir(state.sockets())
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".sock")?.to_owned()))
            .collect();
        known.sort();
        LabError::NoSuchNode(if known.is_empty() {
            format!("there is no lab around this process ({}: {e})", state.root().display())
        } else if known.iter().any(|name| name == node) {
            format!("{node} does not answer: {e}")
        } else {
            format!("there is no host {node:?}; this lab has {}", known.join(", "))
        })
    })
}

impl Session {
    pub(crate) fn start(
        state: &LabDirectory,
        node: &str,
        command: &[OsString],
        environment: &[(OsString, OsString)],
        directory: &Path,
        files: [BorrowedFd<'_>; 3],
    ) -> Result<Session, LabError> {
        if command.is_empty() {
            return Err(LabError::Options("there is no command to run; give one after --".into()));
        }
        let channel = connect(state, node)?;
        let count = u32::try_from(command.len()).unwrap_or(u32::MAX).to_le_bytes();
        let pairs: Vec<Vec<u8>> =
            environment.iter().map(|(key, value)| [key.as_bytes(), b"=", value.as_bytes()].concat()).collect();
        let mut fields: Vec<&[u8]> = vec![node.as_bytes(), directory.as_os_str().as_bytes(), &count];
        fields.extend(command.iter().map(|word| word.as_bytes()));
        fields.extend(pairs.iter().map(Vec::as_slice));
        channel
            .send_files(LabMessageKind::Run, &fields, &files)
            .map_err(|e| LabError::setup(format!("asking {node} to run a command"), e))?;
        Ok(Session { channel, node: node.to_owned() })
    }

    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        self.channel.send_number(LabMessageKind::Signal, signal)
    }

    /// The command's exit status; call it when this session is readable.
    pub(crate) fn outcome(&self) -> Result<ExitStatus, LabError> {
        let message = expect_within(&self.channel, LabMessageKind::Exit, &self.node, PATIENCE)?;
        let raw = message.number().map_err(|e| LabError::setup(&self.node, e))?;
        Ok(ExitStatus::from_raw(raw))
    }

    /// The command's exit status, if it ends within `limit`.
    pub(crate) fn outcome_within(&self, limit: Duration) -> Option<Result<ExitStatus, LabError>> {
        readable(self, limit).then(|| self.outcome())
    }
}
