//! The connection to a site's machine: one run of the user's own ssh, which carries everything.
//!
//! A small shell script reports facts about the machine, receives the missing files of a [`Release`], and becomes the
//! program among them (`landbridge site-end`), which then answers requests. There is only one connection, so a user who
//! needs a password is asked once. When this process dies, the other end reads the end of its input and ends too.

mod dialogue;
mod job;
mod ssh;

use std::borrow::Cow;
use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::job::capture::Tail;
use thiserror::Error;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use types::UntrustedText;
use types::shell::literal;

pub use self::job::{Input, Streams};
use crate::message::{Reply, SiteRequest};
use crate::place::MachinePlace;
use crate::release::{File, Release};
use crate::{Progress, SetupError};
use dialogue::last_words;

const SCRIPT: &str = include_str!("bootstrap.sh");
/// Folder of the copies, unless the user names another.
pub const FOLDER: &str = "~/.local/share/landbridge";
/// Time limits for reaching a machine: without a user to ask for a password, and with one.
const REACH: Duration = Duration::from_secs(45);
const REACH_ASKING: Duration = Duration::from_secs(180);
/// Time limit for one piece of a file.
const PIECE: Duration = Duration::from_secs(60);
/// Time limit for one step of the script.
const STEP: Duration = Duration::from_secs(30);
/// Number of signals after which this end stops waiting for a job to end.
const PATIENCE: u32 = 3;
const PIECE_LEN: usize = 64 << 10;
/// Limit on the bytes read before the program there runs: greetings of the login, and the reports of the script.
const MOST_DIALOGUE: u64 = 1 << 20;
/// Limit on the bytes read for a reply.
const MOST_REPLY: u64 = 8 << 20;
/// Interval at which the start command is sent again until the login begins: a start-up file there may have read the
/// command, or started another shell.
const NUDGE: Duration = Duration::from_secs(3);
/// Time limit for reading ssh's output after ssh has ended. Before release 8.5, the process that keeps a shared
/// connection of OpenSSH keeps this pipe open too.
const LINGER: Duration = Duration::from_millis(500);

/// The script's report about a machine.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// `uname -s`.
    pub os: UntrustedText,
    /// `uname -m`.
    pub architecture: UntrustedText,
    /// `uname -n`.
    pub host: UntrustedText,
    pub user: UntrustedText,
    /// The C library and its version.
    pub libc: UntrustedText,
    /// The folder of the release there.
    pub folder: UntrustedText,
    /// The folder that holds the releases there.
    pub base: UntrustedText,
    /// Releases that exist there, newest first.
    pub releases: Vec<String>,
    /// Files of the release that exist there, by name, with their sums.
    have: HashMap<String, String>,
    /// The machine has gzip, so files may be sent compressed.
    unpacks: bool,
}

/// The means to reach a machine.
#[derive(Clone, Debug)]
pub struct Way<'a> {
    /// The name of the site, for messages.
    pub site: &'a str,
    pub place: &'a MachinePlace,
    /// Folder of the copies; `None`: [`FOLDER`].
    pub folder: Option<&'a str>,
    /// A user is at the terminal and can be asked.
    pub asking: bool,
}

/// A machine whose program answers requests.
#[derive(Debug)]
pub struct Machine {
    pub facts: Facts,
    /// Number of files that had to be copied.
    pub copied: usize,
    site: String,
    place: MachinePlace,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The end of ssh's standard error, and the task that reads it.
    words: Arc<Mutex<Tail>>,
    reading: JoinHandle<()>,
    /// The end of the output there that is not part of the dialogue.
    printed: Tail,
    /// Number of bytes that may still be read.
    budget: u64,
    /// Takes the channel that receives standard error from then on.
    heard: Option<oneshot::Sender<mpsc::Sender<Vec<u8>>>>,
    mark: String,
}

