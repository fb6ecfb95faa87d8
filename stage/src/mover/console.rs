//! Connection to the user's command: the first mover's standard input and output.

use std::io::Write;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::MoverError;
use super::message::Event;

/// Maximum line length in bytes: enough for an order of some hundred thousand paths.
const LONGEST: usize = 64 << 20;

pub(crate) struct Console<'a> {
    input: BorrowedFd<'a>,
    output: &'a mut (dyn Write + Send),
    bytes: Vec<u8>,
    /// The input has ended.
    at_end: bool,
}

impl<'a> Console<'a> {
    pub(crate) fn new(input: BorrowedFd<'a>, output: &'a mut (dyn Write + Send)) -> Console<'a> {
        Console { input, output, bytes: Vec::new(), at_end: false }
    }

    /// Waits for the first lines. Returns none if the input has ended.
    pub(crate) fn wait(&mut self) -> Result<Vec<String>, MoverError> {
        loop {
            let lines = self.lines()?;
            if self.at_end || !lines.is_empty() {
                return Ok(lines);
            }
            let mut fds = [PollFd::from_borrowed_fd(self.input, PollFlags::IN)];
            // An interrupted or failed wait counts as a short one.
            let _ = poll(&mut fds, None);
        }
    }

    /// Returns true if the command has ended. A live command keeps its end open until the transfer is done.
    pub(crate) fn is_deserted(&self) -> bool {
        self.at_end
    }

    pub(super) fn waits_on(&self) -> Option<BorrowedFd<'a>> {
        (!self.at_end).then_some(self.input)
    }

    /// The complete lines that have arrived.
    pub(crate) fn lines(&mut self) -> Result<Vec<String>, MoverError> {
        let mut buffer = vec![0; 64 << 10];
        // The descriptor may be shared with other processes, so it is not made non-blocking.
        while !self.at_end && self.is_readable() {
            match rustix::io::read(self.input, &mut buffer[..]) {
                Ok(0) => self.at_end = true,
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(MoverError::System(error.into())),
            }
            if self.bytes.len() > LONGEST {
                return Err(MoverError::Order(format!("a line of more than {LONGEST} bytes")));
            }
        }
        let Some(end) = self.bytes.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
        let lines: Vec<u8> = self.bytes.drain(..=end).collect();
        let lines = String::from_utf8(lines).map_err(|error| MoverError::Order(error.to_string()))?;
        Ok(lines.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
    }

    fn is_readable(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.input, PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&none)).is_ok_and(|count| count > 0)
    }

    pub(crate) fn write(&mut self, event: &Event) -> Result<(), MoverError> {
        let mut line = serde_json::to_vec(event).map_err(|error| MoverError::Message(error.to_string()))?;
        line.push(b'\n');
        self.output.write_all(&line)?;
        Ok(self.output.flush()?)
    }
}
