//! Time limits and errors of the program's calls.

use std::time::Duration;

use thiserror::Error;

use crate::exchange::ExchangeError;

/// Time limit for the reason of an end to arrive after its effect, such as a lost connection.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

/// Reasons why a call has failed.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum CallError {
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("{what} has taken longer than {seconds} s")]
    Slow { what: String, seconds: f64 },
    /// The caller's own check has stopped the call.
    #[error("interrupted")]
    Interrupted,
}

/// A call's time limit, and the caller's check for stopping it early.
pub struct Patience<'a> {
    pub limit: Option<Duration>,
    /// Called several times a second; returns true to stop waiting.
    pub stop: &'a mut dyn FnMut() -> bool,
}
