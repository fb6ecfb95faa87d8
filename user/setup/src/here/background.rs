//! A site's gateway in the background: a process in its own session, without root and without a terminal.
//!
//! While the gateway runs, it holds a lock on a small file that names its process and its machine. The system releases
//! the lock however the process ends. Only a process that holds this lock is ever signalled.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use client::Client;
use client::patience::Wait;
use job::host_name;
use launcher::Sites;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use crate::here::error::HereError;
use crate::here::folders::{self, Folders};
use crate::message::{Reply, Standing};

/// Time limits for a gateway to listen, and to end.
const START: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(6);
const LOCK: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);
/// Time limit for a gateway to answer a status request. The limit of `SiteRequest::Status` is longer.
const ANSWER: Duration = Duration::from_secs(20);
/// Number of bytes of a log shown when a gateway does not start.
const TAIL: u64 = 1500;

/// The note that a gateway writes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    process: i32,
    host: String,
    release: String,
}

impl Note {
    /// True if the program that it runs was removed or replaced. Such a gateway cannot start agents.
    fn program_is_gone(&self) -> bool {
        let program = std::fs::read_link(format!("/proc/{}/exe", self.process)).unwrap_or_default();
        program.to_string_lossy().ends_with(" (deleted)")
    }
}

/// The lock of a running gateway; dropping it releases the lock.
#[derive(Debug)]
pub struct Presence(#[allow(dead_code, reason = "held, not used")] File);

/// Makes this process a site's background gateway: leaves the caller's session and takes the lock.
///
/// # Errors
/// Another gateway of the site runs, or the note cannot be written.
pub fn enter(site: &str) -> Result<Presence, HereError> {
    // This fails only if the process already leads a session, which is just as good.
    let _ = rustix::process::setsid();
    let folders = Folders::of_user()?;
    folders::make(&folders.state)?;
    let path = folders.state_file(site);
    let wrong = HereError::file(&path);
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut file = options.map_err(&wrong)?;
    if !lock(&file) {
        return Err(HereError::RunsAlready { site: site.to_owned(), path: path.clone() });
    }
    let note = Note { process: std::process::id() as i32, host: host_name(), release: release_folder() };
    let text = serde_json::to_string(&note).map_err(|e| wrong(e.into()))?;
    file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes())).map_err(wrong)?;
    Ok(Presence(file))
}

/// Locks a file that shows that a process lives. Another process that checks this holds the lock for a moment, so a
/// lock that is taken is tried again for a second. Returns false if it stays taken.
pub fn lock(file: &File) -> bool {
    let end = std::time::Instant::now() + LOCK;
    while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if std::time::Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// True if a site's gateway belongs on this machine: its key is in this account, and no gateway's note names another
/// machine, as happens if machines share a home directory.
pub(crate) fn lives_here(folders: &Folders, site: &str) -> bool {
    let text = std::fs::read_to_string(folders.state_file(site)).unwrap_or_default();
    let elsewhere = serde_json::from_str::<Note>(&text).is_ok_and(|note| note.host != host_name());
    folders.key(site).is_file() && !elsewhere
}

/// A site's background gateway, seen from another process.
#[derive(Debug)]
pub(crate) struct Background<'a> {
    folders: &'a Folders,
    site: &'a str,
}

