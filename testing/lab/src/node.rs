//! The first process of every host: makes the host's namespaces, then runs commands for clients of its socket.
//!
//! In a loopback lab one such process serves all hosts and makes no namespaces.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::connection::{self, TcpConnection};
use crate::error::LabError;
use crate::message::{Channel, LabMessage, LabMessageKind};
use crate::namespace;
use crate::network::{self, Script};
use crate::process::{adopt_orphans, end_descendants, expect, follow_parent, resume, stop_all};
use crate::signals::Signals;

/// The description of one host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodePlan {
    pub name: String,
    /// The socket on which it listens for commands.
    pub socket: PathBuf,
    /// `None`: a loopback lab.
    pub isolated: Option<IsolatedPlan>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IsolatedPlan {
    pub hosts_file: PathBuf,
    pub visible: Vec<PathBuf>,
    /// The site's pool: its path, and its mount point on the host.
    pub pool: Option<(PathBuf, PathBuf)>,
    pub script: Script,
    pub forward: bool,
    /// True if a host of the lab has an IPv6 address.
    pub ipv6: bool,
}

/// Time limit for one message of a client.
const MESSAGE_LIMIT: Duration = Duration::from_secs(2);

/// The entry point of the hidden command `lab-node`: talks to the supervisor over standard input.
pub(crate) fn main() -> i32 {
    let Ok(channel) = Channel::from_stdin() else { return 1 };
    match serve(&channel) {
        Ok(()) => 0,
        Err(error) => {
            // The supervisor also sees our exit code.
            let _ = channel.send_json(LabMessageKind::Failed, &error);
            1
        }
    }
}

fn serve(channel: &Channel) -> Result<(), LabError> {
    let message = expect(channel, LabMessageKind::Plan, "supervisor")?;
    let plan: NodePlan = message.json().map_err(|e| LabError::setup("plan of a host", e))?;
    let wrong = |e: io::Error| LabError::setup(&plan.name, e);
    match &plan.isolated {
        Some(isolated) => {
            follow_parent(channel)?;
            namespace::enter_host(&plan.name, &isolated.hosts_file, &isolated.visible)?;
            if let Some((pool, at)) = &isolated.pool {
                namespace::show_pool(pool, at)?;
            }
            channel.send(LabMessageKind::Namespaces, &[]).map_err(wrong)?;
            expect(channel, LabMessageKind::Go, "supervisor")?;
            namespace::settle_network(isolated.forward, isolated.ipv6)?;
            network::apply(&isolated.script, &plan.name)?;
        }
        // Orphaned processes become our children, so that we can end them.
        None => adopt_orphans()?,
    }
    std::env::set_current_dir("/").map_err(wrong)?;
    let signals = Signals::watch(&[libc::SIGCHLD]).map_err(wrong)?;
    let listener = UnixListener::bind(&plan.socket).map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    channel.send(LabMessageKind::Ready, &[]).map_err(wrong)?;
    let mut init = Init { clients: Vec::new(), plan, frozen: None };
    let outcome = init.run(channel, &signals, &listener).map_err(|e| LabError::setup(&init.plan.name, e));
    // From here on no client can connect. The client that requested the end sees its connection close when all
    // processes are gone.
    drop(listener);
    init.clients.iter().for_each(|client| signal_group(client, Signal::KILL));
    end_descendants();
    outcome
}

struct Client {
    channel: Channel,
    /// The leader of the process group of this client's command, until it is reaped.
    leader: Option<Pid>,
    /// The command that the client requested while the host was frozen.
    waiting: Option<LabMessage>,
}

struct Init {
    clients: Vec<Client>,
    plan: NodePlan,
    /// The stopped processes, while the host is frozen.
    frozen: Option<Vec<Pid>>,
}

