//! `landbridge slurm node-service`, and the commands that it and its callers start.

use std::io::Write;

use anyhow::Result;
use commands::slurm::step::StepResult;
use commands::slurm::{paths, service, step};
use types::untrusted::printable;

use super::args::NodeServiceArgs;
use crate::error::whole;
use crate::{json, log, output};

/// Serves until the listener fails or a signal ends it.
pub(super) fn serve(args: &NodeServiceArgs) -> Result<i32> {
    log::start(std::env::var_os(log::VARIABLE).as_deref())?;
    service::serve(&args.request(), log::note)?;
    Ok(0)
}

/// Calls a node's service to start an agent. Returns the agent's exit code.
pub(super) fn call(node: &str, port: u16) -> Result<i32> {
    let ended = service::call(node, port)?;
    for line in ended.words.raw().lines() {
        writeln!(output::stderr(), "{}", printable(line))?;
    }
    Ok(ended.code)
}

/// Checks whether a path exists: 1 if so.
pub(super) fn look() -> Result<i32> {
    let path = paths::read_path()?;
    match paths::exists(&path) {
        Ok(exists) => Ok(i32::from(exists)),
        Err(error) => {
            output::note(&whole(&error.into()));
            Ok(2)
        }
    }
}

/// Removes staged files.
pub(super) fn remove() -> Result<i32> {
    let failures = paths::remove()?;
    for failure in &failures {
        output::note(&failure.to_string());
    }
    Ok(if failures.is_empty() { 0 } else { 2 })
}

/// Runs a step of a hook.
pub(super) fn step() -> Result<i32> {
    match step::step()? {
        StepResult::Moved(code) => Ok(code),
        StepResult::Answer(answer) => {
            writeln!(output::stdout(), "{}", json::escaped(&answer))?;
            Ok(0)
        }
    }
}
