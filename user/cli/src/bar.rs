//! What is done at sites, for a person who waits: lines on standard error, and on a terminal a bar for what is copied.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::time::{Duration, Instant};

use setup::Progress;
use types::untrusted::indented;

use crate::sites_add::asking;

/// Most bytes of an answer.
const ANSWER: u64 = 64;
/// How often the bar is drawn.
const DRAW: Duration = Duration::from_millis(100);

/// One line on a terminal that is drawn again and again, and goes at the end. Elsewhere, nothing.
pub(crate) struct Line {
    drawn: Option<Instant>,
    interactive: bool,
}

impl Line {
    pub(crate) fn new() -> Line {
        Line { drawn: None, interactive: std::io::stderr().is_terminal() }
    }

    /// Draws what `text` returns, unless that was done a moment ago.
    pub(crate) fn draw(&mut self, text: impl FnOnce() -> String) {
        if self.interactive && self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW) {
            self.drawn = Some(Instant::now());
            crate::output::redraw(&text());
        }
    }

    /// Draws this at once.
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

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Steps that are mostly quick: the current one, on a terminal alone.
pub(crate) struct Current(Line);

impl Current {
    pub(crate) fn new() -> Current {
        Current(Line::new())
    }
}

impl Progress for Current {
    fn step(&mut self, site: &str, text: &str) {
        self.0.show(&format!("{site}: {text}"));
    }
}

/// Steps as lines, and on a terminal one line that is drawn again and again. Standard output stays for the result.
pub(crate) struct Bar(Line);

impl Bar {
    pub(crate) fn new() -> Bar {
        Bar(Line::new())
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
            let (done, total) = (done as f64 / 1e6, total as f64 / 1e6);
            let share = done / total * 100.0;
            format!("{site}: {done:.1} of {total:.1} MB ({share:.0} %)")
        });
    }
}
