//! A leash makes a program receive SIGTERM when the process that started it dies, for any reason.
//!
//! It is for programs that must not outlive their starter and do not read standard input while they wait, such as
//! `salloc` in a queue. [`become_leashed`] replaces this process by the program, because the setting survives `exec`.
//! [`hold`] stays as the program's parent and drops the leash when the program asks for it, because a batch job that
//! has begun belongs to its agents.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};

/// The subcommand that starts a program on a leash. Its arguments are the starter's process id and the program's words.
pub const LEASH: &str = "leash";
/// Like [`LEASH`], for a program that may be released.
pub const HOLD: &str = "hold";
/// The variable with the process id to which such a program sends SIGUSR1 in order to be released.
pub const HOLDER: &str = "LANDBRIDGE_HOLDER";

/// Replaces this process by the program. Returns only if this fails.
pub fn become_leashed(holder: i32, words: &[OsString]) -> io::Error {
    if let Err(error) = follow(holder) {
        return error;
    }
    match words.split_first() {
        Some((program, arguments)) => Command::new(program).args(arguments).exec(),
        None => io::Error::new(io::ErrorKind::InvalidInput, "no program"),
    }
}

/// Starts the program, waits for it, and returns its exit code. SIGTERM and the starter's death end the program, until
/// it asks to be released.
///
/// # Errors
/// The program cannot be started.
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
                // An error means that the program has already ended.
                let _ = kill_process(program, Signal::TERM);
            },
        }
    }
}

/// Makes this process receive SIGTERM when `holder`, its parent, dies.
fn follow(holder: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have died before the call above.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(holder) {
        return Err(io::Error::other("the process that started this one is gone"));
    }
    Ok(())
}
