//! Quantities as people write them: sizes (`256MiB`), rates (`1gbit`), durations (`5ms`).

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// A text that is not the expected quantity.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not {expected}")]
pub struct QuantityError {
    /// The rejected text.
    pub text: String,
    /// The accepted forms, with an example.
    pub expected: &'static str,
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn scaled(text: &str, units: &[(&str, f64)], expected: &'static str) -> Result<f64, QuantityError> {
    let error = || QuantityError { text: text.to_owned(), expected };
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| error())?;
    let unit = unit.to_ascii_lowercase();
    let factor = units.iter().find(|(name, _)| *name == unit).ok_or_else(error)?.1;
    Ok(number * factor)
}

/// Reads a size in bytes: `4096`, `64KiB`, `1.5GiB`, `2MB` (decimal).
///
/// # Errors
/// The text is not a number with one of these units, or the size exceeds 2⁶³ bytes.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    const EXPECTED: &str = "a size such as 4096, 64KiB, 256MiB or 2GB";
    let units = [
        ("", 1.0),
        ("b", 1.0),
        ("k", 1024.0),
        ("kib", 1024.0),
        ("m", 1_048_576.0),
        ("mib", 1_048_576.0),
        ("g", 1_073_741_824.0),
        ("gib", 1_073_741_824.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
    ];
    let bytes = scaled(text, &units, EXPECTED)?;
    if bytes >= 9.2e18 {
        return Err(QuantityError { text: text.to_owned(), expected: EXPECTED });
    }
    Ok(bytes as u64)
}

/// Reads a rate in bits per second: `200mbit`, `1gbit`, `0` (which callers treat as "unlimited").
///
/// # Errors
/// The text is not a number with one of the units bit, kbit, mbit, gbit, or the rate exceeds 10¹⁵ bits per second.
pub fn parse_rate(text: &str) -> Result<u64, QuantityError> {
    const EXPECTED: &str = "a rate such as 200mbit or 1gbit";
    let units = [("", 1.0), ("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let bits = scaled(text, &units, EXPECTED)?;
    if bits > 1e15 {
        return Err(QuantityError { text: text.to_owned(), expected: EXPECTED });
    }
    Ok(bits as u64)
}

/// Reads a rate in bytes per second: `50MB/s`, `1.5GiB/s`; or in bits: `400mbit`.
///
/// # Errors
/// The text is neither, or the rate is below one byte per second.
pub fn parse_byte_rate(text: &str) -> Result<u64, QuantityError> {
    const EXPECTED: &str = "a rate such as 50MB/s, 64MiB/s or 400mbit";
    let error = || QuantityError { text: text.to_owned(), expected: EXPECTED };
    let bytes = match text.trim().strip_suffix("/s") {
        Some(size) => parse_bytes(size).ok(),
        None => parse_rate(text).ok().filter(|_| text.trim().ends_with("bit")).map(|bits| bits / 8),
    };
    bytes.filter(|bytes| *bytes > 0).ok_or_else(error)
}

/// Reads a duration: `5ms`, `250us`, `1.5s`, `10min`, `2h`, `0`.
///
/// # Errors
/// The text is not a number with one of the units ns, us, ms, s, min, h, or it exceeds 10⁹ seconds.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    const EXPECTED: &str = "a duration such as 5ms, 1.5s, 10min or 2h";
    let (number, unit) = split(text);
    if unit.is_empty() && number.parse::<f64>().is_ok_and(|n| n == 0.0) {
        return Ok(Duration::ZERO);
    }
    let seconds =
        scaled(text, &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)], EXPECTED)?;
    if seconds > 1e9 {
        return Err(QuantityError { text: text.to_owned(), expected: EXPECTED });
    }
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// A number of things, for messages: `1 node`, `2 nodes`. `thing`: a noun whose plural ends in s.
pub fn counted(number: impl fmt::Display, thing: &str) -> String {
    let number = number.to_string();
    let ending = if number == "1" { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_counted() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "rank")), ["0 ranks", "1 rank", "2 ranks"]);
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("64KiB"), Ok(65536));
        assert_eq!(parse_bytes("1.5GiB"), Ok(1_610_612_736));
        assert_eq!(parse_bytes("2MB"), Ok(2_000_000));
        for bad in ["", "x", "5 parsecs", "-1", "1e40", "99999999999999999999"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_and_durations() {
        assert_eq!(parse_rate("200mbit"), Ok(200_000_000));
        assert_eq!(parse_rate("1gbit"), Ok(1_000_000_000));
        assert_eq!(parse_byte_rate("50MB/s"), Ok(50_000_000));
        assert_eq!(parse_byte_rate("400mbit"), Ok(50_000_000));
        for bad in ["", "0", "0MB/s", "50", "50MB", "7bit", "-1MB/s", "fast"] {
            assert!(parse_byte_rate(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_duration("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7200)));
        assert!(parse_duration("5").is_err());
        assert!(parse_rate("fast").is_err());
        assert!(parse_rate("99999999999999999999gbit").is_err(), "not the most a number can hold");
    }
}
