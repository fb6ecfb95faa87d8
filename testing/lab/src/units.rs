//! Parses rates, delays and losses. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A rate in bits per second; 0 means "not limited".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(
    /// Bits per second.
    pub u64,
);

impl Rate {
    /// Not limited.
    pub const UNLIMITED: Rate = Rate(0);

    /// The time that `bytes` take at this rate, in nanoseconds; 0 if not limited.
    #[must_use]
    pub fn nanoseconds(self, bytes: u64) -> u64 {
        if self.0 == 0 {
            return 0;
        }
        u64::try_from(u128::from(bytes) * 8_000_000_000 / u128::from(self.0)).unwrap_or(u64::MAX)
    }

    /// The whole bytes that pass in `nanoseconds`; `u64::MAX` if not limited.
    #[must_use]
    pub fn bytes(self, nanoseconds: u64) -> u64 {
        if self.0 == 0 {
            return u64::MAX;
        }
        u64::try_from(u128::from(nanoseconds) * u128::from(self.0) / 8_000_000_000).unwrap_or(u64::MAX)
    }
}

/// A text that is not a rate, time or loss. The error quotes it and gives the correct form.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnitError {
    /// The text does not start with a number.
    #[error("{0:?} does not start with a number")]
    NoNumber(String),
    /// A rate with another unit, or none.
    #[error("rate {0:?}: use bit, kbit, mbit or gbit, for example 200mbit; 0 means no limit")]
    RateUnit(String),
    /// A rate above 1000 Gbit/s.
    #[error("rate {0:?} is more than 1000gbit")]
    TooFast(String),
    /// A rate below 1 bit/s that is not 0.
    #[error("rate {0:?} is less than 1bit")]
    TooSlow(String),
    /// A time with another unit, or none.
    #[error("time {0:?}: use ns, us, ms or s, for example 5ms")]
    TimeUnit(String),
    /// A time above 60 s.
    #[error("time {0:?} is more than 60s")]
    TooLong(String),
    /// A loss with a unit other than percent.
    #[error("loss {0:?}: use a percentage such as 0.5% or a fraction such as 0.005")]
    LossUnit(String),
    /// A loss of 100 % or more.
    #[error("loss {0:?} is not below 1: use a percentage below 100%, or a fraction below 1")]
    TooLossy(String),
}

fn split_number(text: &str) -> Result<(f64, &str), UnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| UnitError::NoNumber(text.to_owned()))?;
    Ok((number, unit.trim()))
}

/// Parses a rate: `200mbit`, `1gbit`, `9600bit`, `0` (not limited). A number other than 0 needs its unit.
///
/// # Errors
/// [`UnitError`], which quotes the text.
pub fn parse_rate(text: &str) -> Result<Rate, UnitError> {
    let (number, unit) = split_number(text)?;
    let scale = match unit.to_ascii_lowercase().as_str() {
        "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        "" if number == 0.0 => 1.0,
        _ => return Err(UnitError::RateUnit(text.to_owned())),
    };
    let bits = number * scale;
    if bits > 1e12 {
        return Err(UnitError::TooFast(text.to_owned()));
    }
    if number > 0.0 && bits < 1.0 {
        return Err(UnitError::TooSlow(text.to_owned()));
    }
    Ok(Rate(bits as u64))
}

/// Parses a time: `5ms`, `250us`, `1.5s`, `10ns`, `0`. A number other than 0 needs its unit. At most 60 s.
///
/// # Errors
/// [`UnitError`], which quotes the text.
pub fn parse_time(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split_number(text)?;
    let scale = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "" if number == 0.0 => 1.0,
        _ => return Err(UnitError::TimeUnit(text.to_owned())),
    };
    let seconds = number * scale;
    if seconds > 60.0 {
        return Err(UnitError::TooLong(text.to_owned()));
    }
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// Parses a loss: `0.5%`, or a fraction below 1 such as `0.005`.
///
/// # Errors
/// [`UnitError`], which quotes the text.
pub fn parse_loss(text: &str) -> Result<f64, UnitError> {
    let (number, unit) = split_number(text)?;
    let fraction = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return Err(UnitError::LossUnit(text.to_owned())),
    };
    if !(0.0..1.0).contains(&fraction) {
        return Err(UnitError::TooLossy(text.to_owned()));
    }
    Ok(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(parse_rate("200mbit"), Ok(Rate(200_000_000)));
        assert_eq!(parse_rate("1.5Gbit"), Ok(Rate(1_500_000_000)));
        assert_eq!(parse_rate("0"), Ok(Rate::UNLIMITED));
        for wrong in ["", "fast", "200", "200MB", "-1mbit", "9999gbit", "0.1bit"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Rate(1_000_000_000).nanoseconds(1538), 12_304);
        assert_eq!(Rate(1_000_000_000).bytes(12_304), 1538);
        assert_eq!(Rate::UNLIMITED.nanoseconds(u64::MAX), 0);
    }

    #[test]
    fn times() {
        assert_eq!(parse_time("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(parse_time("0.5us"), Ok(Duration::from_nanos(500)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for wrong in ["5", "ms", "61s", "-5ms", "5min"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn losses() {
        assert_eq!(parse_loss("0"), Ok(0.0));
        assert_eq!(parse_loss("0.5%"), Ok(0.005));
        assert_eq!(parse_loss("0.01"), Ok(0.01));
        for wrong in ["1", "5", "100%", "x", "-1%"] {
            assert!(parse_loss(wrong).is_err(), "{wrong}");
        }
    }
}
