//! The process that holds a lab together: builds it, runs the command in it, and takes it down.
//!
//! In namespaces it is the first process of the lab's PID namespace, so its end, for any reason, ends everything.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::cables::Cables;
use crate::enter::Session;
use crate::error::LabError;
use crate::gateways::{self, RunningGateway};
use crate::hosts::{self, HostProcess};
use crate::layout::{LabLayout, site_name};
use crate::message::{Channel, LabMessageKind};
use crate::namespace;
use crate::options::LabOptions;
use crate::probe;
use crate::process::{adopt_orphans, end_descendants, expect, expect_within, follow_parent, wait_or_kill};
use crate::state::{LabDirectory, SITES_VARIABLE, STATE_VARIABLE};
use crate::wan::WanReport;

/// Time limit for the command to end after a signal that ends the lab.
const GRACE: Duration = Duration::from_secs(5);

/// The plan that the caller's process sends to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SupervisorPlan {
    pub options: LabOptions,
    /// The path of this program, which also runs gateways and starters.
    pub program: PathBuf,
    pub directory: PathBuf,
    /// Paths that private mounts must not hide, none inside another.
    pub visible: Vec<PathBuf>,
    /// The directory of a loopback lab's files.
    pub state: Option<PathBuf>,
    /// True if standard input is a terminal: the command then interprets Ctrl-C.
    pub interactive: bool,
    /// True to report only the missing requirements of an isolated lab.
    pub probe: bool,
}

/// The outcome that the supervisor sends to the caller's process at the end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The command's wait status.
    pub status: i32,
    pub wan: Option<WanReport>,
    pub notes: Vec<String>,
}

/// The entry point of the hidden command `lab-supervisor`.
pub(crate) fn main(isolated: bool) -> i32 {
    let Ok(channel) = Channel::from_stdin() else { return 1 };
    let outcome = (|| {
        if isolated {
            follow_parent(&channel)?;
        } else {
            // In its own session, Ctrl-C reaches it only through the caller. It does not die with its parent at once,
            // but sees the channel close and cleans up.
            rustix::process::setsid().map_err(|e| LabError::setup("setsid", e))?;
        }
        let message = expect(&channel, LabMessageKind::Plan, "the lab's caller")?;
        let plan: SupervisorPlan = message.json().map_err(|e| LabError::setup("plan of a lab", e))?;
        let files: [OwnedFd; 3] =
            message.files.try_into().map_err(|_| LabError::setup("plan of a lab", "three files are due"))?;
        let command = message.fields.into_iter().skip(1).map(OsString::from_vec).collect();
        if plan.probe {
            return probe::inside(&plan.visible).map(Ended::Probe);
        }
        if isolated {
            run_isolated(plan, command, files, &channel)
        } else {
            run_loopback(plan, command, files, &channel)
        }
        .map(Ended::Run)
    })();
    // If the caller is gone, the outcome is not needed.
    let _ = match &outcome {
        Ok(Ended::Run(outcome)) => channel.send_json(LabMessageKind::Done, outcome),
        Ok(Ended::Probe(missing)) => channel.send_json(LabMessageKind::Done, missing),
        Err(error) => channel.send_json(LabMessageKind::Failed, error),
    };
    i32::from(outcome.is_err())
}

enum Ended {
    Run(Outcome),
    Probe(Vec<probe::Missing>),
}

fn run_isolated(
    plan: SupervisorPlan,
    command: Vec<OsString>,
    files: [OwnedFd; 3],
    caller: &Channel,
) -> Result<Outcome, LabError> {
    namespace::mount_outer(&plan.visible)?;
    let state = LabDirectory::isolated();
    let layout = LabLayout::new(&plan.options, None);
    let prepare = || {
        state.create().map_err(|e| LabError::setup(state.root().display().to_string(), e))?;
        write_files(&plan, &layout, &state)
    };
    prepare()?;
    if let Some(pool) = &plan.options.pool {
        fs::create_dir_all(pool).map_err(|e| LabError::setup(pool.display().to_string(), e))?;
        for site in 0..layout.sites {
            namespace::mount_pool(&state.pool(site_name(site)), plan.options.pool_bytes)?;
        }
    }
    let hosts = hosts::bring_up(&plan.options, &layout, &state, &plan.visible)?;
    // The cables exist now; the hosts set up their ends meanwhile.
    let (wan_child, wan) = hosts::start_wan(&plan.options, &layout, &state)?;
    hosts::await_ready(&hosts)?;
    expect(&wan, LabMessageKind::Ready, "WAN emulator")?;
    let cables = Cables::open(layout, &state, true)?;
    let lab = Lab { plan, command, layout, state, hosts, cables, wan: Some((wan_child, wan)), gateways: Vec::new() };
    lab.live(files, caller)
    // The end of this process ends all other processes.
}

