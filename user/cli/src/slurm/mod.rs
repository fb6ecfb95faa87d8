//! `landbridge slurm`.

pub(crate) mod args;
mod hook;
mod install;
mod service;

use anyhow::Result;
use commands::slurm::supervise::supervise;

use self::args::{SlurmArgs, SlurmCommand};

/// Runs the command, and returns the exit code.
pub(crate) fn slurm(args: &SlurmArgs) -> Result<i32> {
    match &args.command {
        SlurmCommand::NodeService(args) => service::serve(args),
        SlurmCommand::Check { script, sites } => hook::check(script, sites),
        SlurmCommand::Install(args) => install::add(args),
        SlurmCommand::Uninstall(args) => install::remove(args),
        SlurmCommand::Call { node, port } => service::call(node, *port),
        SlurmCommand::Supervise { group, holder, program } => Ok(supervise(group.as_deref(), *holder, program)?),
        SlurmCommand::Look => service::look(),
        SlurmCommand::Remove => service::remove(),
        SlurmCommand::Step => service::step(),
        SlurmCommand::Hook(args) => hook::hook(args),
    }
}