/// Reasons for reading nothing more from the other end.
#[derive(Debug, Error)]
enum Unheard {
    /// The script reports that it cannot continue, with the reason.
    #[error("{0}")]
    Failed(String),
    /// The connection was closed; ssh's standard error contains the reason.
    #[error("")]
    Closed,
    #[error("it prints without end")]
    Endless,
    #[error(transparent)]
    Io(std::io::Error),
}

impl Machine {
    /// Reaches a machine and starts the release's program there.
    ///
    /// # Errors
    /// [`SetupError::Reach`] with ssh's message, or [`SetupError::Site`] with the missing requirement of the machine.
    pub async fn reach(way: &Way<'_>, release: &Release, progress: &mut dyn Progress) -> Result<Machine, SetupError> {
        let mut machine = Machine::open(way, &release.id, progress).await?;
        let id = machine.suits(release)?;
        // Otherwise the machine runs a release of its own, and ours is for another architecture.
        if id == release.id {
            machine.copy(release, progress).await?;
        }
        machine.write(format!("go {id}\n").as_bytes()).await?;
        machine.expect("go", STEP).await?;
        machine.printed = Tail::default();
        Ok(machine)
    }

    /// Copies the missing files, compressed if both ends have gzip.
    async fn copy(&mut self, release: &Release, progress: &mut dyn Progress) -> Result<(), SetupError> {
        let missing = |file: &&File| self.facts.have.get(file.name) != Some(&file.sum);
        let missing: Vec<&File> = release.files.iter().filter(missing).collect();
        let is_packed = self.facts.unpacks
            && self.place != MachinePlace::Here
            && missing.iter().all(|file| file.packed().is_some())
            && !missing.is_empty();
        if is_packed {
            self.write(b"gzip\n").await?;
        }
        let mut contents = Vec::new();
        for file in &missing {
            contents.push(match file.packed().filter(|_| is_packed) {
                Some(packed) => Cow::Borrowed(packed),
                None => Cow::Owned(file.bytes()?),
            });
        }
        let (mut done, total) = (0, contents.iter().map(|bytes| bytes.len() as u64).sum());
        for (file, bytes) in missing.iter().zip(&contents) {
            let (size, how) = (bytes.len() as f64 / 1e6, if is_packed { " compressed" } else { "" });
            progress.step(&self.site, &format!("copying {} ({size:.1} MB{how})", file.name));
            self.write(format!("put {} {} {}\n", file.name, bytes.len(), file.sum).as_bytes()).await?;
            for piece in bytes.chunks(PIECE_LEN) {
                // If the script has given up, its next line contains the reason.
                if self.write(piece).await.is_err() {
                    break;
                }
                done += piece.len() as u64;
                progress.part(&self.site, done, total);
            }
            self.expect("put", PIECE).await?;
            self.copied += 1;
        }
        Ok(())
    }

    async fn open(way: &Way<'_>, id: &str, progress: &mut dyn Progress) -> Result<Machine, SetupError> {
        match Machine::try_open(way, id, false).await {
            Err(ssh::Unreachable { asks: true, problem }) if way.asking => {
                progress.step(way.site, &format!("ssh needs you ({problem}); it asks once"));
                Machine::try_open(way, id, true).await
            }
            other => other,
        }
        .map_err(|refusal| match way.place {
            MachinePlace::Here => SetupError::site(way.site, refusal.problem),
            place => SetupError::Reach {
                site: way.site.to_owned(),
                place: place.to_string(),
                problem: refusal.advice(place),
            },
        })
    }

