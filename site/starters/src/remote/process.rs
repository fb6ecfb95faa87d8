//! The program beside the gateway that stands for one agent: the agent itself, or a program such as ssh or srun.

use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use gateway_tasks::{AgentHandle, StartError};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, sleep_until};

use job::descriptors;
use job::processes::signal_name;

/// Most bytes of a program's standard error that messages quote.
const KEEP: u64 = 2048;
/// Most bytes of its end that are searched for a panic.
const SEARCH: u64 = 64 << 10;
/// Size at which it is emptied, and the interval of the check: the program may be a login that prints without end.
const MOST: u64 = 1 << 20;
const TRIM: Duration = Duration::from_secs(1);
/// Time limit for an agent to clean up before it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// Time for an agent on another machine to notice the end of its standard input before its connection is cut.
const HANGUP: Duration = Duration::from_millis(300);

/// The line, after the order on its standard input, that makes an agent end.
const END: &[u8] = b"end\n";

/// The way to end a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The program is the agent: SIGTERM.
    Child,
    /// The program carries standard input to the agent: end this input. A signal would only cut the connection.
    Remote,
}

/// Explains an exit code and the end of standard error; `None` for the text "exit status 1: …".
type Explain = Box<dyn Fn(i32, &str) -> Option<String> + Send>;

/// A started agent.
pub(crate) struct AgentProcess {
    child: Child,
    manner: Manner,
    /// Open as long as the agent must run.
    stdin: Option<ChildStdin>,
    /// The program's standard error: a file without a path, because the agent may outlive this process, and a program
    /// such as srun ends when it cannot pass on the agent's output.
    words: File,
    /// The bytes that must still be written to standard input.
    order: Option<Vec<u8>>,
    /// True if standard input is closed after that.
    last: bool,
    next: Option<(Instant, Signal)>,
    explain: Explain,
}

impl AgentProcess {
    /// Starts a program in a process group of its own and gives it `order`.
    pub(crate) fn start(mut command: Command, order: Vec<u8>, manner: Manner) -> Result<AgentProcess, StartError> {
        let no_file = |e: std::io::Error| StartError(format!("cannot keep the output of agents: {e}"));
        let words = memfd_create("landbridge-agent", MemfdFlags::CLOEXEC).map_err(|e| no_file(e.into()))?;
        // Appending, so that the file can be emptied while the program writes.
        fcntl_setfl(&words, OFlags::APPEND).map_err(|e| no_file(e.into()))?;
        let words = File::from(words);
        let theirs = words.try_clone().map_err(no_file)?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(theirs).kill_on_drop(true);
        command.process_group(0);
        descriptors::tell(&mut command);
        let name = command.as_std().get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|e| StartError(format!("cannot start {name}: {e}")))?;
        let stdin = child.stdin.take();
        let explain: Explain = Box::new(|_, _| None);
        Ok(AgentProcess { child, manner, stdin, words, order: Some(order), last: false, next: None, explain })
    }

    /// Adds a function that explains exit codes.
    pub(crate) fn explained(mut self, explain: impl Fn(i32, &str) -> Option<String> + Send + 'static) -> AgentProcess {
        self.explain = Box::new(explain);
        self
    }
}

impl AgentHandle for AgentProcess {
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>> {
        Box::pin(self.ended())
    }

    fn kill(&mut self) {
        if self.next.is_none() {
            self.order.get_or_insert_default().extend_from_slice(END);
            self.last = true;
            self.next = Some(match self.manner {
                Manner::Child => {
                    self.signal(Signal::TERM);
                    (Instant::now() + GRACE, Signal::KILL)
                }
                Manner::Remote => (Instant::now() + HANGUP, Signal::TERM),
            });
        }
    }

    fn let_go(&mut self) {
        // An agent on this machine notices by itself that its job is over. A program that carries input elsewhere may
        // pass other signals on.
        if self.manner == Manner::Remote && self.next.is_none() {
            self.stdin = None;
            self.next = Some((Instant::now() + HANGUP, Signal::KILL));
        }
    }
}