fn run_loopback(
    plan: SupervisorPlan,
    command: Vec<OsString>,
    files: [OwnedFd; 3],
    caller: &Channel,
) -> Result<Outcome, LabError> {
    let root =
        plan.state.clone().ok_or_else(|| LabError::setup("plan of a lab", "a loopback lab needs a directory"))?;
    let state = LabDirectory::at(&root);
    adopt_orphans()?;
    let outcome = live_on_loopback(plan, command, files, caller, state);
    // Processes are left only if the hosts' process was killed.
    end_descendants();
    // The caller removes it too, unless it was killed.
    let _ = fs::remove_dir_all(&root);
    outcome
}

fn live_on_loopback(
    plan: SupervisorPlan,
    command: Vec<OsString>,
    files: [OwnedFd; 3],
    caller: &Channel,
    state: LabDirectory,
) -> Result<Outcome, LabError> {
    state.create().map_err(|e| LabError::setup(state.root().display().to_string(), e))?;
    let layout = LabLayout::new(&plan.options, Some(free_loopback(&plan.options)?));
    write_files(&plan, &layout, &state)?;
    let host = hosts::bring_up_loopback(&layout, &state)?;
    let cables = Cables::open(layout, &state, false)?;
    let lab = Lab { plan, command, layout, state, hosts: vec![host], cables, wan: None, gateways: Vec::new() };
    lab.live(files, caller)
}

/// A third byte x for 127.S.x.N such that no gateway's port is in use.
fn free_loopback(options: &LabOptions) -> Result<u8, LabError> {
    let free = |lab: u8| {
        let layout = LabLayout::new(options, Some(lab));
        layout.gateways().all(|gateway| TcpListener::bind(layout.listen(gateway)).is_ok())
    };
    // Start at our own process id, so that labs that start together rarely try the same byte.
    let first = std::process::id() as u8;
    (0..=255u8).map(|step| first.wrapping_add(step)).find(|lab| free(*lab)).ok_or_else(|| LabError::Unavailable {
        what: "every loopback address 127.1.x.101 has its port 7700 in use".into(),
        remedy: "end other loopback labs".into(),
    })
}

fn write_files(plan: &SupervisorPlan, layout: &LabLayout, state: &LabDirectory) -> Result<(), LabError> {
    let write = |path: PathBuf, text: String| {
        fs::write(&path, text).map_err(|e| LabError::setup(path.display().to_string(), e))
    };
    let mut fingerprints = Vec::new();
    for site in 0..layout.sites {
        let path = state.key(site_name(site));
        let key = client::key::generate(&path).map_err(|e| LabError::setup(format!("key {}", path.display()), e))?;
        fingerprints.push(key.fingerprint().to_string());
        write(state.hosts_file(site_name(site)), layout.hosts_file(site))?;
    }
    write(state.sites_file(), layout.sites_file(&fingerprints, &plan.program, &plan.options))
}

struct Lab {
    plan: SupervisorPlan,
    command: Vec<OsString>,
    layout: LabLayout,
    state: LabDirectory,
    hosts: Vec<HostProcess>,
    cables: Cables,
    wan: Option<(Child, Channel)>,
    gateways: Vec<RunningGateway>,
}

impl Lab {
    /// Runs the command on the serving hosts, takes the lab down and returns the outcome.
    fn live(mut self, files: [OwnedFd; 3], caller: &Channel) -> Result<Outcome, LabError> {
        let mut notes = Vec::new();
        let ended = self.run_command(files, caller, &mut notes);
        let wan = self.take_down(&mut notes);
        Ok(Outcome { status: ended?.into_raw(), wan, notes })
    }

