//! Jobs that run without a terminal: `run --detach`, `jobs`, `logs` and `cancel`.
//!
//! Each job has a folder. Its process holds a lock in it while it lives, and writes its exit code there when it ends
//! normally. A folder with neither a held lock nor an exit code belongs to a job that was killed.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use folder::{Folder, through};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, setsid};
use serde::{Deserialize, Serialize};

use crate::carried;
use crate::error::{CommandError, Context, Result, refuse};
use job::host_name;

/// Number of words inserted after a carried command: `--from SITE --sites FILE`.
const CARRIED_WORDS: usize = 4;
/// Number of ended jobs that are kept.
const KEPT: usize = 100;
/// Time limit for a job's start, and for its end after a signal.
const BEGIN: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// The command line of a job, and where it was typed.
#[derive(Debug, Serialize, Deserialize)]
pub struct TypedCommand {
    pub command: Vec<String>,
    pub directory: String,
    pub host: String,
    /// Seconds since 1970.
    pub began: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    Running,
    Ended,
    /// Ended without an exit code.
    Killed,
    /// Runs or ran on another machine; only that machine knows its state.
    Elsewhere,
}

#[derive(Debug, Serialize)]
pub struct DetachedJob {
    pub id: u32,
    pub state: JobState,
    pub exit_code: Option<i32>,
    /// The job's site, if its user is elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    #[serde(flatten)]
    pub typed: TypedCommand,
    /// Seconds since 1970; `None` while it runs or if only another machine knows.
    pub ended: Option<u64>,
    #[serde(skip)]
    folder: PathBuf,
}

/// Starts `landbridge` with these words in a process without a terminal, and returns the job's id.
///
/// # Errors
/// The job did not begin.
pub fn detach(words: &[OsString]) -> Result<u32> {
    let all = folder()?;
    private(&all)?;
    forget_old(&all);
    let (id, folder) = fresh(&all)?;
    let directory = std::env::current_dir().context("the working directory")?;
    // In a carried command, the site and its sites file come first; its user did not type them.
    let added = if carried::is_carried() { CARRIED_WORDS } else { 0 };
    let shown = words.iter().enumerate().filter(|(at, _)| !(1..=added).contains(at)).map(|(_, word)| word);
    let typed = TypedCommand {
        command: shown.map(|word| word.to_string_lossy().into_owned()).collect(),
        directory: directory.display().to_string(),
        host: host_name(),
        began: seconds(SystemTime::now()),
    };
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).with_context(|| folder.join(name).display().to_string())
    };
    write("job.json", serde_json::to_string(&typed)?)?;
    let output = OpenOptions::new().create(true).append(true).open(folder.join("output"))?;
    // The terminal will be closed; a file or a pipe stays readable.
    let stdin = match io::stdin().is_terminal() {
        true => Stdio::null(),
        // The ssh connection will be closed too.
        false if carried::is_carried() => kept_input(&folder.join("input"))?,
        false => Stdio::inherit(),
    };
    let mut child = Command::new(std::env::current_exe()?)
        .arg("detached")
        .arg(&folder)
        .arg("--")
        .args(words)
        .stdin(stdin)
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("starting the job")?;
    let end = Instant::now() + BEGIN;
    while !folder.join("pid").exists() {
        if child.try_wait()?.is_some() || Instant::now() > end {
            refuse!("job {id} did not begin: {}", read(&folder.join("output")).trim());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(id)
}

/// Copies all of standard input to a file for the job.
fn kept_input(path: &Path) -> Result<Stdio> {
    let keep = || -> io::Result<File> {
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        io::copy(&mut io::stdin(), &mut file)?;
        file.rewind()?;
        Ok(file)
    };
    Ok(keep().with_context(|| path.display().to_string())?.into())
}

/// A detached job, in its own process.
pub struct Detached {
    folder: PathBuf,
    /// Locked while the job lives.
    _lock: File,
}

impl Detached {
    /// Becomes the job of this folder, in a session of its own.
    ///
    /// # Errors
    /// Another process is that job, or the folder cannot be written.
    pub fn enter(folder: &Path) -> Result<Detached> {
        setsid().context("leaving the terminal")?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        if !setup::here::background::lock(&lock) {
            refuse!("{}: another process has locked it", folder.join("lock").display());
        }
        replace(&folder.join("pid"), &std::process::id().to_string())?;
        Ok(Detached { folder: folder.to_owned(), _lock: lock })
    }

    /// Leaves the exit code in the folder.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn leave(&self, code: i32) -> Result<()> {
        replace(&self.folder.join("exit"), &code.to_string())
    }
}

