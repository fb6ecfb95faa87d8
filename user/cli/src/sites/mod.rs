//! `landbridge sites`.

pub(crate) mod add;
mod apply;
pub(crate) mod args;
pub(crate) mod check;
pub(crate) mod file;
mod join;
mod links;
pub(crate) mod push;
pub(crate) mod start;

use anyhow::Result;

use self::args::{SitesArgs, SitesCommand};

/// Runs the command, and returns the exit code.
pub(crate) fn sites(args: SitesArgs) -> Result<i32> {
    match args.command {
        SitesCommand::Add(args) => add::add(args),
        SitesCommand::Invite(args) => join::invite(&args),
        SitesCommand::Join(args) => join::join(args),
        SitesCommand::Remove(args) => add::remove(&args),
        SitesCommand::List(args) => add::list(&args),
        SitesCommand::Status(args) => add::status(&args),
        SitesCommand::Apply(args) => apply::apply(&args),
        SitesCommand::Push(args) => push::push(&args),
        SitesCommand::Start(args) => start::start(&args),
        SitesCommand::Check(args) => check::check(args),
        SitesCommand::Links(args) => links::links(&args),
    }
}
