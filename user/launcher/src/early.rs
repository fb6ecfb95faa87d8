//! Reports nodes that one site has granted while others still wait. They are held and charged while nothing runs on
//! them.

use std::time::Duration;

use tokio::time::Instant;
use types::quantity::counted;

/// Time until the first reminder; each further one takes twice as long.
const FIRST: Duration = Duration::from_secs(60);

/// Sites that have their nodes while others still wait.
#[derive(Debug)]
pub(super) struct Early {
    held: Vec<(String, usize, Instant)>,
    next: Option<Instant>,
    pause: Duration,
}

impl Early {
    pub(super) fn new() -> Early {
        Early { held: Vec::new(), next: None, pause: FIRST }
    }

    /// Records that a site has its nodes. `waiting`: the sites that still wait. Returns notes for the user.
    pub(super) fn granted(&mut self, site: &str, nodes: usize, waiting: &[&str], now: Instant) -> Vec<String> {
        if waiting.is_empty() {
            let all = self.held.iter().map(|(site, nodes, since)| {
                let seconds = now.saturating_duration_since(*since).as_secs();
                format!("site {site} held {} for {} before the job could start", counted(nodes, "node"), span(seconds))
            });
            return all.collect();
        }
        self.held.push((site.to_owned(), nodes, now));
        self.next.get_or_insert(now + self.pause);
        let others = waiting.join(", ");
        vec![format!(
            "site {site} has {}, held and charged from now on until {others} has its nodes",
            counted(nodes, "node")
        )]
    }

    /// Time of the next reminder.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// The text of the reminder, one line for each site that has its nodes.
    pub(super) fn remind(&mut self, waiting: &[&str], now: Instant) -> Vec<String> {
        self.pause *= 2;
        self.next = Some(now + self.pause);
        let line = |(site, nodes, since): &(String, usize, Instant)| {
            let seconds = now.saturating_duration_since(*since).as_secs();
            let others = waiting.join(", ");
            format!("site {site} has held {} for {} while {others} waits", counted(nodes, "node"), span(seconds))
        };
        self.held.iter().map(line).collect()
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_nodes_are_reported_until_the_last_come() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut early = Early::new();
        assert_eq!(early.next(), None);
        let said = early.granted("a", 2, &["b"], at(0));
        assert_eq!(said, ["site a has 2 nodes, held and charged from now on until b has its nodes"]);
        assert_eq!(early.next(), Some(at(60)));
        assert_eq!(early.remind(&["b"], at(60)), ["site a has held 2 nodes for 60 s while b waits"]);
        assert_eq!(early.next(), Some(at(180)));
        assert_eq!(early.granted("b", 1, &[], at(200)), ["site a held 2 nodes for 3 min before the job could start"]);
        assert!(Early::new().granted("a", 1, &[], at(0)).is_empty());
    }
}