impl Init {
    /// Serves until the supervisor is gone or a client kills the host.
    fn run(&mut self, channel: &Channel, signals: &Signals, listener: &UnixListener) -> io::Result<()> {
        loop {
            let mut fds = vec![
                PollFd::new(channel, PollFlags::IN),
                PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN),
                PollFd::new(listener, PollFlags::IN),
            ];
            let heard: Vec<usize> = (0..self.clients.len()).filter(|index| self.hears(&self.clients[*index])).collect();
            fds.extend(heard.iter().map(|index| PollFd::new(&self.clients[*index].channel, PollFlags::IN)));
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let woken: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if woken[0] {
                return Ok(());
            }
            // Serve requests before reaping: a signal for a group that has just ended must not reach another process
            // with the same id.
            let mut gone = Vec::new();
            for (index, _) in heard.into_iter().zip(&woken[3..]).filter(|(_, woken)| **woken) {
                match self.serve_client(index) {
                    ClientFate::Keep => {}
                    ClientFate::Drop => gone.push(index),
                    ClientFate::Die => return Ok(()),
                }
            }
            for index in gone.into_iter().rev() {
                self.clients.remove(index);
            }
            if woken[1] {
                signals.take();
                self.reap();
            }
            if woken[2] {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(false)?;
                    stream.set_write_timeout(Some(MESSAGE_LIMIT))?;
                    self.clients.push(Client { channel: Channel::new(stream), leader: None, waiting: None });
                }
            }
        }
    }

    /// True if this client's messages are read now. A frozen host does not read messages about its commands, and does
    /// not notice that a client is gone.
    fn hears(&self, client: &Client) -> bool {
        self.frozen.is_none() || (client.leader.is_none() && client.waiting.is_none())
    }

    fn reap(&mut self) {
        // An error here means that there are no children.
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.clients.retain(|client| {
                if client.leader != Some(pid) {
                    return true;
                }
                // A client that is gone needs no answer.
                let _ = client.channel.send_number(LabMessageKind::Exit, status.as_raw());
                false
            });
        }
    }
}

/// Handles a client that is gone. Sends only SIGHUP: sshd kills nothing either, so here too a program that must end has
/// to notice by itself.
fn hang_up(client: &Client) {
    signal_group(client, Signal::HUP);
}

fn signal_group(client: &Client, signal: Signal) {
    if let Some(leader) = client.leader {
        // A group that has already ended is fine.
        let _ = rustix::process::kill_process_group(leader, signal);
    }
}

/// The fate of a client after a message.
enum ClientFate {
    Keep,
    Drop,
    Die,
}

impl Init {
    /// Handles one message of a client.
    fn serve_client(&mut self, index: usize) -> ClientFate {
        let client = &mut self.clients[index];
        let Ok(Some(message)) = client.channel.receive(Some(MESSAGE_LIMIT)) else {
            hang_up(client);
            return ClientFate::Drop;
        };
        match message.kind {
            LabMessageKind::Run if client.leader.is_none() && self.frozen.is_some() => client.waiting = Some(message),
            LabMessageKind::Run if client.leader.is_none() => return start_for(client, message),
            LabMessageKind::Signal => {
                if let Some(signal) = message.number().ok().and_then(Signal::from_named_raw) {
                    signal_group(client, signal);
                }
            }
            LabMessageKind::Listens => {
                let address = message.fields.first().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
                let answer = u8::from(address.is_some_and(network::listens));
                if client.channel.send(LabMessageKind::Answer, &[&[answer]]).is_err() {
                    return ClientFate::Drop;
                }
            }
            LabMessageKind::Die => return ClientFate::Die,
            LabMessageKind::Freeze | LabMessageKind::Thaw | LabMessageKind::Reset => {
                let answer = self.fail(&message);
                let channel = &self.clients[index].channel;
                // A client that is gone needs no answer; a client that froze its own host reads it after the thaw.
                let _ = match answer {
                    Ok(connection) => channel.send_json(LabMessageKind::Done, &connection),
                    Err(error) => channel.send_json(LabMessageKind::Failed, &error),
                };
                return ClientFate::Drop;
            }
            _ => {
                hang_up(client);
                return ClientFate::Drop;
            }
        }
        ClientFate::Keep
    }

