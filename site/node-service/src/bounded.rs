//! Runs another program for its output, within limits of time and size.
//!
//! A program that never ends, prints without end or leaves its pipes open in other processes is killed with its process
//! group. Its output takes no more memory than the limits allow.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;
use types::UntrustedText;

/// Most bytes kept of a program's standard error.
const MOST_STDERR: usize = 4 << 10;
/// Interval of checks whether a program whose pipes stay open has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that a pipe accepts at once when it is writable.
const PIPE_WRITE: usize = 4096;

/// Limits on a program.
#[derive(Clone, Copy, Debug)]
pub struct ProgramLimits {
    pub time: Duration,
    /// Most bytes on standard output.
    pub output: usize,
}

/// A program that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The exit code. `None`: a signal ended the program.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    /// The first bytes of standard error.
    pub stderr: UntrustedText,
}

/// Reasons for a program having no output.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    #[error("{0}")]
    Start(std::io::Error),
    #[error("it did not end within {0} s and was killed")]
    Slow(u64),
    #[error("it printed more than {0} bytes and was killed")]
    Long(usize),
}

/// Runs a program with this standard input.
///
/// # Errors
/// [`RunError`]. A nonzero exit code or a signal is no error here.
pub fn run(mut command: Command, input: &[u8], limits: ProgramLimits) -> Result<Done, RunError> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(RunError::Start)?;
    let result = follow(&mut child, input, limits);
    if result.is_err() {
        // The group outlives its leader while another member lives, so its id still belongs to this program.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
    }
    result
}

fn follow(child: &mut Child, mut input: &[u8], limits: ProgramLimits) -> Result<Done, RunError> {
    let deadline = Instant::now() + limits.time;
    let (mut stdin, mut stdout, mut stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut output, mut words, mut buffer) = (Vec::new(), Vec::new(), [0; 16 << 10]);
    loop {
        if input.is_empty() {
            stdin = None;
        }
        let ready = wait(&stdin, &stdout, &stderr).map_err(RunError::Start)?;
        if ready[0] {
            pass_on(&mut stdin, &mut input);
        }
        if ready[1] {
            take(&mut stdout, &mut buffer, |bytes| output.extend_from_slice(bytes));
            if output.len() > limits.output {
                return Err(RunError::Long(limits.output));
            }
        }
        if ready[2] {
            take(&mut stderr, &mut buffer, |bytes| {
                words.extend_from_slice(&bytes[..bytes.len().min(MOST_STDERR - words.len())]);
            });
        }
        let is_closed = stdout.is_none() && stderr.is_none();
        if (is_closed || !ready.contains(&true))
            && let Some(status) = child.try_wait().map_err(RunError::Start)?
        {
            return Ok(Done { code: status.code(), stdout: output, stderr: UntrustedText::from_bytes(&words) });
        }
        if Instant::now() >= deadline {
            return Err(RunError::Slow(limits.time.as_secs()));
        }
        if is_closed {
            std::thread::sleep(LOOK / 50);
        }
    }
}

/// Waits at most [`LOOK`]; returns which of the three pipes are ready.
fn wait(
    stdin: &Option<ChildStdin>,
    stdout: &Option<impl AsFd>,
    stderr: &Option<impl AsFd>,
) -> std::io::Result<[bool; 3]> {
    let mut polled = Vec::with_capacity(3);
    let mut places = Vec::with_capacity(3);
    let mut add = |place: usize, file: Option<_>, flags| {
        if let Some(file) = file {
            polled.push(PollFd::from_borrowed_fd(file, flags));
            places.push(place);
        }
    };
    add(0, stdin.as_ref().map(AsFd::as_fd), PollFlags::OUT);
    add(1, stdout.as_ref().map(AsFd::as_fd), PollFlags::IN);
    add(2, stderr.as_ref().map(AsFd::as_fd), PollFlags::IN);
    let mut ready = [false; 3];
    if polled.is_empty() {
        return Ok(ready);
    }
    let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    match poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    for (at, place) in places.into_iter().enumerate() {
        ready[place] = !polled[at].revents().is_empty();
    }
    Ok(ready)
}

/// Writes a part of the input. If the program no longer reads, its standard input is closed.
fn pass_on(stdin: &mut Option<ChildStdin>, input: &mut &[u8]) {
    let Some(pipe) = stdin else { return };
    match pipe.write(&input[..input.len().min(PIPE_WRITE)]) {
        Ok(count) => *input = &input[count..],
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
        Err(_) => *stdin = None,
    }
}

/// Reads once. At the end of the pipe, `pipe` becomes `None`.
fn take(pipe: &mut Option<impl Read>, buffer: &mut [u8], keep: impl FnOnce(&[u8])) {
    match pipe.as_mut().map(|pipe| pipe.read(buffer)) {
        Some(Ok(count @ 1..)) => keep(&buffer[..count]),
        Some(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
        _ => *pipe = None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: &[u8], limits: ProgramLimits) -> Result<Done, RunError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, input, limits)
    }

    const SHORT: ProgramLimits = ProgramLimits { time: Duration::from_millis(300), output: 1000 };
    const LONG: ProgramLimits = ProgramLimits { time: Duration::from_secs(60), output: 1 << 20 };

    #[test]
    fn output_and_input_pass_whatever_their_size() {
        let input = vec![b'x'; 300_000];
        let done = shell("cat; echo oh >&2; exit 3", &input, LONG).unwrap();
        assert_eq!((done.code, done.stdout == input, done.stderr.raw()), (Some(3), true, "oh\n"));
        let done = shell("echo read nothing; exec 0<&-; sleep 0.1", &input, LONG).unwrap();
        assert_eq!((done.code, &done.stdout[..]), (Some(0), &b"read nothing\n"[..]));
        assert!(matches!(run(Command::new("/nonexistent"), b"", LONG), Err(RunError::Start(_))));
    }

    #[test]
    fn endless_output_and_endless_waiting_end_with_the_whole_group() {
        let error = shell("cat /dev/zero", b"", ProgramLimits { output: 100_000, ..LONG }).unwrap_err();
        assert!(error.to_string().contains("more than 100000 bytes"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; exec sleep 1000", file.display());
        let error = shell(&script, b"", ProgramLimits { time: Duration::from_secs(2), ..LONG }).unwrap_err();
        assert!(matches!(error, RunError::Slow(2)), "{error}");
        let pid = std::fs::read_to_string(file).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        let begun = Instant::now();
        while !(state().is_empty() || state().contains(") Z ")) {
            assert!(begun.elapsed() < LONG.time, "still there: {}", state());
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn a_flood_on_standard_error_is_cut_and_a_pipe_left_to_others_is_not_waited_for() {
        let done = shell("head -c 5000000 /dev/zero >&2", b"", LONG).unwrap();
        assert_eq!((done.code, done.stderr.raw().len()), (Some(0), MOST_STDERR));
        let done = shell("sleep 30 & echo ok", b"", LONG).unwrap();
        assert_eq!(&done.stdout[..], b"ok\n");
        assert!(matches!(shell("sleep 9", b"", SHORT), Err(RunError::Slow(_))));
    }
}
