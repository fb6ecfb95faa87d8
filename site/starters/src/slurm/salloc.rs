//! A requested Slurm job: the child process salloc, from the queue to the end of the job.
//!
//! salloc keeps the job as long as its own child program runs (`SCRIPT` in [`super`]); this program reads
//! standard input and ends on request. While the job waits in the queue, a signal removes it (see [`crate::leash`]). A
//! gateway that dies leaves salloc and that program behind. They, or an agent's keeper ([`give_back`]), then give the
//! job back when its last agent has ended. If salloc itself is killed, the gateway cancels the job by its number.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use gateway_tasks::{AllocationHandle, AllocationNews};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep_until, timeout};
use types::untrusted::printable;
use wire::control::AllocatedNode;

use super::choices::choices;
use super::command::{ALLOCATION, slurm_command};
use super::job::{SlurmJobError, with_slots};
use super::queue::Queued;
use job::capture::{MOST_OUTPUT, capture};

/// Interval between questions to Slurm about the reason for waiting.
const LOOK: Duration = Duration::from_secs(5);
/// Time limits for an answer from Slurm and for a cancellation.
const ANSWER: Duration = Duration::from_secs(5);
const CANCEL: Duration = Duration::from_secs(2);
/// Most bytes kept of salloc's messages.
const KEEP: usize = 64 << 10;

/// The word that ends the program inside the job.
const END: &[u8] = b"end\n";

/// Gives back the job around this process, if the job was made for its agent and nothing else would do so, because the
/// gateway that started the agent is gone. An agent's keeper calls this at its end.
pub async fn give_back() {
    let variable = |name| std::env::var(name).ok();
    let (Some(name), Some(id)) = (variable(ALLOCATION), variable("SLURM_JOB_ID")) else { return };
    let stdin = rustix::stdio::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::empty())];
    let gone = poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::HUP);
    if gone {
        // The name protects the user's own jobs from being cancelled.
        let mut cancel = slurm_command("scancel");
        let status = cancel.args(["--quiet", &format!("--name={name}"), &id]).kill_on_drop(true).status();
        let _ = timeout(CANCEL, status).await;
    }
}

pub(super) struct Salloc {
    child: Child,
    /// The gateway's end of the standard input of the program that keeps the job.
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    output: String,
    words: String,
    /// The command line of salloc, for messages.
    line: String,
    id: Option<String>,
    granted: bool,
    ended: Option<String>,
    /// The names that the user may request, once Slurm has refused.
    choices: String,
    state: String,
    look: Instant,
    /// True if the last look showed a reason for which the job never starts.
    doomed: bool,
}

impl Salloc {
    /// Takes over a salloc with pipes as its standard files.
    pub(super) fn new(mut child: Child, line: String) -> Salloc {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (output, words, state) = (String::new(), String::new(), String::new());
        let look = Instant::now() + LOOK / 5;
        Salloc {
            child,
            stdin,
            stdout,
            stderr,
            output,
            words,
            line,
            id: None,
            granted: false,
            ended: None,
            choices: String::new(),
            state,
            look,
            doomed: false,
        }
    }

    async fn next(&mut self) -> AllocationNews {
        loop {
            if let Some(reason) = &self.ended {
                // Cancelling a job that is over is not an error, and it is the only safe step after salloc was killed.
                let reason = reason.clone();
                if let Some(id) = self.id.take() {
                    let mut cancel = slurm_command("scancel");
                    let _ = timeout(CANCEL, cancel.args(["--quiet", &id]).kill_on_drop(true).status()).await;
                }
                return AllocationNews::Ended(reason);
            }
            let waits = !self.granted && self.id.is_some();
            tokio::select! {
                biased;
                bytes = read_some(&mut self.stderr) => self.hear(&bytes),
                bytes = read_some(&mut self.stdout) => {
                    self.output.push_str(&String::from_utf8_lossy(&bytes));
                    if self.output.len() > MOST_OUTPUT {
                        self.words = format!("it printed more than {MOST_OUTPUT} bytes");
                        self.output.clear();
                        self.release();
                    }
                    if let Some(news) = self.grant() {
                        return news;
                    }
                }
                status = self.child.wait() => {
                    // salloc's last messages may still be in the pipe.
                    while let Ok(bytes) = timeout(CANCEL / 10, read_some(&mut self.stderr)).await {
                        self.hear(&bytes);
                        if self.stderr.is_none() {
                            break;
                        }
                    }
                    if self.id.is_none() {
                        self.choices = choices().await;
                    }
                    self.ended = Some(self.why(status.ok().and_then(|status| status.code())));
                }
                () = sleep_until(self.look), if waits => {
                    if let Some(news) = self.look_at_queue().await {
                        return news;
                    }
                }
            }
        }
    }

    /// Asks Slurm for the reason why the job waits. Returns it if it has changed; ends the job if it can never start.
    async fn look_at_queue(&mut self) -> Option<AllocationNews> {
        self.look = Instant::now() + LOOK;
        let queued = self.queued().await;
        let state = queued.describe(self.id.as_deref().unwrap_or_default());
        if let Some(why) = queued.never_starts() {
            // Just after a start of Slurm or a change of its configuration, its verdict may be wrong, so a single one
            // does not count.
            if self.doomed {
                self.ended = Some(format!("{state}, and never starts as it is: {why}; the job was cancelled"));
                return None;
            }
            self.look = Instant::now() + LOOK / 5;
        }
        self.doomed = queued.never_starts().is_some();
        if state == self.state {
            return None;
        }
        self.state.clone_from(&state);
        Some(AllocationNews::Waiting(state))
    }