    async fn try_open(way: &Way<'_>, id: &str, asking: bool) -> Result<Machine, ssh::Unreachable> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| ssh::Unreachable::new(format!("no random numbers: {e}")))?;
        let mark = format!("landbridge-{:016x}", u64::from_le_bytes(random));
        let folder = literal(way.folder.unwrap_or(FOLDER));
        let script = format!("mark={mark}\nid={}\nfolder={folder}\n{SCRIPT}", literal(id));
        let line = ssh::reading_script(&mark, script.len());
        let mut command = ssh::command(way.place, &line, asking);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let started = command.spawn().map_err(|e| ssh::Unreachable::new(format!("cannot start a shell: {e}")));
        let mut child = started?;
        let (Some(input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(ssh::Unreachable::new("no pipes"));
        };
        let (heard, hears) = oneshot::channel();
        let words = Arc::new(Mutex::new(Tail::default()));
        let mut machine = Machine {
            facts: Facts::default(),
            copied: 0,
            site: way.site.to_owned(),
            place: way.place.clone(),
            child,
            input,
            output: BufReader::new(output),
            reading: tokio::spawn(last_words(errors, words.clone(), hears)),
            words,
            printed: Tail::default(),
            budget: MOST_DIALOGUE,
            heard: Some(heard),
            mark,
        };
        let limit = if asking { REACH_ASKING } else { REACH };
        let reached = timeout(limit, async {
            machine.begun(&line).await?;
            // If the other end does not read, reading from it below gives a better error.
            let _ = machine.input.write_all(format!("{}\n{script}", machine.mark).as_bytes()).await;
            machine.listen().await
        });
        match reached.await {
            Ok(Ok(())) => Ok(machine),
            Ok(Err(error)) => Err(machine.refusal(error.to_string()).await),
            Err(_) => Err(machine.refusal(format!("no answer within {} s", limit.as_secs())).await),
        }
    }

    /// Waits until the shell there is ready for the script. The script is not sent before, because a start-up file
    /// there may read standard input. If a start-up file has read a line or started another shell, the command is sent
    /// again; `/bin/sh` skips surplus commands.
    async fn begun(&mut self, line: &str) -> Result<(), Unheard> {
        let nudge = format!("\n{line}\n");
        let mut reading = Vec::new();
        let mut next = Instant::now() + NUDGE;
        loop {
            tokio::select! {
                read = self.read_line(&mut reading) => match read? {
                    false => return Err(Unheard::Closed),
                    true => {
                        let begins = self.marked(&reading).is_some_and(|(key, _)| key == "begin");
                        reading.clear();
                        if begins {
                            return Ok(());
                        }
                    }
                },
                () = sleep_until(next) => {
                    let _ = self.input.write_all(nudge.as_bytes()).await;
                    next += NUDGE;
                }
            }
        }
    }

    /// The release to run there: this one or, on another architecture, the machine's own of the same version.
    fn suits(&self, release: &Release) -> Result<String, SetupError> {
        let (facts, ours) = (&self.facts, &release.architecture);
        if facts.os.raw() != "Linux" {
            let text = format!("{} runs `{}`, not Linux", facts.host, facts.os);
            return Err(SetupError::site(&self.site, text));
        }
        if facts.architecture.raw() != ours {
            let version = release.id.split('-').next().unwrap_or_default();
            if let Some(own) = facts.releases.iter().find(|id| id.split('-').next() == Some(version)) {
                return Ok(own.clone());
            }
            return Err(SetupError::site(
                &self.site,
                format!(
                    "{} is {}, this landbridge is for {ours}: build it for {0} and give its folder with --programs DIR",
                    facts.host, facts.architecture
                ),
            ));
        }
        Ok(release.id.clone())
    }

    /// Sends bytes to the other end.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<(), SetupError> {
        match timeout(PIECE, self.input.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.lost(String::new()).await),
            Err(_) => Err(SetupError::site(&self.site, format!("took nothing for {} s", PIECE.as_secs()))),
        }
    }

    /// Waits for the script to send this word.
    async fn expect(&mut self, wanted: &str, limit: Duration) -> Result<String, SetupError> {
        match timeout(limit, self.word()).await {
            Ok(Ok(Some((key, value)))) if key == wanted => Ok(value),
            Ok(Ok(Some((key, value)))) if key == "fail" => Err(SetupError::site(&self.site, hint(&value))),
            Ok(Ok(Some((key, _)))) => {
                let key = UntrustedText::from(key);
                Err(SetupError::site(&self.site, format!("said `{key}` instead of `{wanted}`")))
            }
            Ok(Ok(None)) => Err(self.lost(String::new()).await),
            Ok(Err(error)) => Err(self.lost(error.to_string()).await),
            Err(_) => Err(SetupError::site(&self.site, format!("no answer within {} s", limit.as_secs()))),
        }
    }

    /// Sends a request to the program at the other end and waits for the reply.
    ///
    /// # Errors
    /// [`SetupError::Site`] with the program's error, or with the reason for a missing reply.
    pub async fn ask(&mut self, request: &SiteRequest) -> Result<Reply, SetupError> {
        self.begin(request).await?;
        self.answer(request).await
    }

    /// Sends a request. The content of files may follow.
    pub(crate) async fn begin(&mut self, request: &SiteRequest) -> Result<(), SetupError> {
        let mut line = serde_json::to_vec(request).map_err(|e| SetupError::site(&self.site, e.to_string()))?;
        line.push(b'\n');
        self.write(&line).await
    }

    /// Waits for the reply to a request.
    pub(crate) async fn answer(&mut self, request: &SiteRequest) -> Result<Reply, SetupError> {
        let limit = request.limit();
        let answer = match timeout(limit, self.reply()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return Err(self.lost(String::new()).await),
            Ok(Err(error)) => return Err(self.lost(error.to_string()).await),
            Err(_) => {
                let text = format!("{}: no answer within {} s", request.name(), limit.as_secs());
                return Err(SetupError::site(&self.site, text));
            }
        };
        match Reply::read(&answer) {
            Ok(Reply::Failed { problem }) => Err(SetupError::site(&self.site, problem)),
            Ok(reply) => Ok(reply),
            Err(e) => {
                let e = UntrustedText::from(e.to_string());
                Err(SetupError::site(
                    &self.site,
                    format!(
                        "an answer that makes no sense: {e}; does a start-up file of the login shell there print something, or is \
                     another program called landbridge found first?"
                    ),
                ))
            }
        }
    }

    /// The error for a lost connection, with ssh's last message.
    async fn lost(&mut self, problem: String) -> SetupError {
        let refusal = self.end(problem).await;
        SetupError::site(&self.site, format!("{}: the connection is lost: {}", self.place, refusal.problem))
    }

    async fn refusal(mut self, problem: String) -> ssh::Unreachable {
        self.end(problem).await
    }

    async fn end(&mut self, problem: String) -> ssh::Unreachable {
        let code = match timeout(Duration::from_millis(500), self.child.wait()).await {
            Ok(Ok(status)) => status.code(),
            _ => None,
        };
        // A shared connection may keep the pipe open: use the bytes that ssh has written so far.
        let _ = self.child.start_kill();
        let _ = timeout(LINGER, &mut self.reading).await;
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ssh::Unreachable::judge(problem, code, &words, &self.printed)
    }
}

/// The problem that the script reported, with its remedy.
fn hint(problem: &str) -> String {
    let advice = if problem.contains("Permission denied") && problem.contains("does not run") {
        "; is that folder on a file system without execution (noexec)? Choose another with --folder DIR"
    } else if problem.contains("GLIBC_") || problem.contains("libc.so") {
        "; its C library is older than the one this landbridge was built with: build it there, or on as old a system, and \
         give that folder with --programs DIR"
    } else if problem.contains("Permission denied") || problem.contains("Read-only file system") {
        "; choose a folder that is yours with --folder DIR"
    } else if problem.contains("cannot write") || problem.contains("cannot make") || problem.contains("arrive whole") {
        "; make room there, or choose another folder with --folder DIR"
    } else {
        ""
    };
    format!("{}{advice}", UntrustedText::from(problem))
}

#[cfg(test)]
mod tests;
