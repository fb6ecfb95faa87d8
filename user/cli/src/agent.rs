//! The hidden commands: a node's agent, its keeper, and what holds a batch job.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use launch::agent::{Lifeline, Runs};
use launch::folder::Folder;
use launch::order::Order;

use crate::runtime;

/// Runs the keeper of a node: the process that the starter started, which outlives no job.
pub(crate) fn keep(only_movers: bool) -> Result<i32> {
    if only_movers {
        // A node's service has started it. Signals to the service's terminal are not for this.
        rustix::process::setsid()?;
    }
    Ok(runtime()?.block_on(launch::keeper::keep(runs(only_movers)))?)
}

fn runs(only_movers: bool) -> Runs {
    if only_movers { Runs::OnlyMovers } else { Runs::Anything }
}

/// Runs a program that ends with its holder until the program reports that it has begun.
pub(crate) fn hold(holder: i32, program: &[OsString]) -> Result<i32> {
    Ok(runtime()?.block_on(launch::leash::hold(holder, program))?)
}

/// Runs the agent, below its keeper.
pub(crate) fn work(keeper: i32, folder: PathBuf, only_movers: bool) -> Result<i32> {
    launch::keeper::end_with_keeper(keeper)?;
    let order = Order::read(std::io::stdin().lock())?;
    let (lifeline, gone) = tokio::sync::oneshot::channel();
    // Standard input stays open as long as the starter lives. A thread reads it, because the read cannot be cancelled.
    std::thread::Builder::new().name("lifeline".into()).spawn(move || {
        let mut rest = Vec::new();
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
        // A starter that wants the agent to end sends a byte; one that dies closes the pipe.
        let _ = lifeline.send(if rest.is_empty() { Lifeline::Torn } else { Lifeline::Cut });
    })?;
    let agent = launch::agent::run(order, Folder::at(folder), gone, runs(only_movers));
    runtime()?.block_on(agent).map_err(|e| anyhow!(e))?;
    Ok(0)
}
