//! The service: accepts callers, and runs what they may order until it or their connection ends.
//!
//! A thread for each caller. The started program's standard input is its lifeline: it ends with the caller's
//! connection, and with this process, however that ends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::account::{Account, Accounts};
use crate::admission::{Counts, Limits, Refusal, Seat, judge, judge_hook};
use crate::child::{Programs, Task};
use crate::credential::Opener;
use crate::log;
use crate::message::{Answer, LONGEST, MOST_OUTPUT, Work};
use crate::stream::{LineError, Timed, line};

/// How long a caller may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long what a program has printed may take to be read after its end, while others still have its pipe open.
const LAST: Duration = Duration::from_millis(500);
/// Most bytes of its standard error that are sent back.
const MOST_WORDS: usize = 2048;
/// Most bytes that a caller may send to a program after its order: more than `end`.
const MOST_INPUT: usize = 1 << 10;
/// A caller whose machine is silent for this long is lost.
const SILENCE: Duration = Duration::from_secs(5);
const SILENCES: u32 = 3;

/// What the service needs to know.
pub struct Service {
    /// Slurm's name of this node.
    pub node: String,
    /// The user id of Slurm's controller.
    pub slurm: u32,
    pub limits: Limits,
    pub opener: Box<dyn Opener>,
    pub accounts: Box<dyn Accounts>,
    pub programs: Box<dyn Programs>,
    pub counts: Counts,
}

impl Service {
    /// Serves callers from the network, each with a credential, until the listener fails.
    ///
    /// # Errors
    /// The listener's.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener) -> std::io::Result<()> {
        loop {
            let (stream, from) = accepted(listener.accept())?;
            let Some(stream) = stream else { continue };
            self.begin(move |service, seat| {
                keep_alive(&stream);
                service.call(stream, seat, &from.map_or(String::new(), |from| from.to_string()), |stream| {
                    let mut rest = Vec::new();
                    let credential = line(stream, &mut rest, LONGEST, PATIENCE)?;
                    let opened = service.opener.open(&credential)?;
                    let work = judge(&opened, &service.node)?;
                    Ok((opened.user, Task::Node(work), rest))
                });
            });
        }
    }

    /// Serves Slurm's hooks on this machine until the listener fails.
    ///
    /// # Errors
    /// The listener's.
    pub fn serve_hooks(self: &Arc<Self>, listener: &UnixListener) -> std::io::Result<()> {
        loop {
            let (stream, _) = accepted(listener.accept())?;
            let Some(stream) = stream else { continue };
            self.begin(move |service, seat| {
                service.call(stream, seat, "a hook", |stream| {
                    let peer = sockopt::socket_peercred(stream.as_fd()).map_err(std::io::Error::from)?;
                    let mut rest = Vec::new();
                    let line = line(stream, &mut rest, LONGEST, PATIENCE)?;
                    let asked = judge_hook(&line, peer.uid.as_raw(), service.slurm)?;
                    Ok((asked.user, Task::Step(asked.step), rest))
                });
            });
        }
    }

    /// Gives a caller a thread, if there is room.
    fn begin(self: &Arc<Self>, work: impl FnOnce(&Service, Option<Seat>) + Send + 'static) {
        let (service, seat) = (self.clone(), self.counts.enter(None, self.limits.strangers).ok());
        let started = std::thread::Builder::new().name("caller".into()).spawn(move || work(&service, seat));
        if let Err(error) = started {
            tracing::warn!(%error, "a caller is dropped");
        }
    }

    fn call<S: Wire>(
        &self,
        mut stream: S,
        seat: Option<Seat>,
        from: &str,
        ask: impl FnOnce(&mut S) -> Result<(u32, Task, Vec<u8>), Refusal>,
    ) {
        let admitted = match seat {
            None => Err(Refusal::Crowded(self.limits.strangers)),
            Some(seat) => ask(&mut stream).and_then(|(user, task, rest)| {
                let account = self.accounts.find(user)?;
                let place = self.counts.enter(Some(user), self.limits.per_user);
                // It counts as a stranger until it has a place of its own.
                drop(seat);
                Ok((account, task, rest, place.map_err(|running| Refusal::TooMany { user, running })?))
            }),
        };
        let answer = admitted.and_then(|(account, task, rest, place)| {
            let _place = place;
            self.carry_out(&mut stream, from, &account, &task, &rest)
        });
        let answer = answer.unwrap_or_else(|refusal| {
            match refusal {
                // Somebody looks whether the service is there.
                Refusal::Line(LineError::Ended) => tracing::debug!(from, %refusal, "refused"),
                _ => {
                    if let Some(suppressed) = log::may(from) {
                        tracing::warn!(from, suppressed, %refusal, "refused");
                    }
                }
            }
            Answer::Refused { reason: refusal.to_string() }
        });
        // A caller that is gone needs no answer.
        let _ = tell(&mut stream, &answer);
        if matches!(answer, Answer::Refused { .. }) {
            stream.finish();
            drain(&mut stream);
        }
        stream.end();
    }

    fn carry_out<S: Wire>(
        &self,
        stream: &mut S,
        from: &str,
        account: &Account,
        task: &Task,
        rest: &[u8],
    ) -> Result<Answer, Refusal> {
        let mut command = self.programs.command(account, task);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Refusal::Start)?;
        tracing::info!(from, user = account.name, pid = child.id(), what = what(task), "started");
        let output = Printed::read(child.stdout.take(), MOST_OUTPUT, 0);
        let words = Printed::read(child.stderr.take(), 0, MOST_WORDS);
        if let Err(error) = self.begin_input(stream, &mut child, task, rest) {
            // Nothing that it was told is complete, so it does nothing.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error.into());
        }
        let code = child.wait().map(code)?;
        tracing::info!(from, user = account.name, code, what = what(task), "ended");
        Ok(Answer::Ended { code, output: output.text(), words: words.text() })
    }

    /// Gives a program its order and, from then on, what its caller sends.
    fn begin_input<S: Wire>(&self, stream: &mut S, child: &mut Child, task: &Task, rest: &[u8]) -> std::io::Result<()> {
        let Some(mut stdin) = child.stdin.take() else { return Err(std::io::Error::other("no standard input")) };
        // A program that ends before it has read its order says why itself.
        let _ = stdin.write_all(&task.line()).and_then(|()| stdin.write_all(rest));
        tell(stream, &Answer::Started)?;
        let source = stream.second()?;
        source.limit_off()?;
        std::thread::Builder::new().name("input".into()).spawn(move || pass_on(source, stdin))?;
        Ok(())
    }
}

