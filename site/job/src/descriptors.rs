//! The soft limit on open files of ranks: the user's own limit on the node. Gateways and agents raise theirs, but ranks
//! must not inherit the raised limit, because a program that calls `select` breaks above 1024.

use gateway_tasks::open_files;
use rustix::process::Rlimit;
use tokio::process::Command;

/// A variable for the programs that a gateway starts: the soft limit that the gateway itself was started with. The
/// environment reaches an agent in the same ways as limits do: from parent to child and with Slurm's `srun`, but not
/// through ssh.
const BEFORE: &str = "LANDBRIDGE_OPEN_FILES";

/// Passes the gateway's original limit to the agent that this command starts.
pub fn tell(command: &mut Command) {
    match open_files::before() {
        Some(before) => command.env(BEFORE, before.to_string()),
        // A gateway that started this one may have set it.
        None => command.env_remove(BEFORE),
    };
}

/// Raises this process's soft limit to the hard limit. Returns the limit for ranks.
pub fn raise() -> Rlimit {
    let found = open_files::raise();
    for_ranks(found, std::env::var(BEFORE).ok().and_then(|text| text.parse().ok()))
}

/// The lower one of both soft limits, because an administrator may have set one between gateway and agent.
fn for_ranks(found: Rlimit, passed: Option<u64>) -> Rlimit {
    let current = [found.current, passed].into_iter().flatten().min();
    Rlimit { current, maximum: found.maximum }
}

/// Approximate number of files that a program has open besides its connections.
const OTHERS: u64 = 256;

/// The limit for a rank with a connection to each of `peers` others: this one, or a higher one if it is too low.
pub fn for_peers(limit: Rlimit, peers: u32) -> Rlimit {
    let needed = u64::from(peers) + OTHERS;
    let within = limit.maximum.map_or(needed, |most| needed.min(most));
    Rlimit { current: limit.current.map(|current| current.max(within)), ..limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_the_lower_limit() {
        let limit = |current| Rlimit { current, maximum: Some(4096) };
        for (found, passed, expected) in [
            (Some(4096), Some(1024), Some(1024)),
            (Some(256), Some(1024), Some(256)),
            (Some(1024), None, Some(1024)),
            (None, Some(1024), Some(1024)),
            (None, None, None),
        ] {
            assert_eq!(for_ranks(limit(found), passed), limit(expected), "{found:?} {passed:?}");
        }
    }

    #[test]
    fn a_site_of_a_thousand_ranks_has_room_for_their_connections() {
        let limit = |current, maximum| Rlimit { current: Some(current), maximum };
        assert_eq!(for_peers(limit(1024, Some(4096)), 16), limit(1024, Some(4096)), "select() works");
        assert_eq!(for_peers(limit(1024, Some(4096)), 1000), limit(1256, Some(4096)));
        assert_eq!(for_peers(limit(1024, Some(4096)), 9000), limit(4096, Some(4096)));
        assert_eq!(for_peers(limit(1024, None), 9000), limit(9256, None));
        let unlimited = Rlimit { current: None, maximum: None };
        assert_eq!(for_peers(unlimited, 9000), unlimited);
    }
}
