//! Standard input for the ranks of a job.

use std::io::{self, IsTerminal, Read};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::tcgetpgrp;

/// Interval at which a background job checks whether it is in the foreground again.
const LOOK: Duration = Duration::from_millis(300);

/// This process's standard input. Reading from a terminal waits until the job is in the foreground: the system stops a
/// background job that reads, and then the output of its ranks would not be read either.
pub(crate) struct Input;

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if io::stdin().is_terminal() {
            wait_for_a_line()?;
        }
        Ok(rustix::io::read(stdin(), buffer)?)
    }
}

/// Waits until the terminal has input and this process is in the foreground.
fn wait_for_a_line() -> io::Result<()> {
    loop {
        let terminal = stdin();
        let mut descriptors = [PollFd::new(&terminal, PollFlags::IN)];
        poll(&mut descriptors, None)?;
        // If the terminal's foreground process is unknown, do not wait for it.
        if tcgetpgrp(stdin()).map_or(true, |foreground| foreground == getpgrp()) {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}
