//! The soft limit of open files that ranks get: the user's own limit on the node, not the one that gateways and agents
//! raise theirs to, because a program that calls `select` breaks above 1024.

use gateway_hooks::open_files;
use rustix::process::Rlimit;
use tokio::process::Command;

/// A variable in the environment of the programs that a gateway starts: the soft limit that the gateway was started
/// with. An environment reaches an agent in the same ways as limits do: from parent to child, and with Slurm's `srun`,
/// but not through ssh.
const BEFORE: &str = "LANDBRIDGE_OPEN_FILES";

/// Passes on, to an agent started with this command, the limit that it would have without the gateway.
pub(crate) fn tell(command: &mut Command) {
    match open_files::before() {
        Some(before) => command.env(BEFORE, before.to_string()),
        // A gateway around this one may have set it.
        None => command.env_remove(BEFORE),
    };
}

/// Raises this process's soft limit to the hard one. Returns the limit for ranks.
pub(crate) fn raise() -> Rlimit {
    let found = open_files::raise();
    for_ranks(found, std::env::var(BEFORE).ok().and_then(|text| text.parse().ok()))
}

/// The lower of both soft limits, because an administrator may have set one between gateway and agent.
fn for_ranks(found: Rlimit, passed: Option<u64>) -> Rlimit {
    let current = [found.current, passed].into_iter().flatten().min();
    Rlimit { current, maximum: found.maximum }
}

/// About how many files a program has open besides its connections.
const OTHERS: u64 = 256;

/// The same limit, or a higher one if it is too low for a rank with a connection to each of `peers` others.
pub(crate) fn for_peers(limit: Rlimit, peers: u32) -> Rlimit {
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
