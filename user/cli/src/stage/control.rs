//! Running transfers: each has a socket in the user's state folder, on which other commands query and control it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use folder::Folder;
use serde::{Deserialize, Serialize};
use setup::here::folders::Folders;
use stage::mover::Control;

use crate::jobs::host;
use crate::site_id::{SiteId, far};
use crate::stage::args::{FarArgs, OneArgs, RateArgs, StatusArgs};
use crate::{carried, json};
use types::untrusted::one_line;

/// Time limit for the other end of a socket.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of a request or an answer, in bytes.
const LONGEST: u64 = 1 << 20;

/// A request by another command. A line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Question {
    Status,
    Control(Control),
}

/// The present state of a transfer. The answer to every request, also a line of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    id: u32,
    /// The transfer's site, if its user is elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    /// The places, or the arguments that stand for them, as typed.
    places: Vec<String>,
    /// The places in a sentence.
    title: String,
    arrived: u64,
    /// 0: not known yet.
    total: u64,
    seconds: f64,
    paused: bool,
    /// The rate limit in bytes per second.
    rate: Option<u64>,
}

/// The socket of this process's transfer. Dropping it removes its file.
pub(crate) struct Desk {
    shared: Arc<Mutex<Shared>>,
    file: PathBuf,
}

struct Shared {
    state: State,
    began: Instant,
    /// The movers' standard input, for controls. `None`: no mover runs yet or any more.
    input: Option<ChildStdin>,
}

impl Desk {
    /// Opens the socket, which is named after this process.
    pub(crate) fn open(places: Vec<String>, title: String, rate: Option<u64>) -> Result<Desk> {
        let folder = folder()?;
        let made = Folder::make_private(&folder).and_then(|made| Ok(made.readable()?));
        let opened = std::fs::File::from(made.with_context(|| folder.display().to_string())?);
        let id = std::process::id();
        let file = folder.join(id.to_string());
        // A killed process with the same id may have left its socket.
        let _ = std::fs::remove_file(&file);
        forget_killed(&folder, &opened);
        let listener = UnixListener::bind(short(&opened, &file)).with_context(|| file.display().to_string())?;
        let state = State { id, places, title, rate, ..State::default() };
        let shared = Arc::new(Mutex::new(Shared { state, began: Instant::now(), input: None }));
        let answering = shared.clone();
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Ignore errors of single connections: they concern only the command at the other end.
                let _ = answer(stream, &answering);
            }
        });
        Ok(Desk { shared, file })
    }

    /// Writes the order to the movers' standard input, and sends later controls there too.
    pub(crate) fn begin(&self, mut input: ChildStdin, order: &[u8]) {
        // If writing fails, the movers have ended, and their own message states the reason.
        let _ = input.write_all(order).and_then(|()| input.flush());
        lock(&self.shared).input = Some(input);
    }

    pub(crate) fn progress(&self, arrived: u64, total: u64) {
        let mut shared = lock(&self.shared);
        (shared.state.arrived, shared.state.total) = (arrived, total);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(stream: UnixStream, shared: &Mutex<Shared>) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LONGEST)).read_line(&mut line)?;
    let question: Question = serde_json::from_str(&line)?;
    let mut shared = lock(shared);
    if let Question::Control(control) = question {
        let Some(input) = &mut shared.input else { bail!("nothing is moved yet") };
        let mut line = serde_json::to_vec(&control)?;
        line.push(b'\n');
        input.write_all(&line)?;
        input.flush()?;
        match control {
            Control::Pause => shared.state.paused = true,
            Control::Resume => shared.state.paused = false,
            Control::Rate(rate) => shared.state.rate = rate,
            Control::Cancel => {}
        }
    }
    shared.state.seconds = shared.began.elapsed().as_secs_f64();
    let state = serde_json::to_string(&shared.state)?;
    drop(shared);
    Ok((&stream).write_all(format!("{state}\n").as_bytes())?)
}

/// A folder per machine: homes are often shared by machines that use the same process ids.
fn folder() -> Result<PathBuf> {
    Ok(Folders::of_user()?.state.join("stage").join(host()))
}

/// A short path of the same file: a socket's address has only 108 bytes.
fn short(folder: &std::fs::File, file: &Path) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(file.file_name().unwrap_or_default())
}

/// Removes the sockets of processes that were killed.
fn forget_killed(folder: &Path, opened: &std::fs::File) {
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let process = Path::new("/proc").join(file.file_name().unwrap_or_default());
        let refused = || {
            let connected = UnixStream::connect(short(opened, &file));
            connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        // A process that has just started may refuse connections for a moment.
        if !process.exists() && refused() {
            let _ = std::fs::remove_file(&file);
        }
    }
}

fn ask(file: &Path, question: &Question) -> Result<State> {
    let folder = std::fs::File::open(file.parent().unwrap_or(Path::new("/")))?;
    let stream = UnixStream::connect(short(&folder, file))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    (&stream).write_all(format!("{}\n", serde_json::to_string(question)?).as_bytes())?;
    let mut line = String::new();
    BufReader::new((&stream).take(LONGEST)).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|_| anyhow!("nothing is moved yet: try again"))
}

