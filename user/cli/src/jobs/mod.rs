//! Jobs that run without a terminal: `run --detach`, `jobs`, `logs` and `cancel`.
//!
//! Each job has a folder. Its process holds a lock in it while it lives, and writes its exit code there when it ends
//! normally. A folder with neither a held lock nor an exit code belongs to a job that was killed.

pub(crate) mod args;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use folder::{Folder, through};
use job::message::Stream;
use launcher::Sites;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, setsid};
use serde::{Deserialize, Serialize};
use types::sites::Site;
use types::untrusted::one_line;

use crate::jobs::args::{CancelArgs, JobsArgs, JobsFarArgs, LogsArgs};
use crate::site_id::{SiteId, far};
use crate::{carried, json, output};

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
struct Typed {
    command: Vec<String>,
    directory: String,
    host: String,
    /// Seconds since 1970.
    began: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Running,
    Ended,
    /// Ended without an exit code.
    Killed,
    /// Runs or ran on another machine; only that machine knows its state.
    Elsewhere,
}

#[derive(Debug, Serialize)]
struct Job {
    id: u32,
    state: State,
    exit_code: Option<i32>,
    /// The job's site, if its user is elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    #[serde(flatten)]
    typed: Typed,
    /// Seconds since 1970; `None` while it runs or if only another machine knows.
    ended: Option<u64>,
    #[serde(skip)]
    folder: PathBuf,
}

