//! What is logged because of what a peer did: a few lines of each peer, and short ones, so that nobody fills a disk.
//!
//! Each peer (another site; or everybody who has not said who he is) may cause [`BURST`] lines at once and [`A_SECOND`]
//! in the long run. What is left out is counted, and the next line of that peer says how many there were. Lines about
//! what users of the gateway's own site do are not limited: they hold the site's key.

use std::cell::RefCell;
use std::collections::HashMap;

use tokio::time::Instant;

/// Lines that a peer may cause at once.
const BURST: u32 = 60;
/// Lines that it may cause in a second in the long run.
const A_SECOND: u32 = 5;
/// The longest text of a peer's that is logged or passed on, in bytes.
const LONGEST: usize = 400;
/// Everybody who has not said who he is.
pub(crate) const STRANGERS: &str = "";
/// Members of jobs. No site has this name.
pub(crate) const MEMBERS: &str = "members of jobs";

/// What each peer may still cause.
#[derive(Debug, Default)]
pub(crate) struct Lines(HashMap<String, Budget>);

#[derive(Debug)]
struct Budget {
    lines: f64,
    at: Instant,
    unsaid: u64,
}

impl Lines {
    /// Whether a line may be logged because of what a peer did; and how many were not before, if any.
    pub(crate) fn may(&mut self, peer: &str, now: Instant) -> Option<Unsaid> {
        if !self.0.contains_key(peer) {
            self.0.insert(peer.to_owned(), Budget { lines: BURST.into(), at: now, unsaid: 0 });
        }
        let budget = self.0.get_mut(peer)?;
        let since = now.saturating_duration_since(std::mem::replace(&mut budget.at, now));
        budget.lines = (budget.lines + since.as_secs_f64() * f64::from(A_SECOND)).min(BURST.into());
        if budget.lines < 1.0 {
            budget.unsaid += 1;
            return None;
        }
        budget.lines -= 1.0;
        let unsaid = std::mem::take(&mut budget.unsaid);
        Some((unsaid > 0).then_some(unsaid))
    }
}

/// How many lines were left out before this one, if any.
pub(crate) type Unsaid = Option<u64>;

thread_local! {
    /// A gateway is one thread.
    static LINES: RefCell<Lines> = RefCell::default();
}

/// Whether a line may be logged because of what a peer did. Peers are the sites of the sites file and [`STRANGERS`]:
/// few.
pub(crate) fn may(peer: &str) -> Option<Unsaid> {
    LINES.with_borrow_mut(|lines| lines.may(peer, Instant::now()))
}

/// Logs what a peer caused, if it may: `log!(warn, peer, field, …, "what happened")`.
macro_rules! log {
    ($level:ident, $peer:expr, $($rest:tt)*) => {
        if let Some(unsaid) = $crate::log::may($peer) {
            tracing::$level!(unsaid, $($rest)*);
        }
    };
}
pub(crate) use log;

/// As much of a peer's text as is logged or passed on.
pub(crate) fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}

/// The same of a text that is at hand.
pub(crate) fn shorten(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LONGEST));
    text
}

/// How long a peer that has used up its lines has to be silent for as many as at first.
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
