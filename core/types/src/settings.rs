//! Environment variables by which users change how ranks work: their names, and the values that they accept.
//!
//! `docs/run.md` explains them. The rank, the agent, `run` and `doctor` all read the values here, so a wrong one is
//! refused before a job starts. An empty value means the default, everywhere.

use std::time::Duration;

use thiserror::Error;

use crate::quantity::parse_bytes;
use crate::untrusted::UntrustedText;

/// Time that a waiting rank polls before it naps: see [`Spin`].
pub const SPIN: &str = "LANDBRIDGE_SPIN";
/// The cores of each rank: see [`Binding`].
pub const BIND: &str = "LANDBRIDGE_BIND";
/// The source of collective operations across sites: see [`Collectives`].
pub const COLLECTIVES: &str = "LANDBRIDGE_COLLECTIVES";
/// Whether a send completes only when the receiver has the message: `yes` or `no`.
pub const CONFIRM_SENDS: &str = "LANDBRIDGE_CONFIRM_SENDS";
/// Sizes of messages: see `EndpointLimits` of the crate `endpoint`.
pub const EAGER: &str = "LANDBRIDGE_EAGER";
pub const EAGER_REMOTE: &str = "LANDBRIDGE_EAGER_REMOTE";
pub const EAGER_MEMORY: &str = "LANDBRIDGE_EAGER_MEMORY";
pub const SINGLE_COPY: &str = "LANDBRIDGE_SINGLE_COPY";
pub const INJECT: &str = "LANDBRIDGE_INJECT";
pub const UNEXPECTED: &str = "LANDBRIDGE_UNEXPECTED";

/// The variables whose values are sizes.
const SIZES: [&str; 6] = [EAGER, EAGER_REMOTE, EAGER_MEMORY, SINGLE_COPY, INJECT, UNEXPECTED];

/// Largest value of [`INJECT`], in bytes.
pub const MOST_INJECT: u64 = 16 << 10;

/// A value that its variable does not accept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}={value}: give {accepted}")]
pub struct SettingError {
    pub name: &'static str,
    pub value: UntrustedText,
    /// The accepted values, in words.
    pub accepted: &'static str,
}

fn wrong(name: &'static str, value: &str, accepted: &'static str) -> SettingError {
    SettingError { name, value: value.into(), accepted }
}

/// A value of [`SPIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// For this time.
    For(Duration),
    /// Until there is something: never nap.
    Always,
}

/// A value of [`BIND`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// An equal share of the node's cores.
    #[default]
    Share,
    /// One core, with all its threads.
    Core,
    /// All of the node.
    None,
}

/// A value of [`COLLECTIVES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collectives {
    /// Landbridge's, where a communicator spans several sites.
    #[default]
    Auto,
    /// Landbridge's, except reductions.
    Exact,
    /// The MPI library's own.
    Native,
}

/// Reads a value of [`SPIN`].
///
/// # Errors
/// The value is neither a number nor `always`.
pub fn spin(value: &str) -> Result<Spin, SettingError> {
    match value.parse() {
        _ if value == "always" => Ok(Spin::Always),
        Ok(micros) => Ok(Spin::For(Duration::from_micros(micros))),
        Err(_) => Err(wrong(SPIN, value, "microseconds, such as 100, or `always`")),
    }
}

/// Reads a value of [`BIND`].
///
/// # Errors
/// The value is unknown.
pub fn binding(value: &str) -> Result<Binding, SettingError> {
    match value {
        "" | "share" => Ok(Binding::Share),
        "core" => Ok(Binding::Core),
        "none" => Ok(Binding::None),
        _ => {
            let accepted =
                "`share` (each rank gets an equal share of the node's cores), `core` (one core each) or `none`";
            Err(wrong(BIND, value, accepted))
        }
    }
}

/// Reads a value of [`COLLECTIVES`].
///
/// # Errors
/// The value is unknown.
pub fn collectives(value: &str) -> Result<Collectives, SettingError> {
    match value {
        "" | "auto" => Ok(Collectives::Auto),
        "exact" => Ok(Collectives::Exact),
        "native" => Ok(Collectives::Native),
        _ => Err(wrong(COLLECTIVES, value, "`auto`, `exact` or `native`")),
    }
}

/// Reads a value of [`CONFIRM_SENDS`].
///
/// # Errors
/// The value is neither `yes` nor `no`.
pub fn confirm_sends(value: &str) -> Result<bool, SettingError> {
    match value {
        "" | "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(wrong(CONFIRM_SENDS, value, "yes or no")),
    }
}

/// Reads the value of a variable that is a size, in bytes.
///
/// # Errors
/// The value is not a size, or is too large for [`INJECT`].
pub fn size(name: &'static str, value: &str) -> Result<u64, SettingError> {
    let (most, accepted) = match name {
        INJECT => (MOST_INJECT, "a size of at most 16KiB, such as 4KiB"),
        _ => (u64::MAX, "a size such as 4096, 64KiB, 256MiB or 2GB"),
    };
    parse_bytes(value).ok().filter(|bytes| *bytes <= most).ok_or_else(|| wrong(name, value, accepted))
}

/// Checks the value of any variable: one that is not listed here accepts all.
///
/// # Errors
/// The variable does not accept the value.
pub fn check(name: &str, value: &str) -> Result<(), SettingError> {
    match name {
        _ if value.is_empty() => Ok(()),
        SPIN => spin(value).map(drop),
        BIND => binding(value).map(drop),
        COLLECTIVES => collectives(value).map(drop),
        CONFIRM_SENDS => confirm_sends(value).map(drop),
        _ => SIZES.iter().find(|known| **known == name).map_or(Ok(()), |known| size(known, value).map(drop)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        assert_eq!(spin("250"), Ok(Spin::For(Duration::from_micros(250))));
        assert_eq!(spin("always"), Ok(Spin::Always));
        assert_eq!((binding("core"), binding("")), (Ok(Binding::Core), Ok(Binding::Share)));
        assert_eq!((collectives("exact"), collectives("")), (Ok(Collectives::Exact), Ok(Collectives::Auto)));
        assert_eq!((confirm_sends("no"), confirm_sends("")), (Ok(false), Ok(true)));
        assert_eq!((size(INJECT, "16KiB"), size(EAGER, "1GiB")), (Ok(MOST_INJECT), Ok(1 << 30)));
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_accepted() {
        for (name, value, accepted) in [
            (SPIN, "often", "give microseconds, such as 100, or `always`"),
            (SPIN, "-1", "give microseconds"),
            (BIND, "socket", "give `share` (each"),
            (COLLECTIVES, "mine", "give `auto`, `exact` or `native`"),
            (CONFIRM_SENDS, "maybe", "give yes or no"),
            (EAGER, "64KB/s", "give a size such as"),
            (EAGER_REMOTE, "-1", "give a size such as"),
            (EAGER_MEMORY, "much", "give a size such as"),
            (SINGLE_COPY, "off", "give a size such as"),
            (UNEXPECTED, "1e99", "give a size such as"),
            (INJECT, "17KiB", "give a size of at most 16KiB"),
        ] {
            let error = check(name, value).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}={value}: {accepted}")), "{error}");
            assert_eq!(check(name, ""), Ok(()), "{name}: an empty value is the default");
        }
        assert_eq!(check("PATH", "often"), Ok(()));
        assert!(check(EAGER, &"x".repeat(100_000)).unwrap_err().to_string().len() < 1000);
    }
}
