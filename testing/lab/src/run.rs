//! The caller's side of a lab: starts it, forwards signals, and waits for its end.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::error::LabError;
use crate::message::{Channel, LabMessage, LabMessageKind};
use crate::options::{Isolation, LabOptions};
use crate::probe::Missing;
use crate::process::{PATIENCE, expect, start_with_channel, wait_or_kill};
use crate::signals::Signals;
use crate::supervisor::{Outcome, SupervisorPlan};
use crate::wan::WanReport;

/// The outcome of a lab.
#[derive(Debug, Clone, PartialEq)]
pub struct LabReport {
    /// The command's exit status.
    pub status: ExitStatus,
    /// True if the hosts were namespaces, false if they were loopback addresses.
    pub isolated: bool,
    /// The WAN emulator's report; `None` in a loopback lab.
    pub wan: Option<WanReport>,
    /// Notes for the user, for example that a gateway ended before the command.
    pub notes: Vec<String>,
}

/// Builds a lab, runs the command on its first node with this process's standard files, and takes the lab down again.
///
/// `notice` receives sentences for the user as they arise; the lab itself prints nothing. SIGINT, SIGTERM and SIGHUP
/// are forwarded to the command, which then has five seconds to end; Ctrl-C on a terminal is forwarded without a limit.
/// If the calling process or thread dies, by any signal, the lab ends with it.
///
/// The calling program must first pass its arguments to [`crate::hidden_main`], because the lab's processes are this
/// program started again.
///
/// # Errors
/// See [`LabError`]; the lab is down after any error.
pub fn run(options: &LabOptions, notice: &mut dyn FnMut(&str)) -> Result<LabReport, LabError> {
    options.check()?;
    if let Some(logs) = &options.logs {
        std::fs::create_dir_all(logs).map_err(|e| LabError::setup(logs.display().to_string(), e))?;
    }
    let report = match options.isolation {
        Isolation::Namespaces => start(options, true),
        Isolation::Loopback => {
            let wan = |options: &LabOptions| (options.delay, options.jitter, options.loss, options.wan_rate);
            if wan(options) != wan(&LabOptions::default()) {
                notice("a loopback lab has no delay, no loss and no rates: those options do nothing");
            }
            start(options, false)
        }
        Isolation::Auto => match start(options, true) {
            Err(LabError::Unavailable { what, remedy }) if !options.route_directly && !options.any_ipv6() => {
                notice(&format!("{what}; {remedy}. Falling back to loopback: no isolation, no delay, no rates."));
                start(options, false)
            }
            other => other,
        },
    }?;
    report.notes.iter().for_each(|note| notice(note));
    if let (Some(path), Some(wan)) = (&options.report, &report.wan) {
        let text = serde_json::to_string_pretty(wan).map_err(|e| LabError::setup("WAN report", e))?;
        std::fs::write(path, text + "\n").map_err(|e| LabError::setup(path.display().to_string(), e))?;
    }
    Ok(report)
}

/// The lab's first process. Killing it kills the lab.
struct Outer(Child);

impl Drop for Outer {
    fn drop(&mut self) {
        // It has usually ended or is about to; a loopback lab cleans up for a while after its channel closed.
        wait_or_kill(&mut self.0, PATIENCE);
    }
}

fn launch(plan: &SupervisorPlan, isolated: bool) -> Result<(Outer, Channel), LabError> {
    let arguments: &[&str] = if isolated { &["lab-outer"] } else { &["lab-supervisor", "loopback"] };
    let (child, channel) = start_with_channel(arguments)?;
    let outer = Outer(child);
    let json = serde_json::to_vec(plan).map_err(|e| LabError::setup("plan of a lab", e))?;
    let mut fields: Vec<&[u8]> = vec![&json];
    fields.extend(plan.options.command.iter().map(|word| word.as_bytes()));
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let files = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    // If it ended early, the channel holds its error.
    let _ = channel.send_files(LabMessageKind::Plan, &fields, &files);
    Ok((outer, channel))
}

