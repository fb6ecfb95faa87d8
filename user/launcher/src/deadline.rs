//! Waiting for a deadline that there may not be.

use tokio::time::{Instant, sleep_until};

/// Ends at the deadline; without one, never. Cancel-safe.
pub(crate) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
