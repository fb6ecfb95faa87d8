//! A command from a machine that is not a site: it runs here, connected to its user by frames.

use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use job::home::expand;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::error::HereError;
use super::folders::Folders;
use crate::frames::{CarryFrame, Frames, PIECE, WINDOW, send};
use crate::message::Carry;

/// Time limit for a job to end after the connection to its user is gone.
const FAREWELL: Duration = Duration::from_secs(20);

/// Longest pause in a command's output after its end, if a process that it left behind holds the output open.
const QUIET: Duration = Duration::from_millis(500);

/// Runs the command; its streams and its exit code go over the connection. The command ends with the connection.
///
/// # Errors
/// The command cannot be started.
pub(crate) async fn carry_out(
    carry: &Carry,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> Result<i32, HereError> {
    let mut child = command(carry)?.spawn().map_err(HereError::StartJob)?;
    let output = Mutex::new(output);
    let (over, is_over) = watch::channel(false);
    let (data, queue) = mpsc::unbounded_channel();
    let waiting = Cell::new(0);
    let fed = feed(child.stdin.take(), queue, &waiting, &output);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let passed = async {
        let errors = pass(stderr, CarryFrame::Errors, is_over.clone(), &output);
        tokio::join!(pass(stdout, CarryFrame::Output, is_over.clone(), &output), errors);
    };
    let ended = attend(&mut child, input, data, &waiting);
    tokio::pin!(fed, passed, ended);
    let (mut feeding, mut passing) = (true, true);
    let code = loop {
        tokio::select! {
            code = &mut ended => break code?,
            () = &mut fed, if feeding => feeding = false,
            () = &mut passed, if passing => passing = false,
        }
    };
    let _ = over.send(true);
    let last = async {
        if passing {
            passed.await;
        }
        // If sending fails, no receiver waits for the code.
        let _ = send(&mut *output.lock().await, &CarryFrame::Ended(code)).await;
    };
    let rest = async {
        // A frame may be partly sent.
        if feeding {
            fed.await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = last => {}
        () = rest => {}
    }
    Ok(code)
}

/// Passes the user's input and signals on until the command ends; returns its exit code. If the connection breaks, the
/// command is ended.
async fn attend(
    child: &mut Child,
    input: impl AsyncRead + Unpin,
    data: mpsc::UnboundedSender<Vec<u8>>,
    waiting: &Cell<usize>,
) -> Result<i32, HereError> {
    let (mut frames, mut data, mut last) = (Frames::new(input), Some(data), None);
    loop {
        tokio::select! {
            status = child.wait() => return Ok(code(status.map_err(HereError::AwaitJob)?)),
            frame = frames.next(), if last.is_none() => match frame {
                Ok(Some(CarryFrame::Signal(number))) => signal(child.id(), number),
                Ok(Some(CarryFrame::Input(bytes))) if bytes.is_empty() => data = None,
                Ok(Some(CarryFrame::Input(bytes))) if waiting.get() + bytes.len() <= WINDOW as usize => {
                    waiting.set(waiting.get() + bytes.len());
                    // A command that closed its input takes no more.
                    let _ = data.as_ref().map(|data| data.send(bytes));
                }
                _ => {
                    data = None;
                    signal(child.id(), 1);
                    last = Some(Instant::now() + FAREWELL);
                }
            },
            () = until(last) => {
                let _ = child.start_kill();
                last = Some(Instant::now() + FAREWELL);
            }
        }
    }
}

fn command(carry: &Carry) -> Result<Command, HereError> {
    let directory = directory(carry);
    let program = std::env::current_exe().map_err(HereError::Command)?;
    let folders = Folders::of_user()?;
    let text = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
    let mut command = Command::new(program);
    command
        .args(&carry.command)
        .args(["--from", &carry.site, "--sites"])
        .arg(folders.sites_file())
        .args(carry.words.iter().map(text))
        .envs(carry.environment.iter().map(|(name, value)| (text(name), text(value))))
        .current_dir(&directory)
        .env("PWD", &directory)
        .stdin(if carry.input { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

/// Writes the user's input to the command, and grants as many bytes as the command has taken.
async fn feed(
    stdin: Option<ChildStdin>,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    waiting: &Cell<usize>,
    output: &Mutex<impl AsyncWrite + Unpin>,
) {
    let Some(mut stdin) = stdin else { return };
    let mut granted = WINDOW;
    loop {
        if send(&mut *output.lock().await, &CarryFrame::Taken(granted)).await.is_err() {
            return;
        }
        let Some(bytes) = queue.recv().await else { return };
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
        waiting.set(waiting.get() - bytes.len());
        granted = bytes.len() as u32;
    }
}

/// Sends the command's output, until the command closes the stream, or has ended and the output pauses.
async fn pass(
    from: Option<impl AsyncRead + Unpin>,
    frame: fn(Vec<u8>) -> CarryFrame,
    mut is_over: watch::Receiver<bool>,
    output: &Mutex<impl AsyncWrite + Unpin>,
) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; PIECE];
    loop {
        let quiet = async {
            let _ = is_over.wait_for(|over| *over).await;
            sleep(QUIET).await;
        };
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            () = quiet => return,
        };
        let Ok(count @ 1..) = read else { return };
        if send(&mut *output.lock().await, &frame(buffer[..count].to_vec())).await.is_err() {
            return;
        }
    }
}

fn signal(id: Option<u32>, number: i32) {
    let pid = id.and_then(|id| Pid::from_raw(id as i32));
    if let (Some(pid), Some(signal)) = (pid, known(number)) {
        let _ = kill_process(pid, signal);
    }
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// The signals with which a user ends a job, and those that are passed on to its ranks.
fn known(number: i32) -> Option<Signal> {
    match number {
        1 => Some(Signal::HUP),
        2 => Some(Signal::INT),
        10 => Some(Signal::USR1),
        12 => Some(Signal::USR2),
        14 => Some(Signal::ALARM),
        23 => Some(Signal::URG),
        24 => Some(Signal::XCPU),
        15 => Some(Signal::TERM),
        _ => None,
    }
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The launcher's directory: the one in which the job was typed, below this home directory, or else this home
/// directory. The agents check whether the ranks' directory exists: `[site.run]` may name another.
fn directory(carry: &Carry) -> PathBuf {
    let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
    let path = expand(&carry.directory, Some(home.as_os_str()));
    if path.is_dir() { path } else { home }
}
