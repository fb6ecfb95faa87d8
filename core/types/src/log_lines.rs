//! A limit on the log lines that each peer may cause, so that no peer can fill a disk.
//!
//! Each peer may cause [`BURST`] lines at once and [`A_SECOND`] per second in the long run. Further lines are counted,
//! and the peer's next line reports the number suppressed. Has no clock: the caller passes the time since a fixed
//! moment.

use std::collections::HashMap;
use std::time::Duration;

/// Lines that a peer may cause at once.
pub const BURST: u32 = 60;
/// Lines per second that a peer may cause in the long run.
pub const A_SECOND: u32 = 5;
/// Most peers with a budget of their own. All further peers share one.
const MOST_PEERS: usize = 4096;

/// The remaining lines of each peer.
#[derive(Clone, Debug, Default)]
pub struct LogLines(HashMap<String, Budget>);

#[derive(Clone, Debug)]
struct Budget {
    lines: f64,
    at: Duration,
    suppressed: u64,
}

impl LogLines {
    /// Asks to log a line caused by a peer. `None`: suppress it. `Some`: log it, with the number of lines suppressed
    /// before.
    pub fn may(&mut self, peer: &str, now: Duration) -> Option<Suppressed> {
        let full = Duration::from_secs((BURST / A_SECOND).into());
        if self.0.len() >= MOST_PEERS && !self.0.contains_key(peer) {
            // A peer without a line for this long has its full budget again, so its entry can go.
            self.0.retain(|_, budget| now.saturating_sub(budget.at) < full || budget.suppressed > 0);
        }
        let peer = if self.0.len() >= MOST_PEERS && !self.0.contains_key(peer) { "" } else { peer };
        if !self.0.contains_key(peer) {
            self.0.insert(peer.to_owned(), Budget { lines: BURST.into(), at: now, suppressed: 0 });
        }
        let budget = self.0.get_mut(peer)?;
        let since = now.saturating_sub(std::mem::replace(&mut budget.at, now));
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
pub type Suppressed = Option<u64>;

#[cfg(test)]
mod tests {
    use super::*;

    /// After this much silence, a peer that has used up its lines has its full budget again.
    const PAUSE: Duration = Duration::from_secs((BURST / A_SECOND) as u64);

    #[test]
    fn a_flood_is_logged_in_a_few_lines_and_counted() {
        let (mut lines, start) = (LogLines::default(), Duration::from_secs(7));
        let said = (0..1000).filter(|_| lines.may("m", start).is_some()).count();
        assert_eq!(said, BURST as usize);
        assert_eq!(lines.may("b", start), Some(None), "others have their own");
        assert_eq!(lines.may("m", start + PAUSE), Some(Some(1000 - u64::from(BURST))));
        assert_eq!(lines.may("m", start + PAUSE), Some(None));
        let said = (0..3600 * 100).filter(|n| lines.may("m", start + PAUSE + *n * Duration::from_millis(10)).is_some());
        assert!(said.count() <= (3600 * A_SECOND + BURST) as usize);
    }

    #[test]
    fn peers_with_ever_new_names_share_what_is_left() {
        let (mut lines, now) = (LogLines::default(), Duration::from_secs(7));
        let said = (0..10 * MOST_PEERS).filter(|peer| lines.may(&peer.to_string(), now).is_some()).count();
        assert_eq!(said, MOST_PEERS + BURST as usize);
        assert!(lines.0.len() <= MOST_PEERS + 1);
        let later = now + PAUSE;
        assert_eq!(lines.may("new", later), Some(None));
        assert!(lines.0.len() < 10);
    }
}
