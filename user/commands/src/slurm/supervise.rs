//! `landbridge slurm supervise`: runs a user's program as a child of root, so that no descendant outlives it.
//!
//! A node's service starts one supervisor for each order. All descendants of the program stay below this process, which
//! the user cannot stop, kill or trace, and end with it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use agent::keeper::end_with_keeper;
use job::processes::{adopt_orphans, end_descendants};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{Context, Result, refuse};
use crate::runtime::runtime;

/// Time limit for ending all remaining descendants.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs the program until it ends, or until SIGTERM or the end of `holder`, this process's parent. Returns its exit
/// code.
pub fn supervise(group: Option<&Path>, holder: i32, words: &[OsString]) -> Result<i32> {
    let Some((program, arguments)) = words.split_first() else { refuse!("no program") };
    if let Some(group) = group {
        // 0 stands for this process. Its children belong to the group from their first instruction on.
        let procs = group.join("cgroup.procs");
        std::fs::write(&procs, "0").with_context(|| procs.display().to_string())?;
    }
    let code = runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        adopt_orphans()?;
        end_with_keeper(holder)?;
        let mut child = Command::new(program).args(arguments).spawn()?;
        tokio::select! {
            status = child.wait() => {
                let status = status?;
                Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
            }
            _ = terminate.recv() => std::io::Result::Ok(143),
        }
    });
    if !end_descendants(LIMIT) {
        refuse!("processes of {} are left", program.display());
    }
    code.with_context(|| program.display().to_string())
}
