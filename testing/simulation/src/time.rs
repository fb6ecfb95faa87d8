use std::fmt;
use std::ops::{Add, Sub};

/// A moment of virtual time, or a span of it: whole nanoseconds, so that equal runs are equal to the last bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of every simulation.
    pub const ZERO: Time = Time(0);
    /// Later than any event.
    pub const NEVER: Time = Time(u64::MAX);

    /// A time from seconds, rounded to the nearest nanosecond. Negative values and NaN become zero, values too large
    /// become [`Time::NEVER`].
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Time {
        // A cast from float to integer saturates.
        Time((seconds * 1e9).round() as u64)
    }

    /// A time from whole nanoseconds.
    #[must_use]
    pub const fn from_nanoseconds(nanoseconds: u64) -> Time {
        Time(nanoseconds)
    }

    /// The time in seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time in nanoseconds.
    #[must_use]
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }
}

impl Add for Time {
    type Output = Time;

    fn add(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0))
    }
}

/// Saturates at zero.
impl Sub for Time {
    type Output = Time;

    fn sub(self, other: Time) -> Time {
        Time(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} s", self.seconds())
    }
}