    fn run_command(
        &mut self,
        files: [OwnedFd; 3],
        caller: &Channel,
        notes: &mut Vec<String>,
    ) -> Result<ExitStatus, LabError> {
        let mut environment: Vec<(OsString, OsString)> =
            std::env::vars_os().filter(|(key, _)| key != STATE_VARIABLE && key != SITES_VARIABLE).collect();
        environment.push((STATE_VARIABLE.into(), self.state.root().into()));
        environment.push((SITES_VARIABLE.into(), self.state.sites_file().into()));
        let template = self.plan.options.gateway_command.clone().unwrap_or_else(|| default_gateway(&self.plan.program));
        if !template.is_empty() {
            self.gateways = gateways::start(&template, &self.layout, &self.state, &environment, caller)?;
        }
        let first = self.layout.hosts().next().map(|host| host.name()).unwrap_or_default();
        let files = [files[0].as_fd(), files[1].as_fd(), files[2].as_fd()];
        let directory = self.plan.directory.as_path();
        let session = Session::start(&self.state, &first, &self.command, &environment, directory, files)?;
        self.watch(&session, caller, notes)
    }

    /// Waits for the command, forwards signals, and reports processes that end prematurely.
    fn watch(&mut self, session: &Session, caller: &Channel, notes: &mut Vec<String>) -> Result<ExitStatus, LabError> {
        let mut deadline: Option<Instant> = None;
        loop {
            let mut fds = vec![PollFd::new(session, PollFlags::IN), PollFd::new(caller, PollFlags::IN)];
            fds.push(PollFd::new(&self.cables, PollFlags::IN));
            fds.extend(self.wan.iter().map(|(_, channel)| PollFd::new(channel, PollFlags::IN)));
            let before_gateways = fds.len();
            fds.extend(self.gateways.iter().map(|gateway| PollFd::new(&gateway.session, PollFlags::IN)));
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            match rustix::event::poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(LabError::setup("poll", e)),
            }
            let woken: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if woken[0] {
                return session.outcome();
            }
            if deadline.is_some_and(|end| Instant::now() >= end) {
                notes.push(format!("the command did not end within {} s of a signal and was killed", GRACE.as_secs()));
                return Ok(ExitStatus::from_raw(libc::SIGKILL));
            }
            if woken[1] {
                let message = expect(caller, LabMessageKind::Signal, "the lab's caller")?;
                let signal = message.number().map_err(|e| LabError::setup("a signal", e))?;
                session.signal(signal).map_err(|e| LabError::setup("forwarding a signal", e))?;
                if !(self.plan.interactive && signal == libc::SIGINT) {
                    deadline.get_or_insert(Instant::now() + GRACE);
                }
            }
            if woken[2] {
                self.cables.serve();
            }
            if self.wan.is_some() && woken[3] {
                let how =
                    match self.wan.as_ref().map(|(_, channel)| expect(channel, LabMessageKind::Done, "WAN emulator")) {
                        Some(Err(error)) => error.to_string(),
                        _ => "it ended without being told to".to_owned(),
                    };
                return Err(LabError::Ended { process: "the WAN emulator".into(), how });
            }
            let mut index = before_gateways;
            let state = &self.state;
            self.gateways.retain(|gateway| {
                index += 1;
                if !woken[index - 1] {
                    return true;
                }
                let how = gateway.session.outcome().map_or_else(|e| e.to_string(), |status| status.to_string());
                let tail = gateways::log_tail(state, &gateway.name);
                notes.push(format!("gateway {} ended before the command: {how}\n{tail}", gateway.name));
                false
            });
        }
    }

    fn take_down(mut self, notes: &mut Vec<String>) -> Option<WanReport> {
        gateways::stop(&self.gateways);
        let report = self.wan.take().and_then(|(mut child, channel)| {
            if let Some(pid) = Pid::from_raw(child.id() as i32) {
                // If it is already gone, `expect` below reports that.
                let _ = rustix::process::kill_process(pid, Signal::TERM);
            }
            let report = expect_within(&channel, LabMessageKind::Done, "WAN emulator", Duration::from_secs(2))
                .and_then(|message| message.json().map_err(|e| LabError::setup("WAN report", e)));
            wait_or_kill(&mut child, Duration::from_secs(1));
            report.map_err(|error| notes.push(error.to_string())).ok()
        });
        if let Some(target) = &self.plan.options.logs
            && let Err(e) = copy_files(&self.state.logs(), target)
        {
            notes.push(format!("logs could not be copied to {}: {e}", target.display()));
        }
        for HostProcess { mut child, channel, .. } in self.hosts {
            drop(channel);
            wait_or_kill(&mut child, Duration::from_secs(5));
        }
        report
    }
}

fn default_gateway(program: &Path) -> Vec<String> {
    let program = program.to_string_lossy().into_owned();
    let rest = ["gateway", "--sites", "{sites_file}", "--site", "{site}", "--gateway", "{gateway}"];
    std::iter::once(program).chain(rest.map(str::to_owned)).collect()
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
