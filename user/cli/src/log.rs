//! A gateway's log: its filter (`LANDBRIDGE_LOG`), and its output to standard error. While writing fails, lines are
//! dropped and counted, because a full disk must not end a gateway.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thiserror::Error;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use types::untrusted::one_line;

/// Name of the variable with the log filter.
pub(crate) const VARIABLE: &str = "LANDBRIDGE_LOG";

/// Number of lines lost since the last successful write.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The variable's value is not a filter.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "{VARIABLE}={value}: `{part}` is not a level (off, error, warn, info, debug, trace) nor PART=LEVEL, as in \
     {VARIABLE}=info,gateway::trunks=debug"
)]
pub(crate) struct FilterError {
    value: String,
    part: String,
}

/// Starts logging, filtered by [`VARIABLE`].
///
/// # Errors
/// The value is not a filter.
pub(crate) fn start(value: Option<&OsStr>) -> Result<(), FilterError> {
    let filter = filter(&value.unwrap_or_default().to_string_lossy())?;
    let lines = tracing_subscriber::fmt::layer().with_writer(LogLine::new).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(())
}

/// Logs a line.
pub(crate) fn note(text: &str) {
    let _ = LogLine::new().write_all(format!("landbridge: {text}\n").as_bytes());
}

/// Levels: `PART=LEVEL` for a module and those below it, `LEVEL` for everything else.
fn filter(value: &str) -> Result<Targets, FilterError> {
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (target, level) = match part.split_once('=') {
            Some((target, level)) => (Some(target.trim()), level.trim()),
            None => (None, part),
        };
        let wrong = || FilterError { value: value.to_owned(), part: part.to_owned() };
        let level = self::level(level).ok_or_else(wrong)?;
        targets = match target {
            Some("") => return Err(wrong()),
            Some(target) => targets.with_target(target, level),
            None => targets.with_default(level),
        };
    }
    Ok(targets)
}

/// Parses a level by name. tracing also accepts numbers and empty text, but those are hard to remember.
fn level(name: &str) -> Option<LevelFilter> {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic()) { name.parse().ok() } else { None }
}

/// A writer for one line of the log; it writes the line in one piece.
pub(crate) struct LogLine;

impl LogLine {
    /// A writer for the subscriber, which creates one per line.
    pub(crate) fn new() -> LogLine {
        LogLine
    }
}

impl Write for LogLine {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        write(&mut io::stderr(), line(record).as_bytes(), &LOST);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A record as one line without characters that act on a terminal: peers choose parts of log texts.
fn line(record: &[u8]) -> String {
    let text = String::from_utf8_lossy(record);
    format!("{}\n", one_line(text.strip_suffix('\n').unwrap_or(&text)))
}

/// Writes a line, preceded by the number of lost lines, or counts it as lost.
fn write(to: &mut impl Write, line: &[u8], lost: &AtomicU64) {
    let before = lost.load(Relaxed);
    let told = match before {
        0 => Ok(()),
        lost => to.write_all(format!("({lost} lines of this log could not be written)\n").as_bytes()),
    };
    match told.and_then(|()| to.write_all(line)) {
        Ok(()) => lost.store(0, Relaxed),
        Err(_) => lost.store(before + 1, Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for this many bytes.
    struct Disk(Vec<u8>, usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() + bytes.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_record_is_one_line_and_nothing_acts() {
        let hostile = "WARN node_service: refused refusal=for node x\n2026-11-28 INFO root: granted\u{1b}[2J\u{9b}1A\n";
        let text = line(hostile.as_bytes());
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(!text.trim_end().chars().any(types::untrusted::acts), "{text}");
        assert!(text.contains("x\\n2026"), "{text}");
    }

    #[test]
    fn lines_that_find_no_room_are_counted() {
        let (mut disk, lost) = (Disk(Vec::new(), 10), AtomicU64::new(0));
        (0..5).for_each(|_| write(&mut disk, b"a line\n", &lost));
        assert_eq!((disk.0.as_slice(), lost.load(Relaxed)), (b"a line\n".as_slice(), 4));
        disk.1 = 1000;
        write(&mut disk, b"another\n", &lost);
        let text = String::from_utf8_lossy(&disk.0);
        assert_eq!(text, "a line\n(4 lines of this log could not be written)\nanother\n");
        assert_eq!(lost.load(Relaxed), 0);
    }

    #[test]
    fn levels_are_for_all_or_for_a_part() {
        use tracing_subscriber::filter::LevelFilter as L;
        let enabled = |value: &str, target: &str, level: L| {
            filter(value).expect(value).would_enable(target, &level.into_level().expect("a level"))
        };
        for (value, target, most) in [
            ("", "gateway", Some(L::INFO)),
            ("warn", "gateway", Some(L::WARN)),
            ("OFF", "gateway", None),
            ("gateway::trunks=debug", "gateway::trunks::link", Some(L::DEBUG)),
            ("gateway::trunks=debug", "gateway::path", Some(L::INFO)),
            ("error, client=trace", "client", Some(L::TRACE)),
            ("error, client=trace", "gateway", Some(L::ERROR)),
        ] {
            for level in [L::ERROR, L::WARN, L::INFO, L::DEBUG, L::TRACE] {
                assert_eq!(
                    enabled(value, target, level),
                    most.is_some_and(|most| level <= most),
                    "{value} {target} {level}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_level_is_named() {
        for (value, part) in
            [("loud", "loud"), ("info,gateway=9", "gateway=9"), ("=info", "=info"), ("gateway=", "gateway=")]
        {
            let error = FilterError { value: value.into(), part: part.into() };
            assert_eq!(filter(value).map(drop), Err(error), "{value}");
        }
    }
}
