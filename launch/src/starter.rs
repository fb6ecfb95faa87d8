//! The local starter: agents as children of the gateway, by way of the words the sites file puts before them.

use std::future::Future;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use gateway::{AgentHandle, AgentOrder, AgentStarter, StartError};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::time::{Instant, sleep_until};
use types::sites::Starter;

use crate::order::Order;
use crate::processes::signal_name;

/// How much of an agent's standard error is kept for messages, in bytes.
const KEEP: usize = 2048;
/// How long an agent may take to clean up before it is killed itself.
const GRACE: Duration = Duration::from_secs(2);

/// Starts agents as children of this process.
///
/// An agent ends when its standard input does, so none outlives this process, whatever way that ends.
#[derive(Clone, Debug)]
pub struct LocalStarter {
    via: Vec<String>,
}

impl LocalStarter {
    /// The starter a sites file describes.
    pub fn new(starter: &Starter) -> LocalStarter {
        let Starter::Local { via } = starter;
        LocalStarter { via: via.clone() }
    }

    fn command(&self, node: &str) -> Result<Command, StartError> {
        let program = std::env::current_exe()
            .map_err(|e| StartError(format!("cannot find the landbridge command itself: {e}")))?;
        let mut words = self.via.iter().map(|word| word.replace("{node}", node).into());
        let mut command = match words.next() {
            None => Command::new(&program),
            Some(first) => {
                let mut command = Command::new::<std::ffi::OsString>(first);
                command.args(words).arg(&program);
                command
            }
        };
        command.arg("agent");
        Ok(command)
    }
}

impl AgentStarter for LocalStarter {
    fn start(&self, order: AgentOrder) -> Result<Box<dyn AgentHandle>, StartError> {
        let mut command = self.command(&order.node)?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        command.process_group(0);
        let name = command.as_std().get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|e| StartError(format!("cannot start {name}: {e}")))?;
        let line = Order {
            job: order.job,
            secret: order.secret,
            home: order.home,
            site_id: order.site_id,
            site: order.site,
            node_id: order.node_id,
            node: order.node,
            node_address: order.node_address,
            gateway_address: order.gateway_address,
        }
        .line()
        .map_err(|e| StartError(e.to_string()))?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        Ok(Box::new(LocalAgent { child, stdin, stderr, order: Some(line), words: Vec::new(), deadline: None }))
    }
}

/// An agent that is a child of this process.
struct LocalAgent {
    child: Child,
    /// Open as long as the agent shall live.
    stdin: Option<ChildStdin>,
    stderr: Option<ChildStderr>,
    /// What is still to be written to its standard input.
    order: Option<Vec<u8>>,
    words: Vec<u8>,
    deadline: Option<Instant>,
}

impl AgentHandle for LocalAgent {
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>> {
        Box::pin(self.ended())
    }

    fn kill(&mut self) {
        self.stdin = None;
        self.signal(Signal::TERM);
        self.deadline.get_or_insert(Instant::now() + GRACE);
    }
}

impl LocalAgent {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id as i32)) {
            let _ = kill_process(pid, signal);
        }
    }

    async fn ended(&mut self) -> String {
        let mut buffer = [0; 1024];
        loop {
            // Order first: until the agent has it, nothing else happens. An order is one write below a pipe's capacity.
            if let (Some(stdin), Some(order)) = (self.stdin.as_mut(), self.order.take())
                && stdin.write_all(&order).await.is_err()
            {
                self.stdin = None;
            }
            let deadline = self.deadline;
            tokio::select! {
                biased;
                read = read_some(&mut self.stderr, &mut buffer) => match read {
                    0 => self.stderr = None,
                    count => {
                        self.words.extend_from_slice(&buffer[..count]);
                        let excess = self.words.len().saturating_sub(KEEP);
                        self.words.drain(..excess);
                    }
                },
                status = self.child.wait() => return self.describe(status),
                () = until(deadline) => {
                    self.signal(Signal::KILL);
                    self.deadline = None;
                }
            }
        }
    }

    fn describe(&self, status: std::io::Result<std::process::ExitStatus>) -> String {
        use std::os::unix::process::ExitStatusExt;
        let ended = match status {
            Err(e) => format!("cannot be waited for: {e}"),
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (None, Some(signal)) => format!("killed by signal {signal} ({})", signal_name(signal)),
                (None, None) => status.to_string(),
            },
        };
        let words = String::from_utf8_lossy(&self.words);
        match words.trim() {
            "" => ended,
            words => format!("{ended}: {}", words.lines().collect::<Vec<_>>().join("; ")),
        }
    }
}

async fn read_some(stderr: &mut Option<ChildStderr>, buffer: &mut [u8]) -> usize {
    match stderr {
        Some(stderr) => stderr.read(buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