    /// Collects salloc's messages. The first one with a job number gives the number of the job.
    fn hear(&mut self, bytes: &[u8]) {
        if self.words.len() < KEEP {
            self.words.push_str(&String::from_utf8_lossy(bytes));
        }
        if self.id.is_none() {
            self.id = self.words.lines().find_map(job_number);
        }
    }

    /// Parses the output of the script inside the job once it is complete: the job and its tasks, its nodes, an empty
    /// line.
    fn grant(&mut self) -> Option<AllocationNews> {
        let text = self.output.strip_suffix("\n\n").filter(|_| !self.granted)?;
        self.granted = true;
        match granted(text) {
            Ok((id, nodes)) => {
                self.id = Some(id.clone());
                Some(AllocationNews::Granted { id, nodes })
            }
            Err(problem) => {
                self.release();
                self.words = format!("its reply is not usable: {problem}");
                None
            }
        }
    }

    /// The report of squeue on the job.
    async fn queued(&self) -> Queued {
        let id = self.id.as_deref().unwrap_or_default();
        let mut squeue = slurm_command("squeue");
        squeue.args(["--noheader", "--format=%T|%r", "--jobs", id]);
        let answer = capture(&mut squeue, ANSWER).await.ok().filter(|output| output.status.success());
        answer.map_or_else(Queued::default, |output| Queued::read(&output.text()))
    }

    /// The partition of a queued job.
    pub(super) async fn partition(&self) -> Option<String> {
        let id = self.id.as_deref()?;
        let mut squeue = slurm_command("squeue");
        squeue.args(["--noheader", "--format=%P", "--jobs", id]);
        let name = capture(&mut squeue, ANSWER).await.ok()?.text().trim().to_owned();
        (!name.is_empty()).then(|| printable(&name))
    }

    fn why(&self, code: Option<i32>) -> String {
        let line = |line: &str| printable(line.trim().trim_start_matches("salloc: "));
        let words: Vec<String> = self.words.lines().map(line).collect();
        let messages = words.join("; ");
        match (&self.id, self.granted) {
            (Some(id), true) => {
                format!("Slurm job {id} is over: it was cancelled, lost a node, or reached its time limit ({messages})")
            }
            (Some(id), false) => format!("Slurm job {id} was taken out of the queue: {messages}"),
            (None, _) => {
                let code = code.map_or("killed".to_owned(), |code| format!("exit status {code}"));
                format!("Slurm gave no nodes{}: `{}`: {code}: {messages}", self.choices, self.line)
            }
        }
    }
}

impl AllocationHandle for Salloc {
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>> {
        Box::pin(self.next())
    }

    fn release(&mut self) {
        if let Some(stdin) = self.stdin.take().and_then(|stdin| stdin.into_owned_fd().ok()) {
            let _ = rustix::io::write(stdin, END);
        }
        // A job in the queue does not read its input, so it gets a signal.
        if !self.granted
            && let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id as i32))
        {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Salloc {
    fn drop(&mut self) {
        // Dropping kills salloc, which then does not end the job.
        if let Some(id) = self.id.take() {
            let _ = slurm_command("scancel").args(["--quiet", &id]).spawn();
        }
    }
}

/// Reads the available bytes. At its end, `pipe` becomes `None`.
async fn read_some(pipe: &mut Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut buffer = [0; 1024];
    let count = match pipe {
        Some(pipe) => pipe.read(&mut buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    };
    if count == 0 {
        *pipe = None;
    }
    buffer[..count].to_vec()
}

/// The job's number in a message such as `salloc: Pending job allocation 12`. Other lines may be the site's own
/// messages.
fn job_number(line: &str) -> Option<String> {
    let rest = ["Pending", "Granted"]
        .iter()
        .find_map(|word| line.strip_prefix("salloc: ")?.strip_prefix(word)?.strip_prefix(" job allocation "))?;
    let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (!number.is_empty()).then_some(number)
}

fn granted(text: &str) -> Result<(String, Vec<AllocatedNode>), SlurmJobError> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let (id, tasks) = first.split_once(' ').ok_or_else(|| SlurmJobError::Grant(first.to_owned()))?;
    Ok((id.to_owned(), with_slots(lines.map(str::to_owned).collect(), tasks)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_job_is_read() {
        let (id, nodes) = granted("12 2(x2),1\nn1\nn2\nn9").unwrap();
        let nodes: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.slots)).collect();
        assert_eq!((id.as_str(), &nodes[..]), ("12", &[("n1", 2), ("n2", 2), ("n9", 1)][..]));
        assert!(granted("12 2(x2)\nn1").is_err());
        assert!(granted("").is_err());
        assert_eq!(job_number("salloc: Pending job allocation 12"), Some("12".into()));
        assert_eq!(job_number("salloc: Granted job allocation 7"), Some("7".into()));
        for line in
            ["salloc: error: no", "salloc: lua: see job allocation 7", "job allocation 7", "salloc: Granted job 7"]
        {
            assert_eq!(job_number(line), None, "{line}");
        }
    }
}
