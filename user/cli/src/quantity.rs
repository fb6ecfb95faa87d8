//! Quantities for people: sizes and times.

/// Bytes in decimal units, which rates of disks and networks are given in.
pub(crate) fn decimal(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} bytes"),
        1000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{} MB", megabytes(bytes)),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Millions of bytes, without the unit.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// The units of powers of 1024.
const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A value below `limit` in the unit that suits it. `limit` is at most 1024.
fn scaled(size: f64, limit: f64) -> (f64, usize) {
    let (mut value, mut unit) = (size, 0);
    while value >= limit && unit + 1 < BINARY.len() {
        value /= 1024.0;
        unit += 1;
    }
    (value, unit)
}

/// Bytes in powers of 1024, with one decimal so that columns align.
#[cfg_attr(not(feature = "top"), allow(dead_code))] // Only `top` has such columns.
pub(crate) fn binary(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (value, unit) = scaled(bytes as f64 / 1024.0, 1023.95);
    format!("{value:.1} {}", BINARY[(unit + 1).min(BINARY.len() - 1)])
}

/// A size or a rate in powers of 1024, with about three digits.
pub(crate) fn binary_digits(size: f64) -> String {
    let (value, unit) = scaled(size, 999.5);
    let digits = if unit == 0 || value >= 99.95 || value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", BINARY[unit])
}

/// A running time, in the largest unit of which there are at least two.
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_that_suits() {
        let sizes = [0, 1023, 1024, 64 << 20, (1 << 30) - 1, u64::MAX].map(binary);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "64.0 MiB", "1.0 GiB", "16.0 EiB"]);
        assert_eq!([999, 1500, 2_500_000, 7_000_000_000].map(decimal), ["999 bytes", "1.5 kB", "2.5 MB", "7.00 GB"]);
        assert_eq!([512.0, 1000.0, 2048.0, 1e6].map(binary_digits), ["512 B", "1.0 KiB", "2 KiB", "977 KiB"]);
        assert_eq!([7, 4600, 8000, 200_000].map(duration), ["7 s", "76 min", "2 h", "2 d"]);
    }
}
