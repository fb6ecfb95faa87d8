//! The service: runs a caller's order until the program or the caller's connection ends.
//!
//! A caller gets a thread once it has proved its identity; until then the lobby serves it. The started program's
//! standard input is its lifeline: it closes with the caller's connection, and with this process, in whatever way that
//! ends.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::account::{Account, Accounts};
use crate::admission::{CallerLimits, CallerSeat, Counts, Refusal, judge, judge_hook, request};
use crate::child::{MemoryLimits, Programs, Task};
use crate::credential::{BEGIN, CredentialError, Credentials};
use crate::log;
use crate::memory::{Bound, MemoryShare};
use crate::message::{Answer, LONGEST, MOST_OUTPUT, MOST_REMOTE_OUTPUT, Nonce, Reply, VERSION, Work};
use crate::output::Printed;
use crate::stream::{LineError, Timed, keep_alive, line};

/// Time limit for a hook to send its line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which a refused caller's connection stays open, so that the reason arrives.
const LAST: Duration = Duration::from_millis(500);
/// Time for a program to end after its order has ended; then it is ended with all its descendants.
const GRACE: Duration = Duration::from_secs(30);
/// The same time after its caller is gone: an agent whose gateway was lost may continue a transfer through another one.
const WITHOUT_CALLER: Duration = Duration::from_secs(24 * 3600);
/// Limit on the standard error that is sent back, in bytes.
const MOST_WORDS: usize = 2048;
/// Limit on the bytes that a caller may send to a program after its order: longer than `end`.
const MOST_INPUT: usize = 1 << 10;

/// The service's settings and state.
pub struct Service {
    /// Slurm's name of this node.
    pub node: String,
    /// The user id of Slurm's controller.
    pub slurm: u32,
    pub limits: CallerLimits,
    pub credentials: Box<dyn Credentials>,
    pub accounts: Box<dyn Accounts>,
    pub programs: Box<dyn Programs>,
    pub counts: Counts,
    pub memory: Bound,
    /// Bytes of memory for each user.
    pub user_memory: u64,
}

/// The caller's means to recognise the answers as ours.
enum Proof {
    /// The system reports our identity to the other end.
    LocalSocket,
    /// Answers are credentials for this user.
    For { user: u32, nonce: Nonce },
    /// None, because the caller has not proved its identity.
    None,
}

/// A caller that has proved its identity, with an accepted order.
struct Admitted {
    account: Account,
    task: Task,
    /// Bytes received after the order.
    rest: Vec<u8>,
    _seats: [CallerSeat; 2],
}

impl Service {
    /// Serves a caller from the network that has sent this line.
    pub(crate) fn serve_line(self: &Arc<Self>, stream: TcpStream, from: IpAddr, credential: Vec<u8>, rest: Vec<u8>) {
        let (proof, asked) = match self.asked(&credential) {
            Ok((user, nonce, work)) => (Proof::For { user, nonce }, work.map(|work| (user, Task::Node(work)))),
            Err(refusal) => (Proof::None, Err(refusal)),
        };
        let seated = asked.and_then(|(user, task)| Ok((user, task, self.seats(user)?)));
        let from = from.to_string();
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        keep_alive(&stream);
        match seated {
            Err(refusal) => self.refuse(stream, &proof, &from, &refusal),
            Ok((user, task, seats)) => {
                let service = self.clone();
                self.in_thread(move || service.call(stream, &proof, &from, (user, task, rest), seats));
            }
        }
    }

    /// Returns the user who asks, the nonce, and the requested work.
    fn asked(&self, credential: &[u8]) -> Result<(u32, Nonce, Result<Work, Refusal>), Refusal> {
        // Do not start munge for a line that is no credential.
        if !credential.starts_with(BEGIN) {
            return Err(CredentialError::Refused("Invalid credential".into()).into());
        }
        let opened = self.credentials.open(credential)?;
        let request = request(&opened)?;
        Ok((opened.user, request.nonce.clone(), judge(opened.user, request, &self.node)))
    }

    /// A seat of the user's own, and one in the total.
    fn seats(&self, user: u32) -> Result<[CallerSeat; 2], Refusal> {
        let own = self.counts.enter(Some(user), self.limits.per_user);
        let own = own.map_err(|running| Refusal::TooMany { user, running })?;
        Ok([own, self.counts.enter(None, self.limits.orders).map_err(Refusal::Full)?])
    }

