//! The error of options whose value is wrong.

use thiserror::Error;
use types::quantity::QuantityError;

/// A value that its option does not accept.
#[derive(Debug, Error)]
pub(crate) enum ArgumentError {
    #[error("`{0}` is not NAME=N or NAME=N:PROGRAM, such as lyon=4 or lyon=4:./solver-avx512")]
    Share(String),
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    #[error("`{0}` is neither a rank's number nor `all` nor `none`")]
    Input(String),
    #[error("give a number from 0 to 100")]
    Percent,
    #[error("give 512MiB or more: a mover has several blocks in memory")]
    UserMemory,
    #[cfg(feature = "top")]
    #[error("`{0}` is not from 100ms to 1h")]
    Interval(String),
}
