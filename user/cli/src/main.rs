//! The `landbridge` command: parses flags, calls the other crates and prints their results. It has no logic itself.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agent;
mod args;
mod argument;
mod bar;
mod carried;
mod couple;
mod doctor;
mod error;
mod forward;
mod gateway;
mod input;
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
mod quantity;
mod run;
#[cfg(feature = "share")]
mod share;
mod sites;
mod slurm;
mod stage;
mod table;
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
        return error::exit(code);
    }
    let words = words::plain(std::env::args_os(), &Cli::command());
    let command = match Cli::try_parse_from(&words) {
        Ok(cli) => cli.command,
        Err(error) => return error::report_parsed(&error),
    };
    let result = match command {
        Command::Run(args) => run::run(args, words),
        Command::Jobs(args) => jobs::jobs(&args),
        Command::Logs(args) => jobs::logs(&args),
        Command::Cancel(args) => jobs::cancel(&args),
        Command::Detached { folder, typed } => {
            let words: Vec<OsString> = std::iter::once("landbridge".into()).chain(typed).collect();
            jobs::become_detached(&folder, || match Cli::try_parse_from(&words)?.command {
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
        Ok(code) => error::exit(code),
        Err(error) => error::report(&error),
    }
}
