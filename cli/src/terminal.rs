//! What a user sees of a job: the ranks' output, a status line while nothing happens yet, notes.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use launch::launcher::Observer;
use launch::message::Stream;
use rustix::termios::tcgetwinsize;
use types::{Rank, Roster};

use crate::files::Files;

/// How long something may take before it is worth a status line.
const PATIENCE: Duration = Duration::from_millis(500);
/// The width of a terminal that does not report it.
const COLUMNS: usize = 80;

/// Writes to this process's standard output and error.
pub(crate) struct Terminal {
    /// Whether lines get a prefix.
    prefix: bool,
    /// The text before each line of a rank, once ranks are placed.
    prefixes: Option<Vec<String>>,
    interactive: bool,
    doing: Option<(String, Instant)>,
    /// The seconds in the status line, while there is one.
    shown: Option<u64>,
    /// Where output goes instead.
    files: Option<Files>,
    /// Every step gets a line, with the time since the first.
    verbose: bool,
    began: Instant,
    /// Whether the last thing written to each stream ended without a newline.
    open: [bool; 2],
}

impl Terminal {
    /// A terminal; `prefix`: begin every line of a rank with its place.
    pub(crate) fn new(prefix: bool, verbose: bool, files: Option<Files>) -> Terminal {
        let interactive = io::stderr().is_terminal();
        Terminal {
            prefix,
            prefixes: None,
            interactive,
            doing: None,
            shown: None,
            files,
            verbose,
            began: Instant::now(),
            open: [false; 2],
        }
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }

    /// A line about a step, with the time since the first.
    fn step(&self, doing: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        let _ = writeln!(io::stderr(), "landbridge: {seconds:7.3} s  {doing}");
    }

    /// The bytes with a prefix before each line; a last line without an end gets one.
    fn prefixed(&self, rank: u32, bytes: &[u8]) -> Option<Vec<u8>> {
        let prefix = self.prefixes.as_ref()?.get(rank as usize)?;
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            out.extend_from_slice(prefix.as_bytes());
            out.extend_from_slice(line);
        }
        if out.last() != Some(&b'\n') {
            out.push(b'\n');
        }
        Some(out)
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Out => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
            Stream::Err => io::stderr().lock().write_all(bytes),
        }
    }
}

impl Observer for Terminal {
    fn placed(&mut self, roster: &Roster) {
        let place = |rank| roster.place(Rank(rank)).map_or(String::new(), |place| format!("[{place}/{rank}] "));
        if let Some(files) = &mut self.files {
            files.placed(roster.size());
        }
        if self.verbose {
            self.step(&format!("ranks: {roster}"));
        }
        self.prefixes = self.prefix.then(|| (0..roster.size()).map(place).collect());
    }

    fn output(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if let Some(files) = &mut self.files {
            return files.write(rank, stream, bytes);
        }
        self.clear();
        let prefixed = self.prefixed(rank, bytes);
        let bytes = prefixed.as_deref().unwrap_or(bytes);
        self.open[usize::from(stream == Stream::Err)] = bytes.last().is_some_and(|byte| *byte != b'\n');
        self.write(stream, bytes)
    }

    fn progress(&mut self, doing: Option<&str>) {
        self.clear();
        if let Some(doing) = doing.filter(|_| self.verbose) {
            self.step(doing);
        }
        // The clock goes on over several steps: it is the waiting that deserves a line.
        let since = self.doing.as_ref().map_or_else(Instant::now, |(_, since)| *since);
        self.doing = doing.map(|doing| (doing.to_owned(), since));
    }

    fn note(&mut self, text: &str) {
        self.clear();
        let _ = writeln!(io::stderr(), "landbridge: {text}");
    }

    fn tick(&mut self) {
        let Some((doing, since)) = &self.doing else { return };
        let waited = since.elapsed();
        if !self.interactive || self.verbose || waited < PATIENCE || self.open.contains(&true) {
            return;
        }
        // Drawn again when its last figure changes.
        if self.shown != Some(waited.as_secs()) {
            let columns = tcgetwinsize(io::stderr()).map_or(COLUMNS, |size| usize::from(size.ws_col));
            let _ = write!(io::stderr(), "\r\x1b[K{}", status(doing, waited.as_secs(), columns));
            self.shown = Some(waited.as_secs());
        }
    }
}

/// The status line, cut to the width of the terminal: a longer one would stay on the screen.
fn status(doing: &str, seconds: u64, columns: usize) -> String {
    let waited = match seconds {
        0 => " …".to_owned(),
        seconds @ ..120 => format!(" … {seconds} s"),
        seconds => format!(" … {} min {} s", seconds / 60, seconds % 60),
    };
    let line = format!("landbridge: {doing}");
    let room = columns.saturating_sub(waited.chars().count() + 1);
    line.chars().take(room).chain(waited.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_has_the_time_and_fits_the_terminal() {
        assert_eq!(status("opening a job at a, b", 0, 80), "landbridge: opening a job at a, b …");
        assert_eq!(status("opening a job at a, b", 7, 80), "landbridge: opening a job at a, b … 7 s");
        assert_eq!(status("waiting for nodes: lyon: PENDING", 185, 40), "landbridge: waiting for nod … 3 min 5 s");
        assert_eq!(status("x", 1, 0), " … 1 s");
    }

    #[test]
    fn every_line_has_its_prefix() {
        let roster: Roster = "a:n1*1;b:n2*1".parse().unwrap_or_else(|_| panic!("roster"));
        let mut terminal = Terminal::new(true, false, None);
        terminal.placed(&roster);
        let text = terminal.prefixed(1, b"one\n\ntwo").unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&text), "[b/n2/1] one\n[b/n2/1] \n[b/n2/1] two\n");
        assert_eq!(Terminal::new(false, false, None).prefixed(1, b"x"), None);
    }
}
