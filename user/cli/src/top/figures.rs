//! Formats figures: short, and of equal width for values of similar size.

/// Placeholder for an unknown value.
pub(super) const NOTHING: &str = "–";

/// Millions of bits per second.
pub(super) fn megabits(rate: Option<f64>) -> String {
    match rate {
        None => NOTHING.to_owned(),
        // Heartbeats count as zero.
        Some(rate) if rate < 0.005 => "0".to_owned(),
        Some(rate) if rate < 10.0 => format!("{rate:.2}"),
        Some(rate) if rate < 1000.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// A count per second.
pub(super) fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => NOTHING.to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// An elapsed time.
pub(super) fn span(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if days > 0 => format!("{days} d {} h", hours % 24),
        () if hours > 0 => format!("{hours} h {} min", minutes % 60),
        () if minutes > 0 => format!("{minutes} min {} s", seconds % 60),
        () => format!("{seconds} s"),
    }
}

/// A round trip.
pub(super) fn milliseconds(microseconds: Option<u64>) -> String {
    microseconds.map_or_else(|| NOTHING.to_owned(), |time| format!("{:.2}", time as f64 / 1e3))
}

/// The used part of a limit, as a bar of `width` characters.
pub(super) fn bar(used: u64, limit: u64, width: usize) -> String {
    let part = if limit == 0 { 0.0 } else { (used as f64 / limit as f64).clamp(0.0, 1.0) };
    // A non-zero value is never shown as zero.
    let full = ((part * width as f64).round() as usize).clamp(usize::from(used > 0), width);
    "█".repeat(full) + &"░".repeat(width - full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let rates = [None, Some(0.0), Some(0.004), Some(9.5), Some(940.04), Some(25_000.4)].map(megabits);
        assert_eq!(rates, ["–", "0", "0", "9.50", "940.0", "25000"]);
        assert_eq!([None, Some(0.0), Some(0.5), Some(1234.5)].map(per_second), ["–", "0", "0.5", "1234"]);
        let spans = [999, 59_000, 61_000, 3_660_000, 90_000_000].map(span);
        assert_eq!(spans, ["0 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
        assert_eq!([None, Some(5134)].map(milliseconds), ["–", "5.13"]);
    }

    #[test]
    fn a_bar_is_as_wide_as_asked() {
        assert_eq!(bar(0, 100, 4), "░░░░");
        assert_eq!(bar(1, 1 << 40, 4), "█░░░");
        assert_eq!(bar(50, 100, 4), "██░░");
        assert_eq!(bar(900, 100, 4), "████");
        assert_eq!(bar(5, 0, 4), "█░░░");
    }
}