    /// Simulates a failure of this host. Returns the connection that was reset, if any.
    fn fail(&mut self, message: &LabMessage) -> Result<Option<TcpConnection>, LabError> {
        let Some(isolated) = &self.plan.isolated else {
            return Err(LabError::loopback(match message.kind {
                LabMessageKind::Reset => "has connections that are not the lab's",
                _ => "cannot stop and go on in parts",
            }));
        };
        match message.kind {
            LabMessageKind::Reset => {
                let wanted = message.json().map_err(|e| LabError::setup("a request to reset a connection", e))?;
                return connection::reset(&self.plan.name, &wanted, &isolated.hosts_file).map(Some);
            }
            LabMessageKind::Freeze if self.frozen.is_none() => self.frozen = Some(stop_all(&self.plan.name)?),
            LabMessageKind::Thaw => self.thaw(),
            _ => {}
        }
        Ok(None)
    }

    fn thaw(&mut self) {
        resume(self.frozen.take().unwrap_or_default());
        self.clients.retain_mut(|client| match client.waiting.take() {
            Some(message) => matches!(start_for(client, message), ClientFate::Keep),
            None => true,
        });
    }
}

/// Runs the command that a client requests.
fn start_for(client: &mut Client, message: LabMessage) -> ClientFate {
    match run(message) {
        Ok(leader) => {
            client.leader = Some(leader);
            ClientFate::Keep
        }
        Err(error) => {
            // A client that is gone needs no answer.
            let _ = client.channel.send_json(LabMessageKind::Failed, &error);
            ClientFate::Drop
        }
    }
}

/// Starts the command of a `Run` message, whose fields are: node, directory, number of words, words, environment.
fn run(message: LabMessage) -> Result<Pid, LabError> {
    let malformed = || LabError::setup("a request to run a command", "malformed");
    let files: [OwnedFd; 3] = message.files.try_into().map_err(|_| malformed())?;
    let mut fields = message.fields.into_iter();
    let mut next = || fields.next().ok_or_else(malformed);
    let node = String::from_utf8(next()?).map_err(|_| malformed())?;
    let directory = PathBuf::from(OsString::from_vec(next()?));
    let count = u32::from_le_bytes(next()?.try_into().map_err(|_| malformed())?);
    let program = OsString::from_vec(next()?);
    let words = (1..count).map(|_| next().map(OsString::from_vec)).collect::<Result<Vec<_>, _>>()?;
    let environment: Vec<(OsString, OsString)> = fields
        .filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(pair[..at].to_vec()), OsString::from_vec(pair[at + 1..].to_vec())))
        })
        .collect();
    let path = environment.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone()).unwrap_or_default();
    if let Err(e) = std::fs::metadata(&directory) {
        // Not ENOENT: the shell's exit code for a missing program would mislead.
        return Err(LabError::Command {
            node: node.clone(),
            problem: format!("working directory {}: {e}", directory.display()),
            errno: libc::ENOTDIR,
        });
    }
    let [stdin, stdout, stderr] = files.map(Stdio::from);
    let child = Command::new(&program)
        .args(words)
        .env_clear()
        .envs(environment)
        .current_dir(&directory)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0)
        .spawn()
        .map_err(|e| {
            let mut errno = e.raw_os_error().unwrap_or(libc::EIO);
            // A directory on PATH without search permission makes the system report "permission denied" for any name.
            if errno == libc::EACCES && !is_on_path(&program, &path) {
                errno = libc::ENOENT;
            }
            let problem = format!("{}: {}", program.to_string_lossy(), io::Error::from_raw_os_error(errno));
            LabError::Command { node, problem, errno }
        })?;
    // `Child` is not waited for: `reap` collects every process of the host.
    Pid::from_raw(child.id() as i32).ok_or_else(malformed)
}

/// True if this process can see a program of that name; a name with a slash is used as a path.
fn is_on_path(program: &OsString, path: &OsString) -> bool {
    let program = Path::new(program);
    program.components().count() > 1
        || program.is_absolute()
        || std::env::split_paths(path).any(|directory| directory.join(program).exists())
}
