//! The `landbridge` command: parses flags, calls the other crates and prints their results. It has no logic itself.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agent;
mod alone;
mod args;
mod argument;
mod bar;
mod carried;
mod couple;
mod doctor;
mod forward;
mod gateway;
mod jobs;
mod json;
mod key;
#[cfg(feature = "lab")]
mod lab;
mod log;
mod output;
mod page;
#[cfg(test)]
mod pages;
mod plan;
mod run;
#[cfg(feature = "share")]
mod share;
mod site_id;
mod sites;
mod slurm;
mod stage;
#[cfg(feature = "top")]
mod top;
mod version;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    #[cfg(feature = "lab")] // A lab starts this program again for its own processes.
    if let Some(code) = ::lab::hidden_main(std::env::args_os().skip(1)) {
        return exit(code);
    }
    let words = words::plain(std::env::args_os(), &Cli::command());
    let result = match Cli::parse_from(&words).command {
        Command::Run(args) => run::run(args, words),
        Command::Jobs(args) => jobs::jobs(&args),
        Command::Logs(args) => jobs::logs(&args),
        Command::Cancel(args) => jobs::cancel(&args),
        Command::Detached { folder, typed } => {
            let words: Vec<OsString> = std::iter::once("landbridge".into()).chain(typed).collect();
            jobs::become_detached(&folder, || match Cli::parse_from(&words).command {
                Command::Run(args) => run::run(args, words),
                _ => anyhow::bail!("only `run` can be detached"),
            })
        }
        Command::Gateway(args) => gateway::gateway(&args),
        Command::Key(args) => key::key(&args),
        Command::Sites(args) => sites::sites(args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::top(&args),
        Command::Forward(args) => forward::forward(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Page(args) => page::page(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Stage(args) => stage::stage(&args),
        Command::Mover { here } => stage::mover(here),
        Command::Couple(args) => couple::couple(args),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::lab(args),
        #[cfg(feature = "share")]
        Command::Share { folder } => share::share(&folder),
        Command::SiteEnd => sites::add::other_end(),
        Command::Agent { only_movers } => agent::keep(only_movers),
        Command::Hold { holder, program } => agent::hold(holder, &program),
        Command::Leash { holder, program } => Err(starters::leash::become_leashed(holder, &program).into()),
        Command::AgentWorker { keeper, folder, only_movers } => agent::work(keeper, folder, only_movers),
        Command::Slurm(args) => slurm::slurm(&args),
    };
    match result {
        Ok(code) => exit(code),
        // A program without a SIGPIPE handler ends with this code too.
        Err(error) if output::is_closed(&error) => ExitCode::from(141),
        Err(error) => {
            output::note(&whole(&error));
            if error.is::<WrongOption>() {
                ExitCode::from(2)
            } else if error.is::<Interrupted>() {
                ExitCode::from(130)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// An option has a wrong value that only a check beyond its syntax finds. The exit code is that of a syntax error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongOption(String);

fn wrong(problem: impl std::fmt::Display) -> anyhow::Error {
    WrongOption(problem.to_string()).into()
}

/// The user pressed Ctrl-C before anything was changed.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: the sites file is as it was")]
struct Interrupted;

/// The error and its causes in one line. Causes that the error's own text already contains are skipped.
fn whole(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) || text.contains(&format!("{cause}: ")) { text } else { format!("{text}: {cause}") }
    })
}

/// Exit codes have eight bits. A failure whose low eight bits are zero must stay a failure.
fn exit(code: i32) -> ExitCode {
    ExitCode::from(if code != 0 && code & 0xff == 0 { 1 } else { (code & 0xff) as u8 })
}

/// Minimum limit of open files for work with connections.
const FILES: u64 = 32;

/// A runtime on this thread only. Its tasks end with it.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if files < FILES {
        anyhow::bail!("this program may open {files} files at once and needs {FILES}: raise the limit (`ulimit -n`)");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    anyhow::Context::context(runtime, "cannot open the queue of events that this program waits with")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let source = || std::io::Error::from_raw_os_error(2);
        let named = setup::SetupError::File { path: "/no/file".into(), source: source() };
        let text = whole(&anyhow::Error::new(named).context("sites file"));
        assert_eq!(text, "sites file: /no/file: No such file or directory (os error 2)");
        let plain = Err::<(), _>(source()).context("/no/file").unwrap_err();
        assert_eq!(whole(&plain), "/no/file: No such file or directory (os error 2)");
        assert_eq!(whole(&anyhow::anyhow!("one")), "one");
    }
}