/// The jobs of this machine.
///
/// # Errors
/// Others can write to their folder.
pub fn all() -> Result<Vec<DetachedJob>> {
    Ok(in_folder(&known()?))
}

/// The output of a job.
pub struct JobOutput {
    all: PathBuf,
    number: u32,
    file: File,
    at: u64,
}

impl JobOutput {
    /// # Errors
    /// There is no such job, or its output cannot be read.
    pub fn open(number: u32) -> Result<JobOutput> {
        let all = known()?;
        let (job, held) = find(&all, number)?;
        let file =
            File::open(through(&held, b"output")).with_context(|| job.folder.join("output").display().to_string())?;
        Ok(JobOutput { all, number, file, at: 0 })
    }

    /// The next piece. `None`: there is no more so far or, to one who does `follow`, the job has ended.
    ///
    /// # Errors
    /// The output cannot be read.
    pub fn next(&mut self, follow: bool) -> Result<Option<Vec<u8>>> {
        loop {
            // Check before reading, so that output written just before the end is not missed.
            let over = !follow || find(&self.all, self.number)?.0.state != JobState::Running;
            self.file.seek(SeekFrom::Start(self.at))?;
            let mut piece = Vec::new();
            Read::by_ref(&mut self.file).take(1 << 20).read_to_end(&mut piece)?;
            self.at += piece.len() as u64;
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
            if over {
                return Ok(None);
            }
            std::thread::sleep(LOOK * 4);
        }
    }
}

/// Ends a job as Ctrl-C would.
///
/// # Errors
/// There is no such job, or it does not run here, or it does not end.
pub fn cancel(number: u32) -> Result<()> {
    let all = known()?;
    let (job, held) = find(&all, number)?;
    match job.state {
        JobState::Running => {}
        JobState::Elsewhere => {
            refuse!("job {} was started on {}: type `landbridge cancel {}` there", job.id, job.typed.host, job.id)
        }
        JobState::Ended | JobState::Killed => {
            refuse!("job {} has ended already: `landbridge jobs` lists it", job.id)
        }
    }
    let pid = read(&through(&held, b"pid")).trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.with_context(|| format!("job {}: {} has no process id", job.id, job.folder.join("pid").display()))?;
    let runs = || Ok::<_, CommandError>(find(&all, number)?.0.state == JobState::Running);
    // As with Ctrl-C, the second signal ends the job without waiting for its ranks.
    for signal in [Signal::TERM, Signal::TERM, Signal::KILL] {
        if kill_process(pid, signal).is_err() {
            break;
        }
        let end = Instant::now() + END;
        while runs()? && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        if !runs()? {
            break;
        }
    }
    if runs()? {
        refuse!("job {} did not end: its process is {} on this machine", job.id, pid.as_raw_nonzero());
    }
    Ok(())
}

fn folder() -> Result<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".local/state"));
    let state = state.or_else(home).context("no home directory: set HOME or XDG_STATE_HOME")?;
    Ok(state.join("landbridge/jobs"))
}

/// The folder of all jobs. Only this user may have write access: its contents decide which process is killed.
fn known() -> Result<PathBuf> {
    let all = folder()?;
    if all.symlink_metadata().is_ok() {
        private(&all)?;
    }
    Ok(all)
}

fn private(all: &Path) -> Result<()> {
    Folder::make_private(all).map(drop).with_context(|| all.display().to_string())
}

