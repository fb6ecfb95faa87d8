//! Running transfers: each has a socket in the user's state folder, on which other commands query and control it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use folder::Folder;
use launcher::Sites;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use setup::here::folders::Folders;
use stage::mover::Control;
use types::sites::Site;

use super::silence::Silence;
use crate::error::{Context, Result, refuse};
use crate::site_id::{SiteId, far};
use job::host_name;

/// Time limit for the other end of a socket.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for a process that is stopped: it may be continued at this moment.
const STOPPED: Duration = Duration::from_millis(200);
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
pub struct TransferState {
    pub id: u32,
    /// The transfer's site, if its user is elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The places, or the arguments that stand for them, as typed.
    pub places: Vec<String>,
    /// The places in a sentence.
    pub title: String,
    pub arrived: u64,
    /// 0: not known yet.
    pub total: u64,
    pub seconds: f64,
    pub paused: bool,
    /// The rate limit in bytes per second.
    pub rate: Option<u64>,
}

/// A transfer as other commands find it.
#[derive(Clone, Debug)]
pub struct FoundTransfer {
    pub id: u32,
    /// The transfer's site, if its user is elsewhere.
    pub site: Option<String>,
    /// The error: its process exists and does not answer.
    pub state: Result<TransferState, Silence>,
}

/// The socket of this process's transfer. Dropping it removes its file.
pub struct TransferSocket {
    shared: Arc<Mutex<SocketContents>>,
    file: PathBuf,
}

struct SocketContents {
    state: TransferState,
    began: Instant,
    /// The movers' standard input, for controls. `None`: no mover runs yet or any more.
    input: Option<ChildStdin>,
}

impl TransferSocket {
    /// Opens the socket, which is named after this process.
    pub fn open(places: Vec<String>, title: String, rate: Option<u64>) -> Result<TransferSocket> {
        let folder = folder()?;
        let made = Folder::make_private(&folder).and_then(|made| Ok(made.readable()?));
        let opened = std::fs::File::from(made.with_context(|| folder.display().to_string())?);
        let id = std::process::id();
        let file = folder.join(id.to_string());
        // A killed process with the same id may have left its socket.
        let _ = std::fs::remove_file(&file);
        forget_killed(&folder);
        let listener = UnixListener::bind(short(&opened, &file)).with_context(|| file.display().to_string())?;
        let state = TransferState { id, places, title, rate, ..TransferState::default() };
        let shared = Arc::new(Mutex::new(SocketContents { state, began: Instant::now(), input: None }));
        let answering = shared.clone();
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Ignore errors of single connections: they concern only the command at the other end.
                let _ = answer(stream, &answering);
            }
        });
        Ok(TransferSocket { shared, file })
    }

    /// Writes the order to the movers' standard input, and sends later controls there too.
    pub fn begin(&self, mut input: ChildStdin, order: &[u8]) {
        // If writing fails, the movers have ended, and their own message states the reason.
        let _ = input.write_all(order).and_then(|()| input.flush());
        lock(&self.shared).input = Some(input);
    }

    pub fn progress(&self, arrived: u64, total: u64) {
        let mut shared = lock(&self.shared);
        (shared.state.arrived, shared.state.total) = (arrived, total);
    }
}

impl Drop for TransferSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn lock(shared: &Mutex<SocketContents>) -> MutexGuard<'_, SocketContents> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(stream: UnixStream, shared: &Mutex<SocketContents>) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LONGEST)).read_line(&mut line)?;
    let question: Question = serde_json::from_str(&line)?;
    let mut shared = lock(shared);
    if let Question::Control(control) = question {
        let Some(input) = &mut shared.input else { refuse!("nothing is moved yet") };
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
    Ok(Folders::of_user()?.state.join("stage").join(host_name()))
}

/// A short path of the same file: a socket's address has only 108 bytes.
fn short(folder: &std::fs::File, file: &Path) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(file.file_name().unwrap_or_default())
}

/// Removes the sockets of processes that were killed.
fn forget_killed(folder: &Path) {
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let process = Path::new("/proc").join(file.file_name().unwrap_or_default());
        let refused = || connect(&file).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        // A process that has just started may refuse connections for a moment.
        if !process.exists() && refused() {
            let _ = std::fs::remove_file(&file);
        }
    }
}

/// Reasons for a missing answer.
enum AskError {
    /// The process has ended, or has just started.
    Absent(std::io::Error),
    /// The process exists and does not answer.
    Silent(Silence),
    /// The transfer cannot do it yet.
    TooEarly,
}

/// Connects to the socket of a transfer. The kernel completes a connection without the process, until the queue of a
/// process that accepts none is full.
fn connect(file: &Path) -> std::io::Result<UnixStream> {
    let folder = std::fs::File::open(file.parent().unwrap_or(Path::new("/")))?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(short(&folder, file))?)?;
    Ok(socket.into())
}

