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
    #[error("{0}, or `none`")]
    Limit(QuantityError),
    #[error("it has passed already: give a time from now")]
    Deadline,
    #[error("`{0}` is no number from 0 to 100")]
    Harm(String),
    #[error("{0} bytes: it must be from 4KiB to 1GiB")]
    Block(u64),
    #[error("give a number from 0 to 100")]
    Percent,
    #[error("give 512MiB or more: a mover has several blocks in memory")]
    UserMemory,
    #[cfg(feature = "top")]
    #[error("`{0}` is not from 100ms to 1h")]
    Interval(String),
}