fn what(task: &Task) -> &'static str {
    match task {
        Task::Node(Work::Agent { .. }) => "agent",
        Task::Node(Work::Look { .. }) => "look",
        Task::Node(Work::Remove { .. }) => "removal",
        Task::Step(_) => "step",
    }
}

/// A connection to a caller.
trait Wire: Timed + Write + Send + Sized + 'static {
    fn second(&self) -> std::io::Result<Self>;
    fn limit_off(&self) -> std::io::Result<()>;
    /// Nothing more is sent.
    fn finish(&self);
    fn end(&self);
}

impl Wire for TcpStream {
    fn second(&self) -> std::io::Result<TcpStream> {
        self.try_clone()
    }

    fn limit_off(&self) -> std::io::Result<()> {
        self.set_read_timeout(None)
    }

    fn finish(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }

    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Wire for UnixStream {
    fn second(&self) -> std::io::Result<UnixStream> {
        self.try_clone()
    }

    fn limit_off(&self) -> std::io::Result<()> {
        self.set_read_timeout(None)
    }

    fn finish(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }

    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// An accepted connection; `None`: this one failed, and the next may not.
fn accepted<S, A>(result: std::io::Result<(S, A)>) -> std::io::Result<(Option<S>, Option<A>)> {
    use std::io::ErrorKind::{ConnectionAborted, Interrupted};
    match result {
        Ok((stream, from)) => Ok((Some(stream), Some(from))),
        Err(error) if matches!(error.kind(), ConnectionAborted | Interrupted) => Ok((None, None)),
        Err(error) if matches!(error.raw_os_error(), Some(number) if is_short(number)) => {
            tracing::warn!(%error, "a caller waits");
            std::thread::sleep(LAST);
            Ok((None, None))
        }
        Err(error) => Err(error),
    }
}

/// Whether the system is short of descriptors or memory.
fn is_short(number: i32) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].iter().any(|errno| errno.raw_os_error() == number)
}

/// A caller whose machine is lost must not keep its program running.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let set = || {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, SILENCE)?;
        sockopt::set_tcp_keepintvl(stream, SILENCE)?;
        sockopt::set_tcp_keepcnt(stream, SILENCES)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "no keep-alive");
    }
    let _ = stream.set_nodelay(true);
    let _ = stream.set_write_timeout(Some(PATIENCE));
}

fn tell(stream: &mut impl Write, answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    stream.flush()
}

/// Reads what a caller is still sending: closing a connection with unread bytes would take the answer away from it.
fn drain(stream: &mut impl Timed) {
    let (mut buffer, deadline) = ([0; 8192], Instant::now() + LAST);
    while !deadline.saturating_duration_since(Instant::now()).is_zero() {
        if stream.limit(LAST).is_err() || !matches!(stream.read(&mut buffer), Ok(1..)) {
            return;
        }
    }
}

/// Passes on what a caller sends until its connection ends, and with it the program's standard input.
fn pass_on(mut source: impl Read, mut stdin: ChildStdin) {
    let (mut buffer, mut passed) = ([0; MOST_INPUT], 0);
    while passed < MOST_INPUT {
        match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                passed += count;
                if stdin.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// What a program prints.
struct Printed {
    kept: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Printed {
    /// Reads a pipe to its end, and keeps its `first` bytes, or its `last` ones if there are any.
    fn read(pipe: Option<impl Read + Send + 'static>, first: usize, last: usize) -> Printed {
        let (kept, (tell, ended)) = (Arc::new(Mutex::new(Vec::new())), channel());
        let keep = kept.clone();
        let read = move || {
            let (Some(mut pipe), mut buffer) = (pipe, [0; 4096]) else { return };
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                let room = if last > 0 { count } else { count.min(first - kept.len()) };
                kept.extend_from_slice(&buffer[..room]);
                let over = if last > 0 { kept.len().saturating_sub(last) } else { 0 };
                kept.drain(..over);
            }
            // If nobody waits any more, nothing is lost.
            let _ = tell.send(());
        };
        // Without a thread the program's pipe is closed, and its output lost.
        let _ = std::thread::Builder::new().name("output".into()).spawn(read);
        Printed { kept, ended }
    }

    /// What was kept, after the program has ended.
    fn text(&self) -> String {
        // Others may still have the pipe open.
        let _ = self.ended.recv_timeout(LAST);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests;