impl<'a> Background<'a> {
    pub(crate) fn new(folders: &'a Folders, site: &'a str) -> Background<'a> {
        Background { folders, site }
    }

    /// The note of the running gateway, if one runs.
    fn running(&self) -> Option<Note> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.folders.state_file(self.site)).ok()?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return None;
        }
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Makes the gateway run this release and follow the current sites file. Returns whether the gateway had to be
    /// started, and a description of the action.
    pub(crate) async fn renew(&self) -> Result<(bool, String), HereError> {
        let Some(note) = self.running() else {
            let pid = self.start().await?;
            return Ok((true, format!("started, process {pid}")));
        };
        self.same_host(&note)?;
        let (jobs, stale) = match self.ask(true).await {
            Ok(standing) => (standing.jobs, standing.stale),
            // A gateway that does not answer its own site's key is useless: restart it.
            Err(error) => (0, Some(error.to_string())),
        };
        let why = match stale {
            None if note.program_is_gone() => "its program was removed or replaced".to_owned(),
            None if note.release == release_folder() => return Ok((false, format!("runs, process {}", note.process))),
            None if jobs > 0 => {
                let text = format!(
                    "still runs another release, {}, because {jobs} job(s) are open: `landbridge sites add {}` restarts it when \
                     they have ended",
                    note.release, self.site
                );
                return Ok((false, text));
            }
            None => "it was another release".to_owned(),
            Some(problem) => problem,
        };
        if jobs > 0 {
            return Err(HereError::RestartWithJobs { why, jobs });
        }
        self.end(&note).await?;
        let pid = self.start().await?;
        Ok((false, format!("restarted, process {pid} ({why})")))
    }

    /// Makes the gateway follow the current sites file; restarts it only if it cannot take up the change while it runs.
    /// Returns whether the gateway had to be started, and a description of the action.
    pub(crate) async fn reload(&self) -> Result<(bool, String), HereError> {
        let Some(note) = self.running() else { return self.start_if_ended().await };
        self.same_host(&note)?;
        let (jobs, stale) = match self.ask(true).await {
            Ok(standing) => (standing.jobs, standing.stale),
            // A gateway that does not answer its own site's key is useless: restart it.
            Err(error) => (0, Some(error.to_string())),
        };
        let Some(why) = stale else {
            return Ok((false, format!("works by it, without a restart, process {}", note.process)));
        };
        if jobs > 0 {
            return Err(HereError::RestartWithJobs { why, jobs });
        }
        self.end(&note).await?;
        let pid = self.start().await?;
        Ok((false, format!("restarted, process {pid} ({why})")))
    }

    /// Starts the gateway unless it runs. Returns whether it was started, and a description of the action.
    pub(crate) async fn start_if_ended(&self) -> Result<(bool, String), HereError> {
        let runs = |note: &Note| (false, format!("runs, process {} on {}", note.process, note.host));
        if let Some(note) = self.running() {
            return Ok(runs(&note));
        }
        // The sites file has the address of the machine where it last ran, so it must start there.
        if let Some(note) = self.last_note() {
            self.same_host(&note)?;
        }
        if self.ask(false).await.is_ok() {
            return Ok((false, "runs, started by hand".to_owned()));
        }
        match (self.start().await, self.running()) {
            (Ok(pid), _) => Ok((true, format!("started, process {pid}"))),
            // Another process started it first.
            (Err(_), Some(note)) => {
                let mut wait = Wait::new(START);
                while self.ask(false).await.is_err() && wait.left().is_some() {
                    sleep(POLL).await;
                }
                Ok(runs(&note))
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Waits until all trunks are up, at most `limit`.
    pub(crate) async fn await_trunks(&self, limit: Duration) {
        let mut wait = Wait::new(limit);
        let up = |standing: client::Standing| standing.trunks.iter().all(|trunk| trunk.up);
        while !self.ask(false).await.is_ok_and(up) && wait.left().is_some() {
            sleep(POLL * 5).await;
        }
    }

    /// The note of the gateway that ran last.
    fn last_note(&self) -> Option<Note> {
        let text = std::fs::read_to_string(self.folders.state_file(self.site)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Stops the gateway if it runs.
    pub(crate) async fn stop(&self, force: bool) -> Result<String, HereError> {
        let Some(note) = self.running() else { return Ok("was not running".to_owned()) };
        self.same_host(&note)?;
        if !force && let Ok(client::Standing { jobs: jobs @ 1.., .. }) = self.ask(false).await {
            return Err(HereError::StopWithJobs { jobs });
        }
        self.end(&note).await?;
        Ok(format!("stopped, process {}", note.process))
    }

    pub(crate) async fn standing(&self) -> Standing {
        let log = self.folders.logs(self.site)[0].display().to_string();
        let Some(note) = self.running() else {
            return Standing { host: host_name(), log, ..Standing::default() };
        };
        let (process, host, release) = (Some(note.process), note.host.clone(), note.release.clone());
        let other_release = note.release != release_folder();
        let standing = Standing { process, host, release, other_release, log, ..Standing::default() };
        if let Err(error) = self.same_host(&note) {
            return Standing { problem: Some(error.to_string()), ..standing };
        }
        // On a busy machine, the connecting client waits longer than the user who asks here.
        match timeout(ANSWER, self.ask(false)).await {
            Ok(Ok(client::Standing { jobs, trunks, stale })) => Standing { jobs, trunks, unread: stale, ..standing },
            Ok(Err(error)) => Standing { problem: Some(error.to_string()), ..standing },
            Err(_) => {
                let problem = format!("its gateway did not answer within {} s", ANSWER.as_secs());
                Standing { problem: Some(problem), ..standing }
            }
        }
    }

    fn same_host(&self, note: &Note) -> Result<(), HereError> {
        let here = host_name();
        if note.host == here {
            return Ok(());
        }
        Err(HereError::OtherHost { there: note.host.clone(), here })
    }

    pub(crate) async fn invite(&self, seconds: u32) -> Result<Reply, HereError> {
        let (ticket, secret) = self.connect().await?.invite(seconds).await?;
        Ok(Reply::Invited { ticket, secret })
    }

    /// Asks the gateway for its status. `reload`: reload the sites file first.
    async fn ask(&self, reload: bool) -> Result<client::Standing, HereError> {
        Ok(self.connect().await?.standing(reload).await?)
    }

    /// Connects to the gateway as this site's user.
    async fn connect(&self) -> Result<Client, HereError> {
        let sites = super::read(self.folders)?;
        let site = sites.site(self.site)?;
        let (client, _) = sites.connect(site).await?;
        Ok(client)
    }

    async fn start(&self) -> Result<u32, HereError> {
        let sites = super::read(self.folders)?;
        folders::make(&self.folders.state)?;
        let [log, old] = self.folders.logs(self.site);
        if log.exists() {
            std::fs::rename(&log, &old).map_err(HereError::file(&old))?;
        }
        let output =
            OpenOptions::new().append(true).create(true).mode(0o600).open(&log).map_err(HereError::file(&log))?;
        let program = std::env::current_exe().map_err(HereError::Command)?;
        let mut child = Command::new(&program)
            .args(["gateway", "--background", "--site", self.site, "--sites"])
            .arg(self.folders.sites_file())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .current_dir("/")
            .spawn()
            .map_err(|source| HereError::Start { program, source })?;
        let outcome = self.await_listening(&sites, &mut child, &log).await;
        if outcome.is_err() {
            // It is a child process that has not been waited for, so no other process has its number.
            let _ = child.kill();
            let _ = child.wait();
        }
        outcome.map(|()| child.id())
    }

    async fn await_listening(&self, sites: &Sites, child: &mut Child, log: &Path) -> Result<(), HereError> {
        let site = sites.site(self.site)?;
        let mut wait = Wait::new(START);
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(HereError::Ended { status, log: tail(log) });
            }
            // Only the process that holds the lock is this gateway: another program may answer on the port.
            if self.running().is_some_and(|note| note.process == child.id() as i32) {
                match sites.connect(site).await {
                    Ok(_) => return Ok(()),
                    Err(source) if wait.left().is_none() => {
                        return Err(HereError::Unreached { source: Box::new(source), log: tail(log) });
                    }
                    Err(_) => {}
                }
            }
            if wait.left().is_none() {
                return Err(HereError::Deaf { seconds: wait.elapsed().as_secs(), log: tail(log) });
            }
            sleep(POLL).await;
        }
    }

    async fn end(&self, note: &Note) -> Result<(), HereError> {
        let Some(pid) = Pid::from_raw(note.process) else { return Err(HereError::Note) };
        for (signal, patience) in [(Signal::TERM, END), (Signal::KILL, Duration::from_secs(2))] {
            // The gateway may end between this check and the signal. Its number is reused only after its parent has
            // waited for it.
            if self.running().is_none_or(|now| now != *note) {
                return Ok(());
            }
            let _ = kill_process(pid, signal);
            let end = Instant::now() + patience;
            while Instant::now() < end {
                if self.running().is_none() {
                    return Ok(());
                }
                sleep(POLL).await;
            }
        }
        Err(HereError::Survives(note.process))
    }
}

/// The end of a log, joined into one line.
fn tail(log: &Path) -> String {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(log) {
        let length = file.metadata().map_or(0, |found| found.len());
        let _ = file.seek(std::io::SeekFrom::Start(length.saturating_sub(TAIL)));
        let _ = file.take(TAIL).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines[lines.len().saturating_sub(3)..].join("; ") {
        text if text.is_empty() => format!("{} is empty", log.display()),
        text => text,
    }
}

/// The folders of the releases that gateways of this account run, or last ran.
pub(crate) fn releases_in_use(folders: &Folders) -> Vec<PathBuf> {
    let files: Vec<PathBuf> =
        std::fs::read_dir(&folders.state).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let texts = |kind: &'static str| {
        let named = files.iter().filter(move |path| path.extension().is_some_and(|found| found == kind));
        named.filter_map(|path| std::fs::read_to_string(path).ok())
    };
    let notes = texts("gateway").filter_map(|text| Some(serde_json::from_str::<Note>(&text).ok()?.release.into()));
    let kept = texts("keep").filter_map(|text| super::keep::release_of(&text));
    notes.chain(kept).chain([release_folder().into()]).collect()
}

/// The folder of the release that this program belongs to.
fn release_folder() -> String {
    let program: PathBuf = std::env::current_exe().unwrap_or_default();
    program.parent().map_or(String::new(), |folder| folder.display().to_string())
}

#[cfg(test)]
mod tests;
