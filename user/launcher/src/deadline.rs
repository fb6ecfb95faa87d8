//! Time limits of sessions without agents, and waiting for an optional deadline.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Time limit for opening a coupling's or a forward's job at all its sites, on a machine that is not overloaded.
pub(crate) const OPEN: Duration = Duration::from_secs(10);
/// Time limit for gateways to close it.
pub(crate) const CLOSE: Duration = Duration::from_secs(2);

/// Ends at the deadline; without one, never. Cancel-safe.
pub(crate) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
