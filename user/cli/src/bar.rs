//! Progress of work at sites, for a waiting user: lines on standard error, and on a terminal a bar for copies.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::time::{Duration, Instant};

use job::message::Stream;
use setup::Progress;
use types::untrusted::indented;

use crate::output::is_screen;
use crate::quantity::megabytes;

/// Maximum length of an answer, in bytes.
const ANSWER: u64 = 64;
/// Minimum interval between two redraws of the bar.
const DRAW: Duration = Duration::from_millis(100);

/// Returns true if a user can be asked for a password.
pub(crate) fn asking() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// A terminal line that is redrawn and finally removed. Elsewhere it prints nothing.
pub(crate) struct RedrawnLine {
    drawn: Option<Instant>,
    interactive: bool,
}

impl RedrawnLine {
    pub(crate) fn new() -> RedrawnLine {
        RedrawnLine { drawn: None, interactive: is_screen(Stream::Err) }
    }

    /// Draws the result of `text`, unless the line was drawn within [`DRAW`].
    pub(crate) fn draw(&mut self, text: impl FnOnce() -> String) {
        if self.interactive && self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW) {
            self.drawn = Some(Instant::now());
            crate::output::redraw(&text());
        }
    }

    /// Draws this text at once.
    fn show(&mut self, text: &str) {
        self.drawn = None;
        self.draw(|| text.to_owned());
    }

    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            crate::output::clear();
        }
    }
}

impl Drop for RedrawnLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Steps that are usually short: shows the current one, on a terminal only.
pub(crate) struct Current(RedrawnLine);

impl Current {
    pub(crate) fn new() -> Current {
        Current(RedrawnLine::new())
    }
}

impl Progress for Current {
    fn step(&mut self, site: &str, text: &str) {
        self.0.show(&format!("{site}: {text}"));
    }
}

/// Steps as lines, and on a terminal a redrawn line as well. Standard output stays free for the result.
pub(crate) struct Bar(RedrawnLine);

impl Bar {
    pub(crate) fn new() -> Bar {
        Bar(RedrawnLine::new())
    }
}

impl Progress for Bar {
    fn step(&mut self, site: &str, text: &str) {
        self.0.clear();
        crate::output::note(&format!("{site}: {text}"));
    }

    fn accepts(&mut self, question: &str) -> bool {
        self.0.clear();
        if !asking() {
            return false;
        }
        let _ = write!(crate::output::stderr(), "landbridge: {} [y/N] ", indented(question));
        let mut answer = String::new();
        let _ = std::io::stdin().lock().take(ANSWER).read_line(&mut answer);
        matches!(answer.trim(), "y" | "Y" | "yes")
    }

    fn part(&mut self, site: &str, done: u64, total: u64) {
        if done >= total {
            return self.0.clear();
        }
        self.0.draw(|| {
            let share = done as f64 / total as f64 * 100.0;
            format!("{site}: {} of {} MB ({share:.0} %)", megabytes(done), megabytes(total))
        });
    }
}
