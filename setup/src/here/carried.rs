//! A job from a machine that is not a site: `landbridge run` runs here, and signals sent there reach it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use launch::home::expand;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufRead, Lines};
use tokio::process::Command;
use tokio::time::{Instant, sleep_until};

use super::error::HereError;
use super::folders::Folders;
use crate::message::Carry;

/// How long a job may take to end after the connection to its user is gone.
const FAREWELL: Duration = Duration::from_secs(20);

/// Runs the job with this process's standard output and error; returns its exit code. Each line of the input is a
/// signal for the job; the end of the input ends the job.
///
/// # Errors
/// The job cannot be started.
pub(crate) async fn carry_out<R: AsyncBufRead + Unpin>(carry: &Carry, lines: &mut Lines<R>) -> Result<i32, HereError> {
    let directory = directory(carry);
    let program = std::env::current_exe().map_err(HereError::Command)?;
    let folders = Folders::of_user()?;
    let text = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
    let mut child = Command::new(program)
        .args(&carry.command)
        .args(["--from", &carry.site, "--sites"])
        .arg(folders.sites_file())
        .args(carry.words.iter().map(text))
        .envs(carry.environment.iter().map(|(name, value)| (text(name), text(value))))
        .current_dir(&directory)
        .env("PWD", &directory)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(HereError::StartJob)?;
    let signal = |id: Option<u32>, number: i32| {
        let pid = id.and_then(|id| Pid::from_raw(id as i32));
        if let (Some(pid), Some(signal)) = (pid, known(number)) {
            let _ = kill_process(pid, signal);
        }
    };
    let mut last: Option<Instant> = None;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(code(status.map_err(HereError::AwaitJob)?)),
            line = lines.next_line(), if last.is_none() => match line {
                Ok(Some(line)) => {
                    if let Ok(number) = line.trim().parse() {
                        signal(child.id(), number);
                    }
                }
                _ => {
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

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// The signals with which a user ends a job.
fn known(number: i32) -> Option<Signal> {
    match number {
        1 => Some(Signal::HUP),
        2 => Some(Signal::INT),
        15 => Some(Signal::TERM),
        _ => None,
    }
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Where the launcher runs: the directory in which the job was typed, below this home directory, or else this home
/// directory. The agents find out whether the ranks' directory exists: `[site.run]` may name another.
fn directory(carry: &Carry) -> PathBuf {
    let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
    let path = expand(&carry.directory, Some(home.as_os_str()));
    if path.is_dir() { path } else { home }
}
