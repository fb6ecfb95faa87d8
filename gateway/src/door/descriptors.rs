//! Descriptors: a gateway has one for each connection, and most systems give a program few unless it asks.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit before it was raised; `None` inside: no limit.
static STARTED_WITH: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the soft limit to the hard one, for the whole process and what it starts.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    // Only the first time: a second gateway in this process would find what the first one raised.
    STARTED_WITH.get_or_init(|| limit.current);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, limit = limit.current, "the limit of open files cannot be raised");
    }
}

/// The soft limit of open files that this process was started with, if a gateway has raised it since. Programs that call
/// `select` break above 1024, so what a gateway starts needs to know.
pub fn open_files_before() -> Option<u64> {
    STARTED_WITH.get().copied().flatten()
}

/// How many this process may have.
pub(crate) fn allowed() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let before = getrlimit(Resource::Nofile).current;
        raise();
        raise();
        assert_eq!(open_files_before(), before);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(allowed(), limit.maximum.unwrap_or(u64::MAX));
    }
}
