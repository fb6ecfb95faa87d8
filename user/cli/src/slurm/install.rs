//! `landbridge slurm install` and `uninstall`.

use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use folder::{Folder, Fresh, Named};
use node_service::install::{File, MachineRole, Paths, install, shown, uninstall};
use node_service::slurm::Config;
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::slurm::args::{InstallArgs, PROGRAMS};

const UNIT: &str = "landbridge-node.service";
/// Exists if systemd has booted the machine (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// Installs on this machine, and returns the exit code.
pub(crate) fn add(args: &InstallArgs) -> Result<i32> {
    let paths = paths(args)?;
    let role = if args.controller { MachineRole::Controller } else { MachineRole::Node };
    let files = install(&paths, role, |path| std::fs::read_to_string(path).ok())?;
    if !args.no_start && !args.dry_run && !Path::new(BOOTED).is_dir() {
        bail!(
            "systemd does not run on this machine, so nothing could start the service, and nothing was changed: --no-start \
             writes the files and leaves starting {} to you",
            paths.unit
        );
    }
    if !confirmed(args, &files)? {
        return Ok(0);
    }
    // Create the state folder first: if this is refused, nothing has been written.
    if args.controller {
        state_folder(&paths.state)?;
    }
    files.iter().try_for_each(write)?;
    if !args.no_start {
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", "--now", UNIT])?;
        systemctl(&["restart", UNIT])?;
    }
    let mut out = crate::output::stdout();
    if args.controller {
        writeln!(out, "Next: copy slurm.conf to all nodes, if they have files of their own, and restart slurmctld.")?;
        writeln!(out, "On every node: landbridge slurm install. Users: `node_service = 7760` in [site.starter].")?;
    }
    Ok(0)
}

/// Undoes the installation.
pub(crate) fn remove(args: &InstallArgs) -> Result<i32> {
    let paths = paths(args)?;
    let state = match paths.state.is_empty() {
        // A node has no such folder.
        true => state_of_slurm().unwrap_or_default(),
        false => paths.state.clone(),
    };
    let files = uninstall(&paths, |path| std::fs::read_to_string(path).ok())?;
    if args.no_start || args.dry_run || !files.iter().any(|file| file.path == paths.unit) {
        let changed = change(args, &files)?;
        if changed || files.is_empty() {
            forget_records(args, &state)?;
        }
        return Ok(0);
    }
    if confirmed(args, &files)? {
        systemctl(&["disable", "--now", UNIT])?;
        files.iter().try_for_each(write)?;
        systemctl(&["daemon-reload"])?;
        forget_records(args, &state)?;
        remove_programs(Path::new(PROGRAMS))?;
        writeln!(crate::output::stdout(), "Next: restart slurmctld, if slurm.conf has changed.")?;
    }
    Ok(0)
}

/// Removes the folder of the hooks' records. A folder with records of existing copies stays, because the locations of
/// the copies are recorded only there.
fn forget_records(args: &InstallArgs, state: &str) -> Result<()> {
    if state.is_empty() || args.dry_run {
        return Ok(());
    }
    let look = || -> std::io::Result<Option<(Named, usize)>> {
        let named = match Folder::of(Path::new(state)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            named => named?,
        };
        let names = match named.folder.enter(&named.name) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            records => records?.names()?,
        };
        // A record is named after its job.
        let is_record = |name: &&Vec<u8>| std::str::from_utf8(name).is_ok_and(|name| name.parse::<u32>().is_ok());
        Ok(Some((named, names.iter().filter(is_record).count())))
    };
    let Some((Named { folder: around, name }, records)) = look().with_context(|| state.to_owned())? else {
        return Ok(());
    };
    if records > 0 {
        crate::output::note(&format!(
            "{state}: {records} job(s) still have copies on nodes, and this says where: remove it when they are gone"
        ));
        return Ok(());
    }
    around.remove(&name).with_context(|| state.to_owned())?;
    writeln!(crate::output::stdout(), "{state}: removed")?;
    Ok(())
}

