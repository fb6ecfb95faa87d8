//! Log lines of the service that its callers cause, limited per caller ([`LogLines`]).

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use types::log_lines::{LogLines, Suppressed};

static LINES: LazyLock<(Instant, Mutex<LogLines>)> = LazyLock::new(|| (Instant::now(), Mutex::default()));

/// Returns `Some` if a line caused by a caller may be logged. `from`: `a hook`, or the caller's address, whose port
/// does not count.
pub(crate) fn may(from: &str) -> Option<Suppressed> {
    let (since, lines) = &*LINES;
    let peer = from.rsplit_once(':').map_or(from, |(address, _)| address);
    lines.lock().unwrap_or_else(PoisonError::into_inner).may(peer, since.elapsed())
}

#[cfg(test)]
mod tests {
    use types::log_lines::BURST;

    use super::*;

    #[test]
    fn a_caller_with_ever_new_ports_fills_no_disk() {
        let said = (1..2000).filter(|port| may(&format!("192.0.2.7:{port}")).is_some()).count();
        assert!((BURST as usize..1000).contains(&said), "{said}");
        assert!(may("[2001:db8::1]:7").is_some() && may("a hook").is_some());
    }
}
