//! Log lines caused by peers: a few short lines per peer ([`LogLines`]), so that no peer can fill a disk.
//!
//! Each other site is a peer; all peers that have not proved an identity count as one. Lines about users of the
//! gateway's own site are not limited, because those users hold the site's key.

use std::cell::RefCell;

use tokio::time::Instant;
use types::log_lines::LogLines;
pub(crate) use types::log_lines::Suppressed;
use wire::text::within;

/// The longest text from a peer that is logged or forwarded, in bytes.
const LONGEST: usize = 400;
/// Peer name of all peers that have not proved an identity.
pub(crate) const STRANGERS: &str = "";
/// Peer name of members of jobs. No site has this name.
pub(crate) const MEMBERS: &str = "members of jobs";

thread_local! {
    /// Thread-local, because a gateway is one thread.
    static LINES: (Instant, RefCell<LogLines>) = (Instant::now(), RefCell::default());
}

/// Returns `Some` if a line caused by a peer may be logged. There are few peers: the sites in the sites file and
/// [`STRANGERS`].
pub(crate) fn may(peer: &str) -> Option<Suppressed> {
    LINES.with(|(since, lines)| lines.borrow_mut().may(peer, since.elapsed()))
}

/// Logs an event caused by a peer, if the limit allows: `log!(warn, peer, field, …, "the event")`.
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

/// Like [`short`], for an owned text.
pub(crate) fn shorten(mut text: String) -> String {
    text.truncate(within(&text, LONGEST).len());
    text
}

/// A number of bytes in readable form.
pub(crate) fn quantity(bytes: u64) -> String {
    match bytes {
        0..=1023 => format!("{bytes} B"),
        1024..=1_048_575 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(short("short"), "short");
        let long = "é".repeat(300) + "x";
        assert_eq!(short(&("x".to_owned() + &long)).len(), 399);
        assert_eq!(shorten(long).len(), 400);
    }
}