/// Starts `landbridge` with these words in a process without a terminal, and prints the job's id. `from`: the site
/// given by `--from`.
pub(crate) fn detach(words: &[OsString], from: Option<&str>) -> Result<i32> {
    let all = folder()?;
    private(&all)?;
    forget_old(&all);
    let (id, folder) = fresh(&all)?;
    let directory = std::env::current_dir().context("the working directory")?;
    // In a carried command, the site and its sites file come first; its user did not type them.
    let added = if carried::is_carried() { CARRIED_WORDS } else { 0 };
    let shown = words.iter().enumerate().filter(|(at, _)| !(1..=added).contains(at)).map(|(_, word)| word);
    let typed = Typed {
        command: shown.map(|word| word.to_string_lossy().into_owned()).collect(),
        directory: directory.display().to_string(),
        host: host(),
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
            bail!("job {id} did not begin: {}", read(&folder.join("output")).trim());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    writeln!(output::stdout(), "{}", SiteId::shown(id, from))?;
    Ok(0)
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

/// Becomes a detached job: runs `work` in a session of its own and leaves its exit code in the folder.
pub(crate) fn become_detached(folder: &Path, work: impl FnOnce() -> Result<i32>) -> Result<i32> {
    setsid().context("leaving the terminal")?;
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join("lock"))?;
    if !setup::here::background::lock(&lock) {
        bail!("{}: another process has locked it", folder.join("lock").display());
    }
    replace(&folder.join("pid"), &std::process::id().to_string())?;
    let result = work();
    let code = match &result {
        Ok(code) => *code,
        Err(_) => 1,
    };
    replace(&folder.join("exit"), &code.to_string())?;
    result
}

/// Shows the jobs of this machine, and those of the site that jobs are carried to.
pub(crate) fn jobs(args: &JobsArgs) -> Result<i32> {
    let from = args.far.from.as_deref();
    let mut jobs = all(&known()?)?;
    jobs.iter_mut().for_each(|job| job.site = SiteId::shown(job.id, from).site);
    let far = far(&args.far.sites, from)?;
    let mut out = output::stdout();
    if args.json {
        let mut jobs = jobs.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        if let Some((sites, site)) = &far {
            let (code, printed) = carried::answer(sites, site, &["jobs"], vec!["--json".into()])?;
            if code != 0 {
                return Ok(code);
            }
            let there: SiteJobs =
                serde_json::from_slice(&printed).with_context(|| format!("what site {} prints", site.name))?;
            jobs.extend(there.jobs);
        }
        writeln!(out, "{}", json::object(serde_json::json!({ "jobs": jobs }))?)?;
        return Ok(0);
    }
    for job in &jobs {
        let state = match (&job.state, job.exit_code) {
            (State::Running, _) => "running".to_owned(),
            (State::Ended, code) => format!("ended {}", code.unwrap_or(0)),
            (State::Killed, _) => "killed".to_owned(),
            (State::Elsewhere, _) => format!("on {}", job.typed.host),
        };
        let words = job.typed.command.join(" ");
        let words = one_line(&words);
        let id = SiteId { site: job.site.clone(), number: job.id }.to_string();
        writeln!(out, "{id:>4}  {state:10}  {:>8}  {words}", job.time())?;
    }
    if let Some((sites, site)) = &far {
        return carried::command(sites, site, &["jobs"], Vec::new());
    }
    if jobs.is_empty() {
        writeln!(out, "no jobs: `landbridge run --detach -n N PROGRAM` starts one")?;
    }
    Ok(0)
}

/// The jobs listed by a site.
#[derive(Deserialize)]
struct SiteJobs {
    jobs: Vec<serde_json::Value>,
}

/// The site of a job that is not on this machine.
fn site_of(id: &SiteId, args: &JobsFarArgs) -> Result<Option<(Sites, Site)>> {
    match id.site.as_deref().or(args.from.as_deref()) {
        Some(name) => far(&args.sites, Some(name)),
        None => Ok(None),
    }
}

/// Prints a job's output so far, and with `-f` further output until the job ends.
pub(crate) fn logs(args: &LogsArgs) -> Result<i32> {
    let number = args.id.number;
    if let Some((sites, site)) = site_of(&args.id, &args.far)? {
        let follow = args.follow.then(|| "--follow".into());
        return carried::command(
            &sites,
            &site,
            &["logs"],
            follow.into_iter().chain([number.to_string().into()]).collect(),
        );
    }
    let all = known()?;
    let (job, held) = find(&all, number)?;
    let mut file =
        File::open(through(&held, b"output")).with_context(|| job.folder.join("output").display().to_string())?;
    let mut at = 0;
    loop {
        // Check before reading, so that output written just before the end is not missed.
        let over = !args.follow || find(&all, number)?.0.state != State::Running;
        file.seek(SeekFrom::Start(at))?;
        let mut piece = Vec::new();
        Read::by_ref(&mut file).take(1 << 20).read_to_end(&mut piece)?;
        at += piece.len() as u64;
        output::raw(Stream::Out, &piece)?;
        if piece.is_empty() && over {
            return Ok(0);
        }
        if piece.is_empty() {
            std::thread::sleep(LOOK * 4);
        }
    }
}

/// Ends a job as Ctrl-C would.
pub(crate) fn cancel(args: &CancelArgs) -> Result<i32> {
    let number = args.id.number;
    if let Some((sites, site)) = site_of(&args.id, &args.far)? {
        return carried::command(&sites, &site, &["cancel"], vec![number.to_string().into()]);
    }
    let all = known()?;
    let (job, held) = find(&all, number)?;
    match job.state {
        State::Running => {}
        State::Elsewhere => {
            bail!("job {} was started on {}: type `landbridge cancel {}` there", job.id, job.typed.host, job.id)
        }
        State::Ended | State::Killed => bail!("job {} has ended already: `landbridge jobs` lists it", job.id),
    }
    let pid = read(&through(&held, b"pid")).trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.with_context(|| format!("job {}: {} has no process id", job.id, job.folder.join("pid").display()))?;
    // As with Ctrl-C, the second signal ends the job without waiting for its ranks.
    for signal in [Signal::TERM, Signal::TERM, Signal::KILL] {
        if kill_process(pid, signal).is_err() {
            break;
        }
        let end = Instant::now() + END;
        while find(&all, number)?.0.state == State::Running && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        if find(&all, number)?.0.state != State::Running {
            break;
        }
    }
    if find(&all, number)?.0.state == State::Running {
        bail!("job {} did not end: its process is {} on this machine", job.id, pid.as_raw_nonzero());
    }
    let id = SiteId::shown(job.id, args.far.from.as_deref());
    writeln!(output::stdout(), "job {id} is cancelled")?;
    Ok(0)
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

fn all(all: &Path) -> Result<Vec<Job>> {
    let mut numbers = numbers(all);
    numbers.sort_unstable();
    // A folder without a description belongs to a job that is being started.
    Ok(numbers.into_iter().filter_map(|id| job(all, id)).map(|(job, _)| job).collect())
}

fn find(all: &Path, id: u32) -> Result<(Job, Folder)> {
    job(all, id).with_context(|| format!("no job {id} in {}: `landbridge jobs` lists them", all.display()))
}

/// A job and its folder. The folder stays open, so that all files are read from the same one.
fn job(all: &Path, id: u32) -> Option<(Job, Folder)> {
    let folder = all.join(id.to_string());
    // Ignore folders of other users: they describe no job of this one.
    let held = Folder::open(&folder).ok()?;
    let found = held.examine().ok()?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o022 != 0 {
        return None;
    }
    let file = |name: &str| through(&held, name.as_bytes());
    let typed: Typed = serde_json::from_str(&read(&file("job.json"))).ok()?;
    let here = typed.host == host();
    let locked = here && is_locked(&file("lock"));
    // Read after the lock check: a job writes its exit code before it releases the lock.
    let exit_code = read(&file("exit")).trim().parse().ok();
    let state = match exit_code {
        Some(_) if !locked => State::Ended,
        _ if !here => State::Elsewhere,
        _ if locked => State::Running,
        _ => State::Killed,
    };
    // A job writes its exit code last; a killed job was alive when it last wrote output.
    let last = match state {
        State::Ended => Some("exit"),
        State::Killed => Some("output"),
        State::Running | State::Elsewhere => None,
    };
    let ended = last.and_then(|name| std::fs::metadata(file(name)).ok()?.modified().ok()).map(seconds);
    Some((Job { id, state, exit_code, site: None, typed, ended, folder }, held))
}

impl Job {
    /// The running time; `-` if only another machine knows.
    fn time(&self) -> String {
        match (&self.state, self.ended) {
            (State::Elsewhere, None) => "-".to_owned(),
            (_, ended) => {
                duration(ended.unwrap_or_else(|| seconds(SystemTime::now())).saturating_sub(self.typed.began))
            }
        }
    }
}

fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

/// Removes the folders of ended jobs, except the newest [`KEPT`].
fn forget_old(folder: &Path) {
    let Ok(jobs) = all(folder) else { return };
    let ended: Vec<Job> = jobs.into_iter().filter(|job| matches!(job.state, State::Ended | State::Killed)).collect();
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

pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn duration(seconds: u64) -> String {
    match seconds {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(state: State, ended: Option<u64>) -> Job {
        let typed = Typed { command: vec![], directory: String::new(), host: String::new(), began: 1000 };
        Job { id: 1, state, exit_code: None, site: None, typed, ended, folder: PathBuf::new() }
    }

    #[test]
    fn a_job_that_is_over_shows_how_long_it_ran() {
        assert_eq!(kept(State::Ended, Some(1007)).time(), "7 s");
        assert_eq!(kept(State::Killed, Some(4600)).time(), "60 min");
        assert_eq!(kept(State::Elsewhere, None).time(), "-");
        assert!(kept(State::Running, None).time().ends_with(" d"));
    }
}
