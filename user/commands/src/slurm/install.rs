//! `landbridge slurm install` and `uninstall`: the files on this machine, and systemd's unit.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use folder::{Folder, Fresh, Named};
use node_service::install::{File, MachineRole, Paths, install, uninstall};
use node_service::slurm::Config;
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::error::{Context, Result, refusal, refuse};

/// Default folder for the service's copy of this program that users run.
pub const PROGRAMS: &str = "/var/lib/landbridge";

const UNIT: &str = "landbridge-node.service";
/// Exists if systemd has booted the machine (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// A request to install on this machine of a cluster, or to undo that.
#[derive(Debug)]
pub struct InstallRequest {
    /// Slurm's controller runs on this machine.
    pub controller: bool,
    /// Nothing is to be changed.
    pub dry_run: bool,
    /// Leave the service as it is.
    pub no_start: bool,
    /// Slurm's configuration.
    pub conf: PathBuf,
    /// The folder of systemd's units.
    pub units: PathBuf,
    /// The folder of job records. `None`: in Slurm's own state folder.
    pub state: Option<PathBuf>,
    /// The socket between the hooks and the service.
    pub socket: PathBuf,
}

/// The folder of the hooks' records, when it was to be removed.
pub enum Records {
    /// These jobs still have copies on nodes.
    Kept {
        folder: String,
        jobs: usize,
    },
    Removed {
        folder: String,
    },
}

/// A planned installation.
pub struct Installation {
    /// The files to write.
    pub files: Vec<File>,
    paths: Paths,
    controller: bool,
    no_start: bool,
}

impl Installation {
    /// # Errors
    /// A path cannot be used, or nothing could start the service.
    pub fn plan(request: &InstallRequest) -> Result<Installation> {
        let paths = paths(request)?;
        let role = if request.controller { MachineRole::Controller } else { MachineRole::Node };
        let files = install(&paths, role, |path| std::fs::read_to_string(path).ok())?;
        if !request.no_start && !request.dry_run && !Path::new(BOOTED).is_dir() {
            refuse!(
                "systemd does not run on this machine, so nothing could start the service, and nothing was changed: --no-start \
                 writes the files and leaves starting {} to you",
                paths.unit
            );
        }
        Ok(Installation { files, paths, controller: request.controller, no_start: request.no_start })
    }

    /// Writes the files and starts the service.
    ///
    /// # Errors
    /// A file cannot be written, or systemd refuses.
    pub fn carry_out(&self) -> Result<()> {
        // Create the state folder first: if this is refused, nothing has been written.
        if self.controller {
            state_folder(&self.paths.state)?;
        }
        self.files.iter().try_for_each(write)?;
        if !self.no_start {
            systemctl(&["daemon-reload"])?;
            systemctl(&["enable", "--now", UNIT])?;
            systemctl(&["restart", UNIT])?;
        }
        Ok(())
    }
}

/// A planned removal of an installation.
pub struct Removal {
    /// The files to remove or to write without the installation's part.
    pub files: Vec<File>,
    state: String,
    dry_run: bool,
    /// The service is stopped, too.
    pub stops_service: bool,
}

impl Removal {
    /// # Errors
    /// A path cannot be used.
    pub fn plan(request: &InstallRequest) -> Result<Removal> {
        let paths = paths(request)?;
        let state = match paths.state.is_empty() {
            // A node has no such folder.
            true => state_of_slurm().unwrap_or_default(),
            false => paths.state.clone(),
        };
        let files = uninstall(&paths, |path| std::fs::read_to_string(path).ok())?;
        let stops_service = !request.no_start && !request.dry_run && files.iter().any(|file| file.path == paths.unit);
        Ok(Removal { files, state, dry_run: request.dry_run, stops_service })
    }

    /// Changes the files, and stops the service before.
    ///
    /// # Errors
    /// A file cannot be changed, or systemd refuses.
    pub fn carry_out(&self) -> Result<()> {
        if self.stops_service {
            systemctl(&["disable", "--now", UNIT])?;
        }
        self.files.iter().try_for_each(write)?;
        if self.stops_service {
            systemctl(&["daemon-reload"])?;
        }
        Ok(())
    }

    /// Removes the folder of the hooks' records, unless jobs still have copies.
    ///
    /// # Errors
    /// The folder cannot be examined or removed.
    pub fn forget_records(&self) -> Result<Option<Records>> {
        if self.dry_run { Ok(None) } else { forget_records(&self.state) }
    }

    /// Removes the service's copy of this program, if the service was stopped.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove_programs(&self) -> Result<()> {
        if self.stops_service { remove_programs(Path::new(PROGRAMS)) } else { Ok(()) }
    }
}

/// Removes the folder of the hooks' records. A folder with records of existing copies stays, because the locations of
/// the copies are recorded only there.
/// `None`: there was nothing to remove.
fn forget_records(state: &str) -> Result<Option<Records>> {
    if state.is_empty() {
        return Ok(None);
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
        return Ok(None);
    };
    if records > 0 {
        return Ok(Some(Records::Kept { folder: state.to_owned(), jobs: records }));
    }
    around.remove(&name).with_context(|| state.to_owned())?;
    Ok(Some(Records::Removed { folder: state.to_owned() }))
}

fn paths(request: &InstallRequest) -> Result<Paths> {
    let text =
        |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| refusal!("{} is not UTF-8", path.display()));
    let beside = |name: &str| text(&request.conf.with_file_name(name));
    let state = match (&request.state, request.controller) {
        (Some(state), _) => text(state)?,
        (None, true) => state_of_slurm()?,
        (None, false) => String::new(),
    };
    let paths = Paths {
        command: text(&std::env::current_exe()?)?,
        slurm_conf: text(&request.conf)?,
        unit: text(&request.units.join(UNIT))?,
        lua: beside("burst_buffer.lua")?,
        burst_buffer_conf: beside("burst_buffer.conf")?,
        state,
        service: text(&request.socket)?,
    };
    for path in [&paths.command, &paths.slurm_conf, &paths.state, &paths.service] {
        if path.chars().any(|c| c.is_whitespace() || c.is_control() || "\"\\'%$".contains(c)) {
            refuse!("{path}: systemd and Lua need a path without spaces, quotes, `$`, `%` and backslashes");
        }
    }
    Ok(paths)
}

/// The folder of the hooks' records, below Slurm's own state folder.
fn state_of_slurm() -> Result<String> {
    let config = Config::ask().context("give --state, or set StateSaveLocation in Slurm")?;
    let place = config.get("StateSaveLocation").context("Slurm shows no StateSaveLocation: give --state")?;
    Ok(format!("{place}/landbridge"))
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
        false => refuse!("`{line}` failed: `journalctl -u {UNIT}` shows why; the files are in place"),
    }
}
