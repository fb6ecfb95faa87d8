//! The soft limit on open files. Gateways and agents raise theirs: they have many connections and pipes, and the
//! default soft limit of most systems is low.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limits before the soft limit was raised.
static STARTED_WITH: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard one, for the whole process and the programs it starts. Returns the limits that the
/// process was started with.
pub fn raise() -> Rlimit {
    let found = getrlimit(Resource::Nofile);
    // Only the first time: a second gateway in this process would find the limits that the first one raised.
    let before = *STARTED_WITH.get_or_init(|| found);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: found.maximum, maximum: found.maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, limit = found.current, "cannot raise the limit on open files");
    }
    before
}

/// The soft limit that this process was started with, if there was one and it has been raised since. Programs that call
/// `select` break above 1024, so programs that a gateway starts need to know it.
pub fn before() -> Option<u64> {
    STARTED_WITH.get()?.current
}

/// Number of files that this process may open.
pub fn allowed() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let found = getrlimit(Resource::Nofile);
        assert_eq!(raise(), found);
        assert_eq!(raise(), found, "not what was raised");
        assert_eq!(before(), found.current);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(allowed(), limit.maximum.unwrap_or(u64::MAX));
    }
}