    /// Serves Slurm's hooks on this machine until the listener fails.
    ///
    /// # Errors
    /// [`std::io::Error`] of the listener.
    pub fn serve_hooks(self: &Arc<Self>, listener: &UnixListener) -> std::io::Result<()> {
        loop {
            let (stream, _) = accepted(listener.accept())?;
            let Some(stream) = stream else { continue };
            // Callers other than root and Slurm get no thread, whatever they send.
            let stranger = match sockopt::socket_peercred(stream.as_fd()) {
                Ok(peer) if peer.uid.is_root() || peer.uid.as_raw() == self.slurm => None,
                Ok(peer) => Some(Refusal::Stranger(peer.uid.as_raw())),
                Err(error) => Some(Refusal::Connection(error.into())),
            };
            if let Some(refusal) = stranger {
                self.log_refusal("the hooks' socket", &refusal);
                refuse_now(&stream, &refusal);
                continue;
            }
            let service = self.clone();
            self.in_thread(move || service.hook(stream));
        }
    }

    fn hook(&self, mut stream: UnixStream) {
        let mut rest = Vec::new();
        let asked = line(&mut stream, &mut rest, LONGEST, PATIENCE).map_err(Refusal::from);
        let asked = asked.and_then(|line| {
            let peer = sockopt::socket_peercred(stream.as_fd()).map_err(std::io::Error::from)?;
            let asked = judge_hook(&line, peer.uid.as_raw(), self.slurm)?;
            Ok((asked.user, asked.step, self.seats(asked.user)?))
        });
        match asked {
            Err(refusal) => self.refuse(stream, &Proof::LocalSocket, "a hook", &refusal),
            Ok((user, step, seats)) => {
                self.call(stream, &Proof::LocalSocket, "a hook", (user, Task::Step(step), rest), seats);
            }
        }
    }

    fn in_thread(&self, work: impl FnOnce() + Send + 'static) {
        if let Err(error) = std::thread::Builder::new().name("caller".into()).spawn(work) {
            tracing::warn!(%error, "a caller is dropped");
        }
    }

    fn call<S: Wire>(
        &self,
        mut stream: S,
        proof: &Proof,
        from: &str,
        (user, task, rest): (u32, Task, Vec<u8>),
        seats: [CallerSeat; 2],
    ) {
        let admitted = self.accounts.find(user).map_err(Refusal::from);
        let admitted = admitted.map(|account| Admitted { account, task, rest, _seats: seats });
        match admitted.and_then(|order| self.carry_out(&mut stream, proof, from, &order)) {
            Err(refusal) => self.refuse(stream, proof, from, &refusal),
            Ok(answer) => {
                // A disconnected caller needs no answer.
                let _ = self.tell(&mut stream, proof, &answer);
                stream.end();
            }
        }
    }

    fn refuse<S: Wire>(&self, mut stream: S, proof: &Proof, from: &str, refusal: &Refusal) {
        self.log_refusal(from, refusal);
        let answer = Answer::Refused { reason: refusal.to_string().into() };
        let _ = self.tell(&mut stream, proof, &answer);
        stream.finish();
        if matches!(proof, Proof::LocalSocket) {
            // A caller from the network has sent only its line.
            drain(&mut stream);
        }
        stream.end();
    }

    pub(crate) fn log_refusal(&self, from: &str, refusal: &Refusal) {
        // A caller that sends nothing only checks whether the service is there.
        if matches!(refusal, Refusal::Line(LineError::Ended)) {
            tracing::debug!(from, %refusal, "refused");
        } else if let Some(suppressed) = log::may(from) {
            tracing::warn!(from, %refusal, suppressed, "refused");
        }
    }

    /// Sends an answer, in a credential if the caller needs one to believe it.
    fn tell(&self, stream: &mut impl Write, proof: &Proof, answer: &Answer) -> std::io::Result<()> {
        let mut line = match proof {
            Proof::LocalSocket | Proof::None => serde_json::to_vec(answer)?,
            Proof::For { user, nonce } => {
                let (nonce, answer) = (nonce.clone(), answer.clone());
                let reply = Reply { landbridge_node_service: VERSION, nonce, answer };
                let sealed = self.credentials.seal(&serde_json::to_vec(&reply)?, *user);
                sealed.map_err(|error: CredentialError| {
                    tracing::warn!(%error, "a caller gets no answer");
                    std::io::Error::other(error)
                })?
            }
        };
        line.push(b'\n');
        stream.write_all(&line)?;
        stream.flush()
    }

