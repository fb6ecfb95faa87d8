//! The steps of a rank's process between fork and exec: the only part of this crate that needs `unsafe`.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use tokio::process::{Child, Command};

use job::environment::Environment;

/// Limits of a rank's process.
pub(super) struct Limits {
    /// `None`: all cores that the agent may use.
    pub cores: Option<CpuSet>,
    pub open_files: Rlimit,
    /// Timer slack in nanoseconds; `None`: the agent's own.
    pub timer_slack: Option<NonZeroU64>,
}

/// Starts a rank in a process group of its own. The rank inherits the descriptors `inherited` and no others, and is
/// killed when this thread ends.
///
/// # Errors
/// The system's error.
pub(super) fn spawn(
    path: &Path,
    words: &[OsString],
    directory: &Path,
    environment: &Environment,
    inherited: Vec<OwnedFd>,
    limits: Limits,
    stdin: Stdio,
) -> io::Result<Child> {
    let mut command = Command::new(path);
    if let [name, arguments @ ..] = words {
        command.arg0(name).args(arguments);
    }
    command.current_dir(directory).env_clear().envs(environment.iter()).process_group(0);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let agent = getpid();
    let before_exec = move || {
        for descriptor in &inherited {
            fcntl_setfd(descriptor.as_fd(), FdFlags::empty())?;
        }
        if let Some(cores) = &limits.cores {
            sched_setaffinity(None, cores)?;
        }
        setrlimit(Resource::Nofile, limits.open_files)?;
        if limits.timer_slack.is_some() {
            set_current_timer_slack(limits.timer_slack)?;
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The agent may have died before the call above; then nothing would kill this process.
        if getppid() != Some(agent) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes a few direct system calls
    // through rustix and neither allocates nor takes a lock; building the error from a number does not allocate either.
    unsafe { command.pre_exec(before_exec) };
    command.spawn()
}