/// Sends a request to the transfer of this process.
fn ask(file: &Path, process: u32, question: &Question) -> Result<TransferState, AskError> {
    let exchange = || -> std::io::Result<String> {
        let stream = connect(file)?;
        // A stopped process would be waited for in vain.
        let patience = match Silence::of(process) {
            Silence::Stopped => STOPPED,
            Silence::Unknown => PATIENCE,
        };
        stream.set_read_timeout(Some(patience))?;
        let mut request = serde_json::to_vec(question)?;
        request.push(b'\n');
        (&stream).write_all(&request)?;
        let mut line = String::new();
        BufReader::new((&stream).take(LONGEST)).read_line(&mut line)?;
        Ok(line)
    };
    match exchange() {
        Ok(line) => serde_json::from_str(&line).map_err(|_| AskError::TooEarly),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(AskError::Silent(Silence::of(process)))
        }
        Err(error) => Err(AskError::Absent(error)),
    }
}

/// The transfers of this user on this machine.
fn all() -> Result<Vec<FoundTransfer>> {
    let folder = folder()?;
    let entries = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| folder.display().to_string())?,
    };
    forget_killed(&folder);
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        files.extend(entry.file_name().to_str().and_then(|name| Some((name.parse::<u32>().ok()?, entry.path()))));
    }
    files.sort();
    // All at once: each may need its full time limit.
    let answers = std::thread::scope(|scope| {
        let asked = files.iter().map(|(id, file)| scope.spawn(|| ask(file, *id, &Question::Status)));
        let asked: Vec<_> = asked.collect();
        asked.into_iter().map(|asked| asked.join().ok()).collect::<Vec<_>>()
    });
    let found = files.into_iter().zip(answers).filter_map(|((id, _), answer)| {
        let state = match answer? {
            Ok(state) => Ok(state),
            Err(AskError::Silent(silence)) => Err(silence),
            // It has ended, or has just started.
            Err(AskError::Absent(_) | AskError::TooEarly) => return None,
        };
        Some(FoundTransfer { id, site: None, state })
    });
    Ok(found.collect())
}

/// The transfers of this machine, or the one with this number, for a user who has given `--from`.
///
/// # Errors
/// There is no such transfer.
pub fn found(number: Option<u32>, from: Option<&str>) -> Result<Vec<FoundTransfer>> {
    let mut found = all()?;
    if let Some(number) = number {
        found.retain(|transfer| transfer.id == number);
        if found.is_empty() {
            refuse!("no transfer {number} is running here: `landbridge stage status` lists them");
        }
    }
    for transfer in &mut found {
        transfer.site = SiteId::shown(transfer.id, from).site;
        if let Ok(state) = &mut transfer.state {
            state.site.clone_from(&transfer.site);
        }
    }
    Ok(found)
}

/// A command for a transfer.
pub struct Steering<'a> {
    /// The transfer. `None`: the only one.
    pub id: Option<&'a SiteId>,
    /// The site given by `--from`.
    pub from: Option<&'a str>,
    /// The sites file that the user has named.
    pub sites: Option<&'a Path>,
    pub control: Control,
}

/// Sends a control to a transfer of this machine. Returns the site to which the command is to be carried instead, if
/// the transfer is there.
///
/// # Errors
/// There is no such transfer, or it does not answer.
pub fn steer(steering: Steering<'_>) -> Result<Option<(Sites, Site)>> {
    let Steering { id, from, sites, control } = steering;
    let named = id.and_then(|id| id.site.as_deref()).or(from);
    let number = id.map(|id| id.number);
    let running = all()?;
    if (named.is_some() || (number.is_none() && running.is_empty()))
        && let Some(elsewhere) = far(sites, named)?
    {
        return Ok(Some(elsewhere));
    }
    let id = match (number, &running[..]) {
        (Some(id), running) if running.iter().any(|transfer| transfer.id == id) => id,
        (Some(id), _) => refuse!("no transfer {id} is running here: `landbridge stage status` lists them"),
        (None, [one]) => one.id,
        (None, []) => refuse!("no transfer is running here"),
        (None, several) => {
            let ids: Vec<String> = several.iter().map(|transfer| transfer.id.to_string()).collect();
            refuse!("which transfer? {} are running: `landbridge stage status` shows them", ids.join(", "))
        }
    };
    let silent = running.iter().find(|transfer| transfer.id == id).and_then(|transfer| transfer.state.as_ref().err());
    let asked = match silent {
        Some(silence) => Err(AskError::Silent(*silence)),
        None => ask(&folder()?.join(id.to_string()), id, &Question::Control(control)),
    };
    match asked {
        Ok(_) => Ok(None),
        Err(AskError::Silent(silence)) => refuse!("transfer {id} {silence}: {}", silence.remedy(id, &host_name())),
        Err(AskError::TooEarly) => refuse!("transfer {id}: nothing is moved yet: try again"),
        Err(AskError::Absent(error)) => Err(error).with_context(|| format!("transfer {id}")),
    }
}