    fn carry_out<S: Wire>(
        &self,
        stream: &mut S,
        proof: &Proof,
        from: &str,
        order: &Admitted,
    ) -> Result<Answer, Refusal> {
        let Admitted { account, task, .. } = order;
        let share = self.share(account.user, task).map_err(Refusal::Memory)?;
        let group = share.as_ref().and_then(MemoryShare::group).map(Path::to_owned);
        let memory = MemoryLimits { of_process: self.memory.of_process(self.user_memory), group };
        let mut command = self.programs.command(account, task, &memory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Refusal::Start)?;
        tracing::info!(from, user = account.name, pid = child.id(), what = what(task), "started");
        let most = if matches!(task, Task::Step(_)) { MOST_OUTPUT } else { MOST_REMOTE_OUTPUT };
        let output = Printed::read(child.stdout.take(), most, 0);
        let words = Printed::read(child.stderr.take(), 0, MOST_WORDS);
        let ended = Arc::new(Ended::default());
        if let Err(error) = self.begin_input(stream, proof, &mut child, order, &ended) {
            // The program has received no complete input, so it does nothing.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error.into());
        }
        let code = ended.wait(&mut child).map(code)?;
        tracing::info!(from, user = account.name, code, what = what(task), "ended");
        Ok(Answer::Ended { code, output: output.text(), words: words.text().into() })
    }

    /// Takes a task's part of its user's memory. Without groups, only movers count: other tasks keep no blocks.
    fn share(&self, user: u32, task: &Task) -> std::io::Result<Option<MemoryShare>> {
        match (&self.memory, task) {
            (Bound::Groups(_), _) | (Bound::Turns(_), Task::Node(Work::Agent { .. })) => {
                self.memory.enter(user).map(Some)
            }
            (Bound::Turns(_), _) => Ok(None),
        }
    }

    /// Passes the order to a program, and from then on the caller's bytes.
    fn begin_input<S: Wire>(
        &self,
        stream: &mut S,
        proof: &Proof,
        child: &mut Child,
        order: &Admitted,
        ended: &Arc<Ended>,
    ) -> std::io::Result<()> {
        let Some(mut stdin) = child.stdin.take() else { return Err(std::io::Error::other("no standard input")) };
        // A program that ends before it has read its order reports the reason itself.
        let _ = stdin.write_all(&order.task.line()).and_then(|()| stdin.write_all(&order.rest));
        self.tell(stream, proof, &Answer::Started)?;
        let source = stream.second()?;
        source.limit_off()?;
        let (program, ended) = (Pid::from_child(child), ended.clone());
        let follow = move || {
            let limit = if pass_on(source, stdin) { GRACE } else { WITHOUT_CALLER };
            ended.within(limit, program);
        };
        std::thread::Builder::new().name("input".into()).spawn(follow)?;
        Ok(())
    }
}

/// Records whether a program has ended.
#[derive(Default)]
struct Ended {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// Waits for the program. Its process id becomes free for reuse only after its end has been recorded.
    fn wait(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let id = WaitId::Pid(Pid::from_child(child));
        while let Err(error) = waitid(id.clone(), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
        child.wait()
    }

    /// Sends SIGTERM to a program that has not ended within `limit`.
    fn within(&self, limit: Duration, program: Pid) {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_over, limit, |is_over| !*is_over);
        let (is_over, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !*is_over {
            let _ = kill_process(program, Signal::TERM);
        }
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

/// Refuses a caller without waiting for it.
pub(crate) fn refuse_now(stream: &(impl AsFd + Sized), refusal: &Refusal) {
    let answer = Answer::Refused { reason: refusal.to_string().into() };
    let mut line = serde_json::to_vec(&answer).unwrap_or_default();
    line.push(b'\n');
    // A caller that does not read loses the reason.
    let _ = rustix::net::send(stream, &line, rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL);
}

/// A connection to a caller.
pub(crate) trait Wire: Timed + Write + Send + Sized + 'static {
    fn second(&self) -> std::io::Result<Self>;
    fn limit_off(&self) -> std::io::Result<()>;
    /// Ends the sending direction.
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

/// Returns an accepted connection; `None`: this one failed, but the next may not.
pub(crate) fn accepted<S, A>(result: std::io::Result<(S, A)>) -> std::io::Result<(Option<S>, Option<A>)> {
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

/// True if the system is short of descriptors or memory.
fn is_short(number: i32) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].iter().any(|errno| errno.raw_os_error() == number)
}

/// Reads the bytes that a caller is still sending: closing a connection with unread bytes would discard the answer.
fn drain(stream: &mut impl Timed) {
    let (mut buffer, deadline) = ([0; 8192], Instant::now() + LAST);
    while !deadline.saturating_duration_since(Instant::now()).is_zero() {
        if stream.limit(LAST).is_err() || !matches!(stream.read(&mut buffer), Ok(1..)) {
            return;
        }
    }
}

/// Passes on a caller's bytes until its connection ends, and with it the program's standard input. Returns true if the
/// caller has sent anything: a caller that ends its order does.
fn pass_on(mut source: impl Read, mut stdin: ChildStdin) -> bool {
    let (mut buffer, mut passed) = ([0; MOST_INPUT], 0);
    while passed < MOST_INPUT {
        match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                passed += count;
                if stdin.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    passed > 0
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests;
