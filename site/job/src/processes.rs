//! The processes below this one. Finds and ends all of them, even those that have left their process group.
//!
//! A process that calls [`adopt_orphans`] becomes the parent of every descendant whose own parent dies. So no
//! descendant leaves its process tree.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait};

/// Makes this process the parent of descendants whose parent dies.
///
/// # Errors
/// The system refuses; Linux 3.4 and later does not.
pub fn adopt_orphans() -> std::io::Result<()> {
    // The value only has to be non-zero. rustix declares it as a process id.
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// The ids of all processes below this one, parents before children.
pub fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut queue = vec![getpid().as_raw_nonzero().get()];
    while let Some(pid) = queue.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(below.iter().filter_map(|pid| Pid::from_raw(*pid)));
        queue.extend(below);
    }
    found
}

/// The parent of a process; `None` if the process does not exist.
fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The line is "pid (name) state parent …". The name may itself contain blanks and parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Kills all processes below this one and collects their exit codes. Repeats this until none is left or `limit` has
/// passed. Returns true if none is left.
///
/// It collects every child, so nothing else in this process may wait for one.
pub fn end_descendants(limit: Duration) -> bool {
    let end = Instant::now() + limit;
    loop {
        for pid in descendants() {
            // An error means that the process has already ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if descendants().is_empty() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal to a process group. A group that has ended is not an error.
pub fn signal_group(leader: u32, signal: i32) {
    let pid = i32::try_from(leader).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        let _ = kill_process_group(pid, signal);
    }
}

/// The usual name of a signal, such as `SIGKILL`.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => "another signal",
    }
}
