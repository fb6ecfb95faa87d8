//! The user's view of a job: the ranks' output, a status line during waits, and notes.

use std::io;
use std::time::{Duration, Instant};

use job::message::Stream;
use launcher::Observer;
use rustix::termios::tcgetwinsize;
use types::{Rank, Roster};

use super::files::Files;
use crate::output;

/// Minimum duration of a wait with a status line.
const PATIENCE: Duration = Duration::from_millis(500);
/// The width of a terminal that does not report it.
const COLUMNS: usize = 80;

/// Writes to this process's standard output and error.
pub(crate) struct Terminal {
    /// True if lines get a prefix.
    prefix: bool,
    /// The text before each line of a rank, once ranks are placed.
    prefixes: Option<Vec<String>>,
    interactive: bool,
    doing: Option<(String, Instant)>,
    /// The seconds in the present status line. `None`: there is no status line.
    shown: Option<u64>,
    /// Files for the output, instead of the terminal.
    files: Option<Files>,
    /// True if every step gets a line, with the time since the start.
    verbose: bool,
    began: Instant,
    /// True if output passes as it arrives, not in whole lines.
    raw: bool,
    /// State of standard output and standard error.
    lines: [LastLine; 2],
}

/// Time that other ranks' output waits for the end of an unfinished line.
const LINE: Duration = Duration::from_millis(200);

/// The last line of a stream.
#[derive(Debug, Default)]
struct LastLine {
    /// The rank that has begun the line, and the time of its last write; `None`: the line is complete.
    begun: Option<(u32, Instant)>,
    /// Output of other ranks that waits for the end of the line, in order of arrival.
    waiting: Vec<(u32, Vec<u8>)>,
}

impl Terminal {
    /// `prefix`: begin every line of a rank with its place; `raw`: do not keep lines whole.
    pub(crate) fn new((prefix, raw): (bool, bool), verbose: bool, files: Option<Files>) -> Terminal {
        let interactive = output::is_screen(Stream::Err);
        Terminal {
            prefix,
            prefixes: None,
            interactive,
            doing: None,
            shown: None,
            files,
            verbose,
            began: Instant::now(),
            raw,
            lines: [LastLine::default(), LastLine::default()],
        }
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            output::clear();
        }
    }

    /// Prints a line about a step, with the time since the start.
    fn step(&self, doing: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        output::note(&format!("{seconds:7.3} s  {doing}"));
    }

    /// Adds a prefix to each line. A first line that `continues` an earlier one already has its prefix.
    fn prefixed(&self, rank: u32, bytes: &[u8], continues: bool) -> Option<Vec<u8>> {
        let prefix = self.prefixes.as_ref()?.get(rank as usize)?;
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
        for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if number > 0 || !continues {
                out.extend_from_slice(prefix.as_bytes());
            }
            out.extend_from_slice(line);
        }
        Some(out)
    }
}

impl Terminal {
    /// Writes output of a rank. Ends an unfinished line of another rank.
    fn put(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let begun = self.lines[at(stream)].begun.map(|(rank, _)| rank);
        if !self.raw && begun.is_some_and(|other| other != rank) {
            output::raw(stream, b"\n")?;
        }
        let prefixed = self.prefixed(rank, bytes, begun == Some(rank));
        output::raw(stream, prefixed.as_deref().unwrap_or(bytes))?;
        let begins = bytes.last().is_some_and(|byte| *byte != b'\n');
        self.lines[at(stream)].begun = begins.then(|| (rank, Instant::now()));
        Ok(())
    }

    /// Writes the waiting output, once the unfinished line has ended or takes too long.
    fn release(&mut self, stream: Stream) -> io::Result<()> {
        let line = &mut self.lines[at(stream)];
        if line.begun.is_some_and(|(_, since)| since.elapsed() < LINE) {
            return Ok(());
        }
        std::mem::take(&mut line.waiting).into_iter().try_for_each(|(rank, bytes)| self.put(rank, stream, &bytes))
    }
}

/// The index of a stream.
fn at(stream: Stream) -> usize {
    usize::from(stream == Stream::Err)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        for stream in [Stream::Out, Stream::Err] {
            let waiting = std::mem::take(&mut self.lines[at(stream)].waiting);
            // An error could no longer be reported.
            let _ = waiting.into_iter().try_for_each(|(rank, bytes)| self.put(rank, stream, &bytes));
            if self.prefix && self.lines[at(stream)].begun.is_some() {
                let _ = output::raw(stream, b"\n");
            }
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
        self.release(stream)?;
        let line = &mut self.lines[at(stream)];
        if !self.raw && line.begun.is_some_and(|(other, since)| other != rank && since.elapsed() < LINE) {
            line.waiting.push((rank, bytes.to_vec()));
            return Ok(());
        }
        self.put(rank, stream, bytes)?;
        self.release(stream)
    }

    fn progress(&mut self, doing: Option<&str>) {
        self.clear();
        if let Some(doing) = doing.filter(|_| self.verbose) {
            self.step(doing);
        }
        // The clock continues over several steps: the total wait decides about the status line.
        let since = self.doing.as_ref().map_or_else(Instant::now, |(_, since)| *since);
        self.doing = doing.map(|doing| (doing.to_owned(), since));
    }

    fn note(&mut self, text: &str) {
        self.clear();
        output::note(text);
    }

    fn tick(&mut self) {
        for stream in [Stream::Out, Stream::Err] {
            // The next output reports a terminal that is gone.
            let _ = self.release(stream);
        }
        let Some((doing, since)) = &self.doing else { return };
        let waited = since.elapsed();
        if !self.interactive || self.verbose || waited < PATIENCE || self.lines.iter().any(|line| line.begun.is_some())
        {
            return;
        }
        // Redraw only when the seconds have changed.
        if self.shown != Some(waited.as_secs()) {
            let columns = tcgetwinsize(std::io::stderr()).map_or(COLUMNS, |size| usize::from(size.ws_col));
            output::redraw(&status(doing, waited.as_secs(), columns));
            self.shown = Some(waited.as_secs());
        }
    }
}

/// The status line, cut to the width of the terminal: a longer one would wrap and remain on the screen.
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
        let mut terminal = Terminal::new((true, false), false, None);
        terminal.placed(&roster);
        let text = |bytes, continues| {
            String::from_utf8_lossy(&terminal.prefixed(1, bytes, continues).unwrap_or_default()).into_owned()
        };
        assert_eq!(text(b"one\n\ntwo", false), "[b/n2/1] one\n[b/n2/1] \n[b/n2/1] two");
        assert_eq!(text(b"? yes\nno", true), "? yes\n[b/n2/1] no");
        assert_eq!(Terminal::new((false, false), false, None).prefixed(1, b"x", false), None);
    }
}
