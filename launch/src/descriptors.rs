//! The soft limit of open files that ranks get: the one that the user has on the node, not what gateways and agents raise theirs to,
//! since a program that calls `select` breaks above 1024.

use hooks::open_files;
use rustix::process::Rlimit;
use tokio::process::Command;

/// In the environment of what a gateway starts: the soft limit that the gateway was started with. An environment reaches an
/// agent in the same ways as limits do: from parent to child, and with Slurm's `srun`, but not through ssh.
const BEFORE: &str = "LANDBRIDGE_OPEN_FILES";

/// Tells an agent that a gateway starts with this command which limit it would have without the gateway.
pub(crate) fn tell(command: &mut Command) {
    match open_files::before() {
        Some(before) => command.env(BEFORE, before.to_string()),
        // This gateway's own environment may have it, from a gateway around it.
        None => command.env_remove(BEFORE),
    };
}

/// Raises this process's soft limit to the hard one. Gives the limit that ranks are to have.
pub(crate) fn raise() -> Rlimit {
    let found = open_files::raise();
    for_ranks(found, std::env::var(BEFORE).ok().and_then(|text| text.parse().ok()))
}

/// The lower of both soft limits: an administrator may have set one between gateway and agent.
fn for_ranks(found: Rlimit, told: Option<u64>) -> Rlimit {
    let current = [found.current, told].into_iter().flatten().min();
    Rlimit { current, maximum: found.maximum }
}

/// Files that a program has open beside its connections, about.
const OTHERS: u64 = 256;

/// The same limit, or a higher one if a rank with a connection to each of so many others could not work by it.
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
        for (found, told, expected) in [
            (Some(4096), Some(1024), Some(1024)),
            (Some(256), Some(1024), Some(256)),
            (Some(1024), None, Some(1024)),
            (None, Some(1024), Some(1024)),
            (None, None, None),
        ] {
            assert_eq!(for_ranks(limit(found), told), limit(expected), "{found:?} {told:?}");
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
