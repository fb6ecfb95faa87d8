//! A leash: a program that hears SIGTERM when whoever started it dies, by whatever means.
//!
//! For programs that must not outlive their starter and do not read standard input while they wait, as `salloc` in a
//! queue. The wish survives `exec`, so the program replaces this process and needs no keeper.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The word by which a program is started on a leash; the starter's process id and the program's words follow.
pub const LEASH: &str = "leash";

/// Becomes the program; returns only if that fails.
pub fn become_leashed(holder: i32, words: &[OsString]) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        return error.into();
    }
    // It may have died before the line above.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(holder) {
        return io::Error::other("whoever started this is gone");
    }
    match words.split_first() {
        Some((program, arguments)) => Command::new(program).args(arguments).exec(),
        None => io::Error::new(io::ErrorKind::InvalidInput, "no program"),
    }
}
