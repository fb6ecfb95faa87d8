//! A leash: a program that hears SIGTERM when whoever started it dies, by whatever means.
//!
//! For programs that must not outlive their starter and do not read standard input while they wait, as `salloc` in a
//! queue. [`become_leashed`] replaces this process, for the wish survives `exec`. [`hold`] stays as the program's parent, and
//! lets go of the leash when the program says so: a batch job that has begun belongs to the agents in it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};

/// The word by which a program is started on a leash; the starter's process id and the program's words follow.
pub const LEASH: &str = "leash";
/// The same, for a program that may be let go.
pub const HOLD: &str = "hold";
/// Where such a program finds the process that takes SIGUSR1 as the word to let go.
pub const HOLDER: &str = "LANDBRIDGE_HOLDER";

/// Becomes the program; returns only if that fails.
pub fn become_leashed(holder: i32, words: &[OsString]) -> io::Error {
    if let Err(error) = follow(holder) {
        return error;
    }
    match words.split_first() {
        Some((program, arguments)) => Command::new(program).args(arguments).exec(),
        None => io::Error::new(io::ErrorKind::InvalidInput, "no program"),
    }
}

/// Starts the program and waits for it; gives its exit code. Until the program has said that it may be let go, SIGTERM and the
/// starter's death end it.
///
/// # Errors
/// It cannot be started.
pub async fn hold(holder: i32, words: &[OsString]) -> io::Result<i32> {
    let (mut terminate, mut let_go) = (signal(SignalKind::terminate())?, signal(SignalKind::user_defined1())?);
    follow(holder)?;
    let me = getpid().as_raw_nonzero().to_string();
    let mut command = tokio::process::Command::new(std::env::current_exe()?);
    let mut child = command.args([LEASH, &me, "--"]).args(words).env(HOLDER, me).spawn()?;
    let program = child.id().and_then(|id| Pid::from_raw(id as i32));
    let mut held = true;
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status?;
                return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
            }
            _ = let_go.recv() => held = false,
            _ = terminate.recv() => if let Some(program) = program.filter(|_| held) {
                // It may have ended meanwhile, which is what is wanted.
                let _ = kill_process(program, Signal::TERM);
            },
        }
    }
}

/// Has this process hear SIGTERM when `holder`, its parent, dies.
fn follow(holder: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before the line above.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(holder) {
        return Err(io::Error::other("whoever started this is gone"));
    }
    Ok(())
}
