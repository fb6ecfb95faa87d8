//! The hidden commands: a node's agent, its keeper, and the holder of a batch job.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use agent::folder::Folder;
use agent::{Lifeline, Runs};
use anyhow::{Result, anyhow};
use commands::runtime::runtime;
use job::order::Order;

/// Runs the keeper of a node: the process started by the starter. It does not outlive its job.
pub(crate) fn keep(only_movers: bool) -> Result<i32> {
    if only_movers {
        // Started by a node service. Leave the session, so that signals to the service's terminal do not arrive here.
        rustix::process::setsid()?;
    }
    Ok(runtime()?.block_on(agent::keeper::keep(runs(only_movers), starters::give_back()))?)
}

fn runs(only_movers: bool) -> Runs {
    if only_movers { Runs::OnlyMovers } else { Runs::Anything }
}

/// Runs a program that is tied to its holder until the program reports that it has started.
pub(crate) fn hold(holder: i32, program: &[OsString]) -> Result<i32> {
    Ok(runtime()?.block_on(starters::leash::hold(holder, program))?)
}

/// Runs the agent, below its keeper.
pub(crate) fn work(keeper: i32, folder: PathBuf, only_movers: bool) -> Result<i32> {
    agent::keeper::end_with_keeper(keeper)?;
    let order = Order::read(std::io::stdin().lock())?;
    let (lifeline, gone) = tokio::sync::oneshot::channel();
    // Standard input stays open as long as the starter lives. A thread reads it, because the read cannot be cancelled.
    std::thread::Builder::new().name("lifeline".into()).spawn(move || {
        let mut rest = Vec::new();
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
        // To end the agent, a live starter sends a byte; a dead starter's pipe closes without one.
        let _ = lifeline.send(if rest.is_empty() { Lifeline::Torn } else { Lifeline::Cut });
    })?;
    let agent = agent::run(order, Folder::at(folder), gone, runs(only_movers));
    runtime()?.block_on(agent).map_err(|e| anyhow!(e))?;
    Ok(0)
}
