//! `landbridge slurm install` and `uninstall`.

use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use node_service::install::{File, Paths, Role, install, shown, uninstall};
use node_service::slurm::Config;

use crate::slurm_args::InstallArgs;

const UNIT: &str = "landbridge-node.service";

/// Installs on this machine, and returns the exit code.
pub(crate) fn add(args: &InstallArgs) -> Result<i32> {
    let paths = paths(args)?;
    let role = if args.controller { Role::Controller } else { Role::Node };
    let files = install(&paths, role, |path| std::fs::read_to_string(path).ok())?;
    if !change(args, &files)? {
        return Ok(0);
    }
    if args.controller {
        state_folder(&paths.state)?;
    }
    if !args.no_start {
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", "--now", UNIT])?;
        systemctl(&["restart", UNIT])?;
    }
    let mut out = std::io::stdout();
    if args.controller {
        writeln!(out, "Next: copy slurm.conf to all nodes, if they have files of their own, and restart slurmctld.")?;
        writeln!(out, "On every node: landbridge slurm install. Users: `node_service = 7760` in [site.starter].")?;
    }
    Ok(0)
}

/// Undoes it.
pub(crate) fn remove(args: &InstallArgs) -> Result<i32> {
    let paths = paths(args)?;
    let files = uninstall(&paths, |path| std::fs::read_to_string(path).ok())?;
    if args.no_start || args.dry_run || !files.iter().any(|file| file.path == paths.unit) {
        change(args, &files)?;
        return Ok(0);
    }
    if confirmed(args, &files)? {
        systemctl(&["disable", "--now", UNIT])?;
        files.iter().try_for_each(write)?;
        systemctl(&["daemon-reload"])?;
        writeln!(std::io::stdout(), "Next: restart slurmctld, if slurm.conf has changed.")?;
    }
    Ok(0)
}

fn paths(args: &InstallArgs) -> Result<Paths> {
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| anyhow!("{} is not UTF-8", path.display()));
    let beside = |name: &str| text(&args.conf.with_file_name(name));
    let state = match (&args.state, args.controller) {
        (Some(state), _) => text(state)?,
        (None, true) => {
            let config = Config::ask().context("give --state, or let Slurm say its StateSaveLocation")?;
            let place = config.get("StateSaveLocation").context("Slurm says no StateSaveLocation: give --state")?;
            format!("{place}/landbridge")
        }
        (None, false) => String::new(),
    };
    let paths = Paths {
        command: text(&std::env::current_exe()?)?,
        slurm_conf: text(&args.conf)?,
        unit: text(&args.units.join(UNIT))?,
        lua: beside("burst_buffer.lua")?,
        burst_buffer_conf: beside("burst_buffer.conf")?,
        state,
        service: text(&args.socket)?,
    };
    for path in [&paths.command, &paths.slurm_conf, &paths.state, &paths.service] {
        if path.chars().any(|c| c.is_whitespace() || c.is_control() || "\"\\'%$".contains(c)) {
            bail!("{path}: systemd and Lua need a path without spaces, quotes, `$`, `%` and backslashes");
        }
    }
    Ok(paths)
}

/// Shows the changes, asks, and makes them. Returns whether they are made.
fn change(args: &InstallArgs, files: &[File]) -> Result<bool> {
    let confirmed = confirmed(args, files)?;
    if confirmed {
        files.iter().try_for_each(write)?;
    }
    Ok(confirmed)
}

fn confirmed(args: &InstallArgs, files: &[File]) -> Result<bool> {
    let mut out = std::io::stdout();
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

/// Whole or not at all. A file keeps its mode and owner.
fn write(file: &File) -> Result<()> {
    let File { path, text } = file;
    let made = || match text {
        None => std::fs::remove_file(path),
        Some(text) => {
            if let Some(folder) = Path::new(path).parent() {
                std::fs::create_dir_all(folder)?;
            }
            let fresh = format!("{path}.landbridge-new");
            std::fs::write(&fresh, text)?;
            let mode = match std::fs::metadata(path) {
                Ok(found) => {
                    use std::os::unix::fs::MetadataExt;
                    std::os::unix::fs::chown(&fresh, Some(found.uid()), Some(found.gid()))?;
                    found.permissions()
                }
                Err(_) => PermissionsExt::from_mode(0o644),
            };
            std::fs::set_permissions(&fresh, mode)?;
            std::fs::rename(&fresh, path)
        }
    };
    made().with_context(|| path.clone())
}

/// The folder belongs to who owns the one around it: Slurm's user.
fn state_folder(path: &str) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let made = || {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700))?;
        let around = std::fs::metadata(Path::new(path).parent().unwrap_or(Path::new("/")))?;
        std::os::unix::fs::chown(path, Some(around.uid()), Some(around.gid()))
    };
    made().with_context(|| path.to_owned())
}

fn systemctl(words: &[&str]) -> Result<()> {
    let line = format!("systemctl {}", words.join(" "));
    let status = Command::new("systemctl").args(words).status();
    match status.with_context(|| format!("{line}: --no-start leaves this to you"))?.success() {
        true => Ok(()),
        false => bail!("`{line}` failed: `journalctl -u {UNIT}` says why; the files are in place"),
    }
}
