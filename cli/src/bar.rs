//! What is done at sites, for a person who waits: lines on standard error, and on a terminal a bar for what is copied.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use setup::Progress;

/// How often the bar is drawn.
const DRAW: Duration = Duration::from_millis(100);

/// Steps as lines, and on a terminal one line that is drawn again and again. Standard output stays for the result.
pub(crate) struct Bar {
    drawn: Option<Instant>,
    interactive: bool,
}

impl Bar {
    pub(crate) fn new() -> Bar {
        Bar { drawn: None, interactive: std::io::stderr().is_terminal() }
    }

    fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress for Bar {
    fn step(&mut self, site: &str, text: &str) {
        self.clear();
        let _ = writeln!(std::io::stderr(), "landbridge: {site}: {text}");
    }

    fn part(&mut self, site: &str, done: u64, total: u64) {
        if done >= total {
            return self.clear();
        }
        if !self.interactive || self.drawn.is_some_and(|drawn| drawn.elapsed() < DRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        let (done, total) = (done as f64 / 1e6, total as f64 / 1e6);
        let share = done / total * 100.0;
        let _ = write!(std::io::stderr(), "\r\x1b[K{site}: {done:.1} of {total:.1} MB ({share:.0} %)");
    }
}