fn start(options: &LabOptions, isolated: bool) -> Result<LabReport, LabError> {
    // Watch signals before the lab exists, so that no signal can end this process without ending the lab properly.
    let signals = Signals::watch(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
        .map_err(|e| LabError::setup("watching signals", e))?;
    let mut plan = plan(options, false)?;
    let place = || std::env::temp_dir().display().to_string();
    // In namespaces the files are on a tmpfs that disappears with them. In a loopback lab this process and the
    // supervisor both remove them, in case one was killed.
    let files = if isolated {
        None
    } else {
        let made = tempfile::Builder::new().prefix("landbridge-lab-").tempdir();
        Some(made.map_err(|e| LabError::setup(place(), e))?)
    };
    plan.state = files.as_ref().map(|directory| directory.path().to_owned());
    // The channel is dropped before the child is waited for: the supervisor of a loopback lab ends when it closes.
    let (_outer, channel) = launch(&plan, isolated)?;
    let message = converse(&channel, &signals)?;
    let outcome: Outcome = message.json().map_err(|e| LabError::setup("outcome of the lab", e))?;
    Ok(LabReport { status: ExitStatus::from_raw(outcome.status), isolated, wan: outcome.wan, notes: outcome.notes })
}

/// Forwards signals until the supervisor reports the outcome.
fn converse(channel: &Channel, signals: &Signals) -> Result<LabMessage, LabError> {
    loop {
        let mut fds = [PollFd::new(channel, PollFlags::IN), PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(LabError::setup("poll", e)),
        }
        if !fds[0].revents().is_empty() {
            return expect(channel, LabMessageKind::Done, "the lab's supervisor");
        }
        for signal in signals.take() {
            // If the supervisor is gone, the next poll reports that.
            let _ = channel.send_number(LabMessageKind::Signal, signal);
        }
    }
}

/// Runs the part of the probe that needs namespaces.
pub(crate) fn probe_namespaces() -> Result<Vec<Missing>, LabError> {
    let plan = plan(&LabOptions::default(), true)?;
    let (_outer, channel) = launch(&plan, true)?;
    let message = crate::process::expect_within(&channel, LabMessageKind::Done, "the probe", Duration::from_secs(10))?;
    message.json().map_err(|e| LabError::setup("the probe", e))
}

fn plan(options: &LabOptions, probe: bool) -> Result<SupervisorPlan, LabError> {
    let program = std::env::current_exe().map_err(|e| LabError::setup("the path of this program", e))?;
    let directory = std::env::current_dir().map_err(|e| LabError::setup("the working directory", e))?;
    let mut wanted = guessed_paths(&options.command);
    wanted.push(surroundings(&directory));
    wanted.push(surroundings(&program));
    for path in options.visible.iter().chain(&options.logs) {
        let found = path.canonicalize();
        wanted.push(found.map_err(|e| LabError::Options(format!("{} cannot be kept visible: {e}", path.display())))?);
    }
    Ok(SupervisorPlan {
        options: options.clone(),
        program,
        directory,
        visible: without_nesting(wanted),
        state: None,
        interactive: io::stdin().is_terminal(),
        probe,
    })
}

/// Paths that the command probably needs: the [`surroundings`] of existing absolute paths among its words and of
/// directories on the search paths, as written and with symbolic links resolved.
fn guessed_paths(command: &[OsString]) -> Vec<PathBuf> {
    let words = command.iter().map(PathBuf::from).filter(|path| path.is_absolute());
    let searched = ["PATH", "LD_LIBRARY_PATH"].into_iter().filter_map(std::env::var_os);
    let searched = searched.flat_map(|paths| std::env::split_paths(&paths).collect::<Vec<_>>());
    let mut found = Vec::new();
    for path in words.chain(searched) {
        // Paths that do not exist, or cannot be accessed, need not be kept.
        let Ok(resolved) = path.canonicalize() else { continue };
        found.push(surroundings(&resolved));
        if !path.components().any(|part| part == Component::ParentDir) {
            found.push(surroundings(&path));
        }
    }
    found
}

/// The part of a private mount that stays visible because of `path`: the whole top folder below the mount that contains
/// it, because the command's script may refer to neighbours (a checkout under `/tmp` is one unit).
fn surroundings(path: &Path) -> PathBuf {
    let below = |root: &&str| path.strip_prefix(root).ok()?.components().next().map(|top| Path::new(root).join(top));
    PRIVATE.iter().find_map(below).unwrap_or_else(|| path.to_owned())
}

/// Mounts that are private to each host.
const PRIVATE: [&str; 3] = ["/tmp", "/dev/shm", "/run"];

fn is_covered_root(path: &Path) -> bool {
    PRIVATE.iter().any(|root| path == Path::new(root))
}

/// Keeps only paths below a private mount, without paths inside other kept paths.
fn without_nesting(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.retain(|path| !is_covered_root(path) && PRIVATE.iter().any(|root| path.starts_with(root)));
    paths.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !kept.iter().any(|outer| path.starts_with(outer)) {
            kept.push(path);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_paths_lie_below_private_mounts_and_not_in_each_other() {
        let paths = ["/tmp/x/y", "/tmp", "/home/u", "/tmp/x", "/run/z", "/tmp/xy", "/dev/shm"].map(PathBuf::from);
        let kept = without_nesting(paths.to_vec());
        assert_eq!(kept, ["/run/z", "/tmp/x", "/tmp/xy"].map(PathBuf::from));
    }

    #[test]
    fn surroundings_are_the_top_folder_of_a_private_mount() {
        for (path, kept) in [
            ("/tmp/v/bin/python", "/tmp/v"),
            ("/tmp/x/y/script", "/tmp/x"),
            ("/tmp/script", "/tmp/script"),
            ("/dev/shm/a/b", "/dev/shm/a"),
            ("/home/u/x", "/home/u/x"),
            ("/tmp", "/tmp"),
        ] {
            assert_eq!(surroundings(Path::new(path)), Path::new(kept), "{path}");
        }
    }
}