fn paths(args: &InstallArgs) -> Result<Paths> {
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| anyhow!("{} is not UTF-8", path.display()));
    let beside = |name: &str| text(&args.conf.with_file_name(name));
    let state = match (&args.state, args.controller) {
        (Some(state), _) => text(state)?,
        (None, true) => state_of_slurm()?,
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

/// The folder of the hooks' records, below Slurm's own state folder.
fn state_of_slurm() -> Result<String> {
    let config = Config::ask().context("give --state, or let Slurm say its StateSaveLocation")?;
    let place = config.get("StateSaveLocation").context("Slurm says no StateSaveLocation: give --state")?;
    Ok(format!("{place}/landbridge"))
}

/// Shows the changes, asks for confirmation, and makes them. Returns true if they were made.
fn change(args: &InstallArgs, files: &[File]) -> Result<bool> {
    let confirmed = confirmed(args, files)?;
    if confirmed {
        files.iter().try_for_each(write)?;
    }
    Ok(confirmed)
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

/// Replaces a file atomically. A file keeps its mode and owner. The folders may belong to Slurm's user, who must not
/// redirect root elsewhere: links are followed only if root has made them, and existing files are never written to.
fn write(file: &File) -> Result<()> {
    let File { path, text } = file;
    let made = || -> std::io::Result<()> {
        let Some(text) = text else {
            let named = Folder::of(Path::new(path))?;
            return Ok(rustix::fs::unlinkat(&named.folder, &named.name[..], AtFlags::empty())?);
        };
        let named = Named::resolve_or_make(Path::new(path), Mode::from_raw_mode(0o755))?;
        let mut fresh = Fresh::make(&named.folder, &[&named.name[..], b".landbridge-new"].concat())?;
        fresh.file.write_all(text.as_bytes())?;
        let mode = match named.stat() {
            Ok(found) => {
                std::os::unix::fs::fchown(&fresh.file, Some(found.st_uid), Some(found.st_gid))?;
                found.st_mode & 0o7777
            }
            Err(_) => 0o644,
        };
        rustix::fs::fchmod(&fresh.file, Mode::from_raw_mode(mode))?;
        fresh.place(&named.name)
    };
    made().with_context(|| path.clone())
}

/// Creates the folder, owned by the owner of its parent: Slurm's user. That user can replace it at any time, so all
/// changes go through the descriptor that was opened.
fn state_folder(path: &str) -> Result<()> {
    let made = || -> std::io::Result<()> {
        let Named { folder: around, name } = Folder::of(Path::new(path))?;
        around.make(&name, Mode::from_raw_mode(0o700))?;
        let state = around.enter(&name)?;
        let (owner, found) = (around.examine()?, state.examine()?);
        if found.st_uid != 0 && found.st_uid != owner.st_uid {
            let problem = format!("it belongs to user id {}, and should to {}", found.st_uid, owner.st_uid);
            return Err(std::io::Error::other(problem));
        }
        let state = state.readable()?;
        rustix::fs::fchmod(&state, Mode::from_raw_mode(0o700))?;
        std::os::unix::fs::fchown(&state, Some(owner.st_uid), Some(owner.st_gid))
    };
    made().with_context(|| path.to_owned())
}

/// Removes the service's copy of this program, and its folder.
fn remove_programs(path: &Path) -> Result<()> {
    let remove = || -> std::io::Result<()> {
        let Named { folder: around, name } = Folder::of(path)?;
        let programs = around.enter(&name)?;
        programs.remove(b"landbridge")?;
        around.remove_empty(&name, &programs)
    };
    match remove() {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

fn systemctl(words: &[&str]) -> Result<()> {
    let line = format!("systemctl {}", words.join(" "));
    let status = Command::new("systemctl").args(words).status();
    match status.with_context(|| format!("{line}: --no-start leaves this to you"))?.success() {
        true => Ok(()),
        false => bail!("`{line}` failed: `journalctl -u {UNIT}` says why; the files are in place"),
    }
}
