//! `landbridge slurm install` and `uninstall`: shows the changes, and asks.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Result, bail};
use commands::slurm::install::{Installation, Records, Removal};
use node_service::install::{File, shown};

use super::args::InstallArgs;
use crate::output;

/// Installs on this machine, and returns the exit code.
pub(super) fn add(args: &InstallArgs) -> Result<i32> {
    let installation = Installation::plan(&args.request())?;
    if !confirmed(args, &installation.files)? {
        return Ok(0);
    }
    installation.carry_out()?;
    let mut out = output::stdout();
    if args.controller {
        writeln!(out, "Next: copy slurm.conf to all nodes, if they have files of their own, and restart slurmctld.")?;
        writeln!(out, "On every node: landbridge slurm install. Users: `node_service = 7760` in [site.starter].")?;
    }
    Ok(0)
}

/// Undoes the installation.
pub(super) fn remove(args: &InstallArgs) -> Result<i32> {
    let removal = Removal::plan(&args.request())?;
    let confirmed = confirmed(args, &removal.files)?;
    if confirmed {
        removal.carry_out()?;
    }
    if confirmed || removal.files.is_empty() {
        match removal.forget_records()? {
            Some(Records::Kept { folder, jobs }) => output::note(&format!(
                "{folder}: {jobs} job(s) still have copies on nodes, and this says where: remove it when they are gone"
            )),
            Some(Records::Removed { folder }) => writeln!(output::stdout(), "{folder}: removed")?,
            None => {}
        }
    }
    if confirmed && removal.stops_service {
        removal.remove_programs()?;
        writeln!(output::stdout(), "Next: restart slurmctld, if slurm.conf has changed.")?;
    }
    Ok(0)
}

fn confirmed(args: &InstallArgs, files: &[File]) -> Result<bool> {
    let mut out = crate::output::stdout();
    if files.is_empty() {
        writeln!(out, "Nothing to change.")?;
        return Ok(false);
    }
    for File { path, text } in files {
        let before = std::fs::read_to_string(path).ok();
        let what = match (&before, text) {
            (None, _) => "new",
            (_, None) => "removed",
            _ => "changed",
        };
        writeln!(out, "{path}: {what}")?;
        for line in shown(before.as_deref(), text.as_deref()) {
            writeln!(out, "  {line}")?;
        }
    }
    if args.dry_run {
        return Ok(false);
    }
    if args.yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        bail!("nothing was changed: --yes agrees where nobody can be asked, and --dry-run only shows");
    }
    write!(out, "Change this? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