impl AgentProcess {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id as i32)) {
            let _ = kill_process(pid, signal);
        }
    }

    async fn ended(&mut self) -> String {
        loop {
            // The order comes first: without it, the agent does nothing. An order is one write, shorter than a pipe's
            // capacity.
            if let (Some(stdin), Some(order)) = (self.stdin.as_mut(), self.order.take())
                && (stdin.write_all(&order).await.is_err() || self.last)
            {
                self.stdin = None;
            }
            let next = self.next;
            tokio::select! {
                biased;
                status = self.child.wait() => return self.describe(status),
                () = sleep(TRIM) => trim(&self.words),
                signal = due(next) => {
                    self.signal(signal);
                    self.next = (signal != Signal::KILL).then(|| (Instant::now() + GRACE, Signal::KILL));
                }
            }
        }
    }

    fn describe(&self, status: std::io::Result<std::process::ExitStatus>) -> String {
        use std::os::unix::process::ExitStatusExt;
        let words = last_words(&self.words);
        let words = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        let ended = match status {
            Err(e) => format!("cannot be waited for: {e}"),
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => match (self.explain)(code, &words) {
                    Some(explained) => return explained,
                    None => format!("exit status {code}"),
                },
                (None, Some(signal)) => format!("killed by signal {signal} ({})", signal_name(signal)),
                (None, None) => status.to_string(),
            },
        };
        if words.is_empty() { ended } else { format!("{ended}: {words}") }
    }
}

/// Empties the file if the program has written more than is ever read.
fn trim(file: &File) {
    if file.metadata().is_ok_and(|found| found.len() > MOST) {
        let _ = file.set_len(0);
    }
}

/// The useful end of the file, at most [`KEEP`] bytes.
pub(crate) fn last_words(file: &File) -> String {
    let length = file.metadata().map_or(0, |found| found.len());
    let begin = length.saturating_sub(SEARCH);
    let mut bytes = vec![0; (length - begin) as usize];
    // The program may still be writing; later bytes are not read.
    match file.read_exact_at(&mut bytes, begin) {
        Ok(()) => telling(&bytes),
        Err(_) => String::new(),
    }
}

/// The end of a program's output, at most [`KEEP`] bytes. For a panic, the beginning of its message, which has the
/// reason, instead of the backtrace.
fn telling(written: &[u8]) -> String {
    let text = String::from_utf8_lossy(written);
    let keep = KEEP as usize;
    let Some(at) = text.find("panicked at ") else {
        return String::from_utf8_lossy(&written[written.len().saturating_sub(keep)..]).into_owned();
    };
    let begin = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let is_trace = |line: &&str| line.starts_with("stack backtrace:") || line.starts_with("note: run with");
    let reason: Vec<&str> = text[begin..].lines().take_while(|line| !is_trace(line)).collect();
    let reason = reason.join("\n");
    String::from_utf8_lossy(&reason.as_bytes()[..reason.len().min(keep)]).into_owned()
}

/// Waits until the next signal is due and returns it.
async fn due(next: Option<(Instant, Signal)>) -> Signal {
    match next {
        Some((deadline, signal)) => {
            sleep_until(deadline).await;
            signal
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use gateway_tasks::AgentHandle;

    use super::*;

    #[test]
    fn the_reason_of_a_panic_is_told_and_not_its_backtrace() {
        let trace = "  12: std::rt::lang_start\n".repeat(500);
        let panic = "thread 'main' panicked at src/x.rs:7:9:\nSystemTimeError(1s)\n";
        let text = format!("warning: x\n{panic}stack backtrace:\n{trace}");
        assert_eq!(telling(text.as_bytes()), panic.trim_end());
        assert_eq!(telling(b"no memory\n"), "no memory\n");
        assert_eq!(telling(&[b'x'; 5000]).len(), KEEP as usize);
    }

    #[tokio::test]
    async fn the_words_of_a_program_that_prints_without_end_take_little_memory() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 5000000 /dev/zero >&2; read -r order; sleep 3; echo the end >&2; exit 3"]);
        let mut agent =
            AgentProcess::start(command, b"go\n".to_vec(), Manner::Child).unwrap_or_else(|e| panic!("{}", e.0));
        assert_eq!(agent.wait().await, "exit status 3: the end");
        assert!(agent.words.metadata().unwrap().len() < KEEP);
    }
}
