//! Standard output and standard error for text composed by this program. Characters that act on a terminal are escaped,
//! because parts of the text come from others.
//!
//! Output of other programs, such as ranks, passes through [`raw`] and the functions after it. `scripts/invariants.py`
//! lists the files that may use those, and lets no other file use the streams themselves.

use std::io::{self, IsTerminal, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll};

use commands::CommandError;
use job::message::Stream;
use tokio::io::AsyncWrite;
use types::untrusted::{indented, printable, visible};

/// Name of standard output in errors.
const STDOUT: &str = "standard output";

/// Returns true if the only problem is that the reader closed standard output, as `head -1` does.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe && e.to_string().starts_with(STDOUT);
    let root = error.root_cause();
    let cause = match root.downcast_ref() {
        Some(CommandError::Cause(cause)) => cause.downcast_ref(),
        _ => root.downcast_ref(),
    };
    cause.is_some_and(closed)
}

/// Standard output, for results.
pub(crate) fn stdout() -> Visible<io::Stdout> {
    Visible { name: STDOUT, to: io::stdout(), part: Vec::new() }
}

/// Standard error. For a message, see [`note`].
pub(crate) fn stderr() -> Visible<io::Stderr> {
    Visible { name: "standard error", to: io::stderr(), part: Vec::new() }
}

/// True while the ranks' output on a stream, output or error, ends within a line.
static OPEN: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

fn open(stream: Stream) -> &'static AtomicBool {
    &OPEN[usize::from(stream == Stream::Err)]
}

/// Returns a newline if ranks have left a line unfinished, because the next text is not theirs; else nothing.
fn ends_line(stream: Stream) -> &'static str {
    if open(stream).swap(false, Ordering::Relaxed) { "\n" } else { "" }
}

/// Writes a line to standard output, starting a new line if ranks have left one unfinished.
///
/// # Errors
/// System errors.
pub(crate) fn line_of_its_own(text: &str) -> io::Result<()> {
    stdout().write_all(format!("{}{text}\n", ends_line(Stream::Out)).as_bytes())
}

/// Names standard output in an error of [`raw`].
pub(crate) fn of_stdout(error: io::Error) -> io::Error {
    named(STDOUT, &error)
}

fn named(stream: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{stream}: {error}"))
}

/// Writes output of ranks or a mover unchanged, and not mixed with other writes.
pub(crate) fn raw(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    if let Some(last) = bytes.last() {
        open(stream).store(*last != b'\n', Ordering::Relaxed);
    }
    match stream {
        Stream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        Stream::Err => io::stderr().lock().write_all(bytes),
    }
}

/// Standard output of a program that talks to another one.
pub(crate) fn raw_std() -> io::Stdout {
    io::stdout()
}

/// Standard output for bytes that pass unchanged.
pub(crate) fn raw_stdout() -> tokio::io::Stdout {
    tokio::io::stdout()
}

/// Standard error for bytes that pass unchanged.
pub(crate) fn raw_stderr() -> tokio::io::Stderr {
    tokio::io::stderr()
}

/// Prints a message on standard error: `landbridge: ` and the text, with further lines indented.
pub(crate) fn note(text: &str) {
    // If standard error is closed, the error cannot be reported.
    let _ = io::stderr().write_all(format!("{}{}", ends_line(Stream::Err), line(text)).as_bytes());
}

fn line(text: &str) -> String {
    format!("landbridge: {}\n", indented(text))
}

/// True if standard output or standard error is a terminal that obeys escape sequences.
pub(crate) fn is_screen(stream: Stream) -> bool {
    let is_terminal = match stream {
        Stream::Out => io::stdout().is_terminal(),
        Stream::Err => io::stderr().is_terminal(),
    };
    is_terminal && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// Redraws the current line of a terminal. Does nothing elsewhere.
pub(crate) fn redraw(text: &str) {
    if is_screen(Stream::Err) {
        let _ = write!(io::stderr(), "\r\x1b[K{}", printable(text));
    }
}

/// Clears the current line of a terminal.
pub(crate) fn clear() {
    if is_screen(Stream::Err) {
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
}

/// Clears the screen, if standard output is a terminal.
pub(crate) fn clear_screen() {
    if is_screen(Stream::Out) {
        let _ = io::stdout().write_all(b"\x1b[H\x1b[J");
    }
}

/// Escapes characters that act on a terminal, except line breaks and tabs.
pub(crate) struct Visible<W> {
    /// Name of the stream, for errors.
    name: &'static str,
    to: W,
    /// The first bytes of a character that has not been completed yet.
    part: Vec<u8>,
}

impl<W> Visible<W> {
    fn named(&self, error: &io::Error) -> io::Error {
        named(self.name, error)
    }
}

impl<W: Write> Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.part);
        all.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&all) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => all.len(),
        };
        self.part = all.split_off(whole);
        let written = self.to.write_all(visible(&String::from_utf8_lossy(&all)).as_bytes());
        written.map_err(|error| self.named(&error))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush().map_err(|error| self.named(&error))
    }
}

/// Blocks while the reader of this process's output blocks.
impl<W: Write + Unpin> AsyncWrite for Visible<W> {
    fn poll_write(self: Pin<&mut Self>, _: &mut task::Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.get_mut().write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_a_terminal_in_whatever_pieces_it_comes() {
        let hostile = "a\u{1b}]52;c;aGk=\u{7}é\u{9b}2J\tb\r\n";
        let shown = "a\\u{1b}]52;c;aGk=\\u{7}é\\u{9b}2J\tb\\r\n";
        for piece in 1..hostile.len() {
            let mut out = Visible { name: "", to: Vec::new(), part: Vec::new() };
            hostile.as_bytes().chunks(piece).for_each(|piece| assert!(out.write_all(piece).is_ok()));
            assert_eq!(String::from_utf8_lossy(&out.to), shown, "{piece}");
        }
        let mut out = Visible { name: "", to: Vec::new(), part: Vec::new() };
        assert!(out.write_all(b"\xff\x9b\n").is_ok());
        assert_eq!(String::from_utf8_lossy(&out.to), "\u{fffd}\u{fffd}\n");
    }

    #[test]
    fn a_line_within_a_message_is_no_message() {
        assert_eq!(line("site lyon: x\nlandbridge: done"), "landbridge: site lyon: x\n landbridge: done\n");
    }
}