/// The transfers of this user on this machine.
fn all() -> Result<Vec<State>> {
    let folder = folder()?;
    let opened = match std::fs::File::open(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.with_context(|| folder.display().to_string())?,
    };
    forget_killed(&folder, &opened);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        // A transfer that does not answer has ended, or has just started.
        found.extend(ask(&entry?.path(), &Question::Status).ok());
    }
    found.sort_by_key(|state| state.id);
    Ok(found)
}

/// The transfers listed by a site.
#[derive(Deserialize)]
struct SiteTransfers {
    transfers: Vec<serde_json::Value>,
}

/// Shows the transfers of this machine, and those of the site that `stage` is carried to.
pub(crate) fn status(args: &StatusArgs) -> Result<i32> {
    let named = args.id.as_ref().and_then(|id| id.site.as_deref()).or(args.far.from.as_deref());
    let far = if args.id.is_some() && named.is_none() { None } else { far(&args.far.sites, named)? };
    let own = if named.is_some() && far.is_some() { Vec::new() } else { found(args)? };
    let number = args.id.iter().map(|id| id.number.to_string().into());
    let mut out = crate::output::stdout();
    if args.json {
        let mut transfers = own.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        if let Some((sites, site)) = &far {
            let words = number.chain(["--json".into()]).collect();
            let (code, printed) = carried::answer(sites, site, &["stage", "status"], words)?;
            if code != 0 {
                return Ok(code);
            }
            let there: SiteTransfers =
                serde_json::from_slice(&printed).with_context(|| format!("what site {} prints", site.name))?;
            transfers.extend(there.transfers);
        }
        writeln!(out, "{}", json::object(serde_json::json!({ "transfers": transfers }))?)?;
        return Ok(0);
    }
    if own.is_empty() && far.is_none() {
        crate::output::note("no transfer is running here");
    }
    for State { id, title, arrived, total, seconds, paused, rate, .. } in own {
        let share = (arrived * 100).checked_div(total).map_or(String::new(), |percent| format!(" ({percent} %)"));
        let limit = rate.map_or(String::new(), |rate| format!(", at most {}/s", super::size(rate)));
        let paused = if paused { ", paused" } else { "" };
        let (id, title) = (SiteId::shown(id, args.far.from.as_deref()), one_line(&title));
        writeln!(
            out,
            "{id}  {title}: {} of {}{share} after {seconds:.0} s{limit}{paused}",
            super::size(arrived),
            super::size(total)
        )?;
    }
    match far {
        Some((sites, site)) => carried::command(&sites, &site, &["stage", "status"], number.collect()),
        None => Ok(0),
    }
}

/// The requested transfers of this machine.
fn found(args: &StatusArgs) -> Result<Vec<State>> {
    let mut found = all()?;
    if let Some(SiteId { number, .. }) = args.id {
        found.retain(|state| state.id == number);
        if found.is_empty() {
            bail!("no transfer {number} is running here: `landbridge stage status` lists them");
        }
    }
    found.iter_mut().for_each(|state| state.site = SiteId::shown(state.id, args.far.from.as_deref()).site);
    Ok(found)
}

/// Sends a control to a transfer, or to the only one if no id is given. `word` and `value`: the command as typed.
fn steer(id: Option<&SiteId>, args: &FarArgs, control: Control, word: &str, value: Option<String>) -> Result<i32> {
    let named = id.and_then(|id| id.site.as_deref()).or(args.from.as_deref());
    let number = id.map(|id| id.number);
    let running = all()?;
    if (named.is_some() || (number.is_none() && running.is_empty()))
        && let Some((sites, site)) = far(&args.sites, named)?
    {
        let words = number.map(|number| number.to_string()).into_iter().chain(value).map(Into::into);
        return carried::command(&sites, &site, &["stage", word], words.collect());
    }
    let id = match (number, &running[..]) {
        (Some(id), running) if running.iter().any(|state| state.id == id) => id,
        (Some(id), _) => bail!("no transfer {id} is running here: `landbridge stage status` lists them"),
        (None, [one]) => one.id,
        (None, []) => bail!("no transfer is running here"),
        (None, several) => {
            let ids: Vec<String> = several.iter().map(|state| state.id.to_string()).collect();
            bail!("which transfer? {} are running: `landbridge stage status` shows them", ids.join(", "))
        }
    };
    ask(&folder()?.join(id.to_string()), &Question::Control(control)).with_context(|| format!("transfer {id}"))?;
    Ok(0)
}

pub(crate) fn pause(args: &OneArgs) -> Result<i32> {
    steer(args.id.as_ref(), &args.far, Control::Pause, "pause", None)
}

pub(crate) fn resume(args: &OneArgs) -> Result<i32> {
    steer(args.id.as_ref(), &args.far, Control::Resume, "resume", None)
}

pub(crate) fn cancel(args: &OneArgs) -> Result<i32> {
    steer(args.id.as_ref(), &args.far, Control::Cancel, "cancel", None)
}

pub(crate) fn rate(args: &RateArgs) -> Result<i32> {
    let typed = args.rate.map_or("none".to_owned(), |rate| format!("{rate}B/s"));
    steer(Some(&args.id), &args.far, Control::Rate(args.rate), "rate", Some(typed))
}
