//! `landbridge run`.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

use anyhow::{Context, Result};
use launch::environment::{setting, travelling};
use launch::held;
use launch::launcher::{Request, Summary};
use launch::message::{Family, MpiChoice, Program};
use launch::spread::{SpreadError, Wish, counts};

use crate::args::{Mpi, RunArgs};
use crate::terminal::Terminal;
use crate::{carried, runtime, sites_file};

/// Runs the job and gives the exit code. `words`: the whole command line.
pub(crate) fn run(args: RunArgs, words: Vec<OsString>) -> Result<i32> {
    let mut sites = sites_file::read(&sites_file::locate(&args.sites)?)?;
    if let Some(site) = carried::destination(&sites, args.from.as_deref()) {
        return carried::run(site, words);
    }
    let per_site = args.per_site.iter().map(|share| (share.site.clone(), share.ranks)).collect();
    let mut wish = Wish { ranks: args.ranks, ranks_per_node: args.ranks_per_node, per_site };
    let variables = args.variables.iter().map(|text| setting(text, |name| std::env::var_os(name)));
    let variables = variables.collect::<Result<Vec<_>, _>>()?;
    // Wrong numbers are told before the network is tried.
    let checked = counts(&sites.file, &wish);
    if !matches!(checked, Err(SpreadError::NoNumber)) {
        checked?;
    }
    let home = sites_file::own_site(&sites, args.from.as_deref())?;
    let runtime = runtime()?;
    let held = runtime.block_on(held::find(sites.site(&home)?))?;
    if let Some(held) = &held {
        held::fill(&mut sites.file, &home, held, &mut wish);
    }
    counts(&sites.file, &wish)?;
    let program = Program { settings: variables, ..program(args.program, args.mpi)? };
    let wdir =
        args.wdir.map(|folder| std::path::absolute(&folder).with_context(|| format!("--wdir {}", folder.display())));
    let wdir = wdir.transpose()?.map(|folder| folder.into_os_string().into_vec());
    let own_programs = args.per_site.into_iter().filter_map(|share| Some((share.site, share.program?.into_bytes())));
    let own_programs = own_programs.collect();
    let (wait, timeout) = (args.wait, args.timeout);
    let request = Request { sites, home, wish, held, wait, timeout, program, own_programs, wdir };
    let summary = runtime.block_on(launch::launcher::run(request, Terminal::new(args.prefix)));
    if let Some(failure) = &summary.failure {
        let _ = writeln!(std::io::stderr(), "landbridge: {failure}");
    }
    if let Some(target) = &args.json {
        write_summary(&summary, target.as_deref())?;
    }
    Ok(summary.exit_code)
}

/// What to run, as the agents are told.
pub(crate) fn program(command: Vec<std::ffi::OsString>, mpi: Mpi) -> Result<Program> {
    let directory = std::env::current_dir().context("the working directory")?;
    Ok(Program {
        command: command.into_iter().map(OsStringExt::into_vec).collect(),
        directory: directory.into_os_string().into_vec(),
        environment: travelling(std::env::vars_os()),
        modules: Vec::new(),
        settings: Vec::new(),
        mpi: match mpi {
            Mpi::Auto => MpiChoice::Auto,
            Mpi::Mpich => MpiChoice::Named(Family::Mpich),
            Mpi::Intel => MpiChoice::Named(Family::Intel),
            Mpi::Openmpi => MpiChoice::Named(Family::OpenMpi),
        },
    })
}

fn write_summary(summary: &Summary, file: Option<&std::path::Path>) -> Result<()> {
    let text = serde_json::to_string(summary)? + "\n";
    match file {
        Some(file) => std::fs::write(file, text).with_context(|| format!("summary {}", file.display())),
        None => std::io::stdout().write_all(text.as_bytes()).context("summary on standard output"),
    }
}
