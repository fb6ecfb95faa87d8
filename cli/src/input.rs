//! Standard input for the ranks of a job.

use std::io::{self, IsTerminal, Read};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::tcgetpgrp;

/// How often a job in the background looks whether its terminal is its own again.
const LOOK: Duration = Duration::from_millis(300);

/// This process's standard input. Reading from a terminal waits until the job is in the foreground: the system stops a
/// background job that reads, and nobody would read what its ranks write.
pub(crate) struct Input;

/// Whether this process was given data to read: a file that is not empty, or a pipe or socket that is not at its end. A
/// terminal does not count.
pub(crate) fn is_given() -> bool {
    let stdin = stdin();
    let Ok(status) = fstat(stdin) else { return false };
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => status.st_size > 0,
        FileType::Fifo | FileType::Socket => {
            let mut descriptors = [PollFd::new(&stdin, PollFlags::IN)];
            let now = poll(&mut descriptors, Some(&Timespec::default())).is_ok();
            let ready = descriptors[0].revents();
            now && (ready.contains(PollFlags::IN) || !ready.contains(PollFlags::HUP))
        }
        _ => false,
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if io::stdin().is_terminal() {
            wait_for_a_line()?;
        }
        Ok(rustix::io::read(stdin(), buffer)?)
    }
}

/// Waits until the terminal has something for the foreground, and that is this process.
fn wait_for_a_line() -> io::Result<()> {
    loop {
        let terminal = stdin();
        let mut descriptors = [PollFd::new(&terminal, PollFlags::IN)];
        poll(&mut descriptors, None)?;
        // A terminal that does not say whose it is is not ours to wait for.
        if tcgetpgrp(stdin()).map_or(true, |foreground| foreground == getpgrp()) {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}
