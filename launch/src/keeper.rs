//! The keeper: the parent of an agent, which outlives it only to end what it left behind.
//!
//! A gateway starts `landbridge agent`; that process keeps, and starts the agent proper below itself. If the agent is
//! killed, its ranks' processes become children of the keeper, which ends them all. If the keeper is killed, the agent
//! hears of it and ends the same processes itself.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::folder::Folder;
use crate::processes::{adopt_orphans, end_descendants};

/// The word by which the keeper starts the agent proper.
pub const WORKER: &str = "agent-worker";

/// Settings of libpmix in the agent, as far as it takes them only from its environment. Data in the agent's memory, not in files
/// that it shares with ranks; no credentials but the user's id, which is what the system says of a local connection.
const LIBPMIX: [(&str, &str); 2] = [("PMIX_MCA_gds", "hash"), ("PMIX_MCA_psec", "native")];

/// How long ending what an agent left behind may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Starts the agent proper with this process's standard input and keeps it. Gives the exit code to end with.
///
/// # Errors
/// The agent cannot be started.
pub async fn keep() -> std::io::Result<i32> {
    adopt_orphans()?;
    let folder = Folder::fresh()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORKER).arg(getpid().as_raw_nonzero().to_string()).arg(folder.path());
    // A gateway that was itself started by a launcher of that kind would make libpmix in the agent a client of it.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PMIX_")) {
        command.env_remove(name);
    }
    command.envs(LIBPMIX);
    command.stdin(Stdio::inherit()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut child = command.spawn()?;
    let code = tokio::select! {
        status = child.wait() => {
            use std::os::unix::process::ExitStatusExt;
            let status = status?;
            status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
        }
        _ = terminate.recv() => 143,
        _ = interrupt.recv() => 130,
    };
    drop(child);
    end_descendants(LIMIT);
    folder.remove();
    Ok(code)
}

/// Makes this process, the agent proper, hear SIGTERM when `keeper` dies.
///
/// # Errors
/// The keeper is dead already, or the system refuses.
pub fn end_with_keeper(keeper: i32) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before the line above.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(keeper) {
        return Err(std::io::Error::other("the keeper of this agent is gone"));
    }
    Ok(())
}
