//! Log lines caused by peers: a few short lines per peer, so that no peer can fill a disk.
//!
//! Each peer (another site, or all peers that have not proved an identity together) may cause [`BURST`] lines at once
//! and [`A_SECOND`] per second in the long run. Further lines are counted, and the peer's next line reports how many
//! were suppressed. Lines about users of the gateway's own site are not limited, because those users hold the site's
//! key.

use std::cell::RefCell;
use std::collections::HashMap;

use tokio::time::Instant;
use wire::text::within;

/// Lines that a peer may cause at once.
const BURST: u32 = 60;
/// Lines per second that a peer may cause in the long run.
const A_SECOND: u32 = 5;
/// The longest text from a peer that is logged or forwarded, in bytes.
const LONGEST: usize = 400;
/// All peers that have not proved an identity.
pub(crate) const STRANGERS: &str = "";
/// Members of jobs. No site has this name.
pub(crate) const MEMBERS: &str = "members of jobs";

/// How many lines each peer may still cause.
#[derive(Debug, Default)]
pub(crate) struct Lines(HashMap<String, Budget>);

#[derive(Debug)]
struct Budget {
    lines: f64,
    at: Instant,
    suppressed: u64,
}

impl Lines {
    /// Whether a line caused by a peer may be logged, and how many lines were suppressed before it, if any.
    pub(crate) fn may(&mut self, peer: &str, now: Instant) -> Option<Suppressed> {
        if !self.0.contains_key(peer) {
            self.0.insert(peer.to_owned(), Budget { lines: BURST.into(), at: now, suppressed: 0 });
        }
        let budget = self.0.get_mut(peer)?;
        let since = now.saturating_duration_since(std::mem::replace(&mut budget.at, now));
        budget.lines = (budget.lines + since.as_secs_f64() * f64::from(A_SECOND)).min(BURST.into());
        if budget.lines < 1.0 {
            budget.suppressed += 1;
            return None;
        }
        budget.lines -= 1.0;
        let suppressed = std::mem::take(&mut budget.suppressed);
        Some((suppressed > 0).then_some(suppressed))
    }
}

/// Number of lines suppressed before this one, if any.
pub(crate) type Suppressed = Option<u64>;

thread_local! {
    /// Thread-local, because a gateway is one thread.
    static LINES: RefCell<Lines> = RefCell::default();
}

/// Whether a line caused by a peer may be logged. There are few peers: the sites in the sites file and [`STRANGERS`].
pub(crate) fn may(peer: &str) -> Option<Suppressed> {
    LINES.with_borrow_mut(|lines| lines.may(peer, Instant::now()))
}

/// Logs an event caused by a peer, if the limit allows: `log!(warn, peer, field, …, "what happened")`.
macro_rules! log {
    ($level:ident, $peer:expr, $($rest:tt)*) => {
        if let Some(suppressed) = $crate::log::may($peer) {
            tracing::$level!(suppressed, $($rest)*);
        }
    };
}
pub(crate) use log;

/// A peer's text, cut to the length that is logged or forwarded.
pub(crate) fn short(text: &str) -> &str {
    within(text, LONGEST)
}

/// The same for an owned text.
pub(crate) fn shorten(mut text: String) -> String {
    text.truncate(within(&text, LONGEST).len());
    text
}

/// After this much silence a peer that has used up its lines may again cause as many as at first.
#[cfg(test)]
const PAUSE: std::time::Duration = std::time::Duration::from_secs((BURST / A_SECOND) as u64);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_logged_in_a_few_lines_and_counted() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let said = (0..1000).filter(|_| lines.may("m", start).is_some()).count();
        assert_eq!(said, BURST as usize);
        assert_eq!(lines.may("b", start), Some(None), "others have their own");
        assert_eq!(lines.may("m", start + PAUSE), Some(Some(1000 - u64::from(BURST))));
        assert_eq!(lines.may("m", start + PAUSE), Some(None));
        let said = (0..3600 * 100).filter(|n| lines.may("m", start + PAUSE + *n * Duration::from_millis(10)).is_some());
        assert!(said.count() <= (3600 * A_SECOND + BURST) as usize);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(short("short"), "short");
        let long = "é".repeat(300) + "x";
        assert_eq!(short(&("x".to_owned() + &long)).len(), 399);
        assert_eq!(shorten(long).len(), 400);
    }
}
