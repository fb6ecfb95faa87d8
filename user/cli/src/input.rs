//! Standard input for the ranks of a job.

use std::io::{self, IsTerminal, Read};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::tcgetpgrp;

/// How often a job in the background looks whether its terminal is its own again.
const LOOK: Duration = Duration::from_millis(300);

/// This process's standard input. Reading from a terminal waits until the job is in the foreground: the system stops a
/// background job that reads, and nobody would read what its ranks write.
pub(crate) struct Input;

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
