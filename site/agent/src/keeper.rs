//! The keeper is the parent of an agent. It outlives the agent only to end the processes that the agent left behind.
//!
//! A gateway starts `landbridge agent`. This process is the keeper; it starts the agent proper as its child. If the
//! agent is killed, its ranks' processes become children of the keeper, which ends them all. If the keeper is killed,
//! the agent gets a signal and ends the same processes itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::folder::Folder;
use crate::movers::Runs;
use job::processes::{adopt_orphans, end_descendants};

/// The subcommand with which the keeper starts the agent proper.
pub const WORKER: &str = "agent-worker";

/// Settings that libpmix in the agent takes only from the environment: it keeps data in the agent's memory instead of
/// files shared with ranks, and uses no credentials but the user's id, which the system reports for a local connection.
const LIBPMIX: [(&str, &str); 2] = [("PMIX_MCA_gds", "hash"), ("PMIX_MCA_psec", "native")];

/// Time limit for ending the processes that an agent left behind.
const LIMIT: Duration = Duration::from_secs(5);

/// The option that restricts an agent and its keeper to movers.
pub const ONLY_MOVERS: &str = "only-movers";

/// Starts the agent proper with this process's standard input and waits for it. Returns the exit code for this process.
/// `give_back`: gives back the batch job around this process, after the last of the agent's processes has ended.
///
/// # Errors
/// The agent cannot be started.
pub async fn keep(runs: Runs, give_back: impl Future<Output = ()>) -> std::io::Result<i32> {
    adopt_orphans()?;
    let folder = Folder::fresh()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Caught and ignored: a hangup does not end the keeper. The agent decides whether the job continues.
    let _hangup = signal(SignalKind::hangup())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORKER).arg(getpid().as_raw_nonzero().to_string()).arg(folder.path());
    if runs == Runs::OnlyMovers {
        command.arg(format!("--{ONLY_MOVERS}"));
    }
    // If a launcher with PMIx started the gateway, its variables would make libpmix in the agent a client of that
    // launcher.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PMIX_")) {
        command.env_remove(name);
    }
    command.envs(LIBPMIX);
    command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn()?;
    let left_behind = child.stdout.take();
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
    if let Some(left_behind) = left_behind {
        remove_all(left_behind).await;
    }
    folder.remove();
    give_back.await;
    Ok(code)
}

/// Makes the keeper remove this file at its end, however the agent ends. Called in the agent proper.
pub fn remove_in_the_end(path: &Path) {
    let name = [b"\0", path.as_os_str().as_bytes(), b"\0"].concat();
    // The agent's standard output goes to its keeper. Tests have no keeper.
    if getppid().is_some() && std::env::args().nth(1).is_some_and(|word| word == WORKER) {
        let _ = rustix::io::write(rustix::stdio::stdout(), &name);
    }
}

/// Removes the files that the agent has named. All processes that could write more must have ended.
async fn remove_all(mut names: ChildStdout) {
    let mut bytes = Vec::new();
    if tokio::time::timeout(Duration::from_secs(1), names.read_to_end(&mut bytes)).await.is_err() {
        tracing::debug!("another process still has the agent's standard output open");
    }
    for path in bytes.split(|byte| *byte == 0).map(|name| Path::new(OsStr::from_bytes(name))) {
        // Libraries in the agent may print to its standard output as well.
        if pool::Region::is_name(path) {
            pool::Region::remove(path);
        }
    }
}

/// Makes this process, the agent proper, receive SIGTERM when `keeper` dies.
///
/// # Errors
/// The keeper is dead already, or the system refuses.
pub fn end_with_keeper(keeper: i32) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The keeper may have died before the call above.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(keeper) {
        return Err(std::io::Error::other("the keeper of this agent is gone"));
    }
    Ok(())
}
