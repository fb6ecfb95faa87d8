//! The processes of a lab: starting another process of this same program, ending with the parent, and waiting for
//! messages.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use client::patience::Wait;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::error::LabError;
use crate::message::{Channel, LabMessage, LabMessageKind};

/// Time limit for one step of another process of the lab, on a machine that is not overloaded: see [`Wait`].
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Starts this program again with a hidden command. `stdin` is the other end of a [`Channel`].
pub(crate) fn start(arguments: &[&str], stdin: Stdio) -> Result<Child, LabError> {
    Command::new("/proc/self/exe")
        .arg0("landbridge")
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| LabError::setup(format!("starting {}", arguments.join(" ")), e))
}

/// Starts this program again and returns our end of the conversation with it.
pub(crate) fn start_with_channel(arguments: &[&str]) -> Result<(Child, Channel), LabError> {
    let (ours, theirs): (Channel, OwnedFd) = Channel::pair().map_err(|e| LabError::setup("a socket pair", e))?;
    Ok((start(arguments, Stdio::from(theirs))?, ours))
}

/// Makes this process die with its parent, even if the parent is killed. Fails if it is already dead.
pub(crate) fn follow_parent(channel: &Channel) -> Result<(), LabError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| LabError::setup("PR_SET_PDEATHSIG", e))?;
    let mut fds = [PollFd::new(channel, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&at_once)).map_err(|e| LabError::setup("poll", e))?;
    if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        return Err(LabError::Ended {
            process: "the lab's first process".into(),
            how: "before its child began".into(),
        });
    }
    Ok(())
}

/// Waits for a message of this kind. A `Failed` message becomes the error it carries.
pub(crate) fn expect(channel: &Channel, kind: LabMessageKind, from: &str) -> Result<LabMessage, LabError> {
    expect_within(channel, kind, from, PATIENCE)
}

pub(crate) fn expect_within(
    channel: &Channel,
    kind: LabMessageKind,
    from: &str,
    limit: Duration,
) -> Result<LabMessage, LabError> {
    let mut wait = Wait::new(limit);
    let late = |wait: &Wait| LabError::Timeout { place: from.to_owned(), seconds: wait.elapsed().as_secs() };
    while !readable(channel, wait.left().ok_or_else(|| late(&wait))?) {}
    match channel.receive(Some(limit)) {
        Ok(Some(message)) if message.kind == kind => Ok(message),
        Ok(Some(message)) if message.kind == LabMessageKind::Failed => {
            Err(message.json().unwrap_or_else(|e| LabError::setup(from, e)))
        }
        Ok(Some(message)) => Err(LabError::setup(from, format!("sent {:?} where {kind:?} was expected", message.kind))),
        Ok(None) => Err(LabError::Ended { process: from.to_owned(), how: "it closed its connection".into() }),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Err(late(&wait)),
        Err(e) => Err(LabError::setup(from, e)),
    }
}

/// True if `channel` has a message or is closed, now or within `limit`.
pub(crate) fn readable(channel: &impl AsFd, limit: Duration) -> bool {
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    matches!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1..))
}

/// Waits for a child to end, at most `limit`; then kills it.
pub(crate) fn wait_or_kill(child: &mut Child, limit: Duration) {
    let mut wait = Wait::new(limit);
    while wait.left().is_some() {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            // Ended, or reaped elsewhere.
            _ => return,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Makes this process the parent of every descendant whose own parent dies, so that it can end them.
pub(crate) fn adopt_orphans() -> Result<(), LabError> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| LabError::setup("PR_SET_CHILD_SUBREAPER", e))
}

/// Ends every descendant, generation by generation, for at most two seconds. Needs [`adopt_orphans`], or to be the
/// first process of a PID namespace.
pub(crate) fn end_descendants() {
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        for pid in children() {
            // One that is already gone is fine.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Ok(Some(_)) => {}
            // No children are left.
            Err(_) => return,
        }
    }
}

/// Stops every process of this PID namespace except the first, which must be the caller. Returns the processes that it
/// stopped. Processes that are already stopped are left alone.
pub(crate) fn stop_all(place: &str) -> Result<Vec<Pid>, LabError> {
    let mut stopped: Vec<Pid> = Vec::new();
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        // A process may have forked before it stopped, so scan until no running process is left.
        let running: Vec<Pid> = processes()
            .filter(|process| process.pid != Pid::INIT && !matches!(process.state, 'T' | 't' | 'Z' | 'X'))
            .map(|process| process.pid)
            .collect();
        if running.is_empty() {
            return Ok(stopped);
        }
        if Instant::now() >= end {
            let running: Vec<String> = running.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
            resume(stopped);
            return Err(LabError::setup(place, format!("these processes do not stop: {}", running.join(", "))));
        }
        for pid in running {
            // One that is already gone is fine.
            let _ = rustix::process::kill_process(pid, Signal::STOP);
            if !stopped.contains(&pid) {
                stopped.push(pid);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Resumes processes. Children, which have higher numbers, go first: a shell must not find its own children stopped.
pub(crate) fn resume(mut stopped: Vec<Pid>) {
    stopped.sort_by_key(|pid| std::cmp::Reverse(pid.as_raw_nonzero()));
    for pid in stopped {
        // One that is already gone is fine.
        let _ = rustix::process::kill_process(pid, Signal::CONT);
    }
}

/// A process as listed in `/proc`.
struct Process {
    pid: Pid,
    state: char,
    parent: i32,
}

fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything; state and parent follow the last parenthesis.
        let mut rest = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = rest.next()?.chars().next()?;
        Some(Process { pid: Pid::from_raw(pid)?, state, parent: rest.next()?.parse().ok()? })
    })
}

/// The children of this process.
fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    processes().filter(|process| process.parent == own).map(|process| process.pid).collect()
}