/// Creates a new job's folder, unique and readable by its owner only.
fn fresh(all: &Path) -> Result<(u32, PathBuf)> {
    use std::os::unix::fs::DirBuilderExt;
    let mut id = numbers(all).into_iter().max().unwrap_or(0) + 1;
    loop {
        let folder = all.join(id.to_string());
        match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok((id, folder)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => id += 1,
            Err(error) => return Err(error).with_context(|| folder.display().to_string()),
        }
    }
}

fn numbers(all: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn in_folder(all: &Path) -> Vec<DetachedJob> {
    let mut numbers = numbers(all);
    numbers.sort_unstable();
    // A folder without a description belongs to a job that is being started.
    numbers.into_iter().filter_map(|id| job(all, id)).map(|(job, _)| job).collect()
}

fn find(all: &Path, id: u32) -> Result<(DetachedJob, Folder)> {
    job(all, id).with_context(|| format!("no job {id} in {}: `landbridge jobs` lists them", all.display()))
}

/// A job and its folder. The folder stays open, so that all files are read from the same one.
fn job(all: &Path, id: u32) -> Option<(DetachedJob, Folder)> {
    let folder = all.join(id.to_string());
    // Ignore folders of other users: they describe no job of this one.
    let held = Folder::open(&folder).ok()?;
    let found = held.examine().ok()?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o022 != 0 {
        return None;
    }
    let file = |name: &str| through(&held, name.as_bytes());
    let typed: TypedCommand = serde_json::from_str(&read(&file("job.json"))).ok()?;
    let here = typed.host == host_name();
    let locked = here && is_locked(&file("lock"));
    // Read after the lock check: a job writes its exit code before it releases the lock.
    let exit_code = read(&file("exit")).trim().parse().ok();
    let state = match exit_code {
        Some(_) if !locked => JobState::Ended,
        _ if !here => JobState::Elsewhere,
        _ if locked => JobState::Running,
        _ => JobState::Killed,
    };
    // A job writes its exit code last; a killed job was alive when it last wrote output.
    let last = match state {
        JobState::Ended => Some("exit"),
        JobState::Killed => Some("output"),
        JobState::Running | JobState::Elsewhere => None,
    };
    let ended = last.and_then(|name| std::fs::metadata(file(name)).ok()?.modified().ok()).map(seconds);
    Some((DetachedJob { id, state, exit_code, site: None, typed, ended, folder }, held))
}

impl DetachedJob {
    /// The running time in seconds. `None`: only another machine knows.
    pub fn seconds(&self) -> Option<u64> {
        match (&self.state, self.ended) {
            (JobState::Elsewhere, None) => None,
            (_, ended) => Some(ended.unwrap_or_else(|| seconds(SystemTime::now())).saturating_sub(self.typed.began)),
        }
    }
}

fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

/// Removes the folders of ended jobs, except the newest [`KEPT`].
fn forget_old(folder: &Path) {
    let ended: Vec<DetachedJob> =
        in_folder(folder).into_iter().filter(|job| matches!(job.state, JobState::Ended | JobState::Killed)).collect();
    for job in &ended[..ended.len().saturating_sub(KEPT)] {
        // Another `run --detach` may remove it at the same time.
        let _ = std::fs::remove_dir_all(&job.folder);
    }
}

/// Replaces a file atomically, so that a reader sees all of the text or none.
fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).with_context(|| path.display().to_string())
}

fn read(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(state: JobState, ended: Option<u64>) -> DetachedJob {
        let typed = TypedCommand { command: vec![], directory: String::new(), host: String::new(), began: 1000 };
        DetachedJob { id: 1, state, exit_code: None, site: None, typed, ended, folder: PathBuf::new() }
    }

    #[test]
    fn a_job_that_is_over_knows_how_long_it_ran() {
        assert_eq!(kept(JobState::Ended, Some(1007)).seconds(), Some(7));
        assert_eq!(kept(JobState::Elsewhere, None).seconds(), None);
        assert!(kept(JobState::Running, None).seconds() > Some(86_400));
    }
}
