//! The lateness of the emulator's deliveries. A benchmark whose 99th percentile exceeds a tenth of the delay should be
//! rejected.

use serde::{Deserialize, Serialize};

/// A histogram with four buckets per power of two, so that a percentile is accurate to within 25 %.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lateness {
    /// Deliveries counted.
    pub deliveries: u64,
    /// Half of all deliveries were at most this late, in nanoseconds.
    pub p50_ns: u64,
    /// 99 % of all deliveries were at most this late, in nanoseconds.
    pub p99_ns: u64,
    /// The worst delivery, in nanoseconds.
    pub worst_ns: u64,
    /// Pairs of upper bound (ns) and count, for buckets that are not empty.
    pub buckets: Vec<(u64, u64)>,
}

const BUCKETS: usize = 256;

#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: [u64; BUCKETS],
    worst: u64,
}

fn bucket(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros() as usize;
    exponent * 4 + ((value >> (exponent - 2)) & 3) as usize
}

/// The largest value of a bucket.
fn upper(index: usize) -> u64 {
    if index < 4 {
        return index as u64;
    }
    let (exponent, quarter) = (index / 4, index as u64 % 4);
    (1u64 << exponent) + ((quarter + 1) << (exponent - 2)) - 1
}

impl Histogram {
    pub(super) fn new() -> Histogram {
        Histogram { counts: [0; BUCKETS], worst: 0 }
    }

    pub(super) fn add(&mut self, nanoseconds: u64) {
        // Above 2^61 ns (73 years) all values count as one.
        let nanoseconds = nanoseconds.min(1 << 61);
        self.counts[bucket(nanoseconds)] += 1;
        self.worst = self.worst.max(nanoseconds);
    }

    pub(super) fn report(&self) -> Lateness {
        let deliveries = self.counts.iter().sum();
        let percentile = |percent: u64| {
            let mut seen = 0;
            for (index, count) in self.counts.iter().enumerate() {
                seen += count;
                if seen > 0 && seen * 100 >= deliveries * percent {
                    return upper(index).min(self.worst);
                }
            }
            0
        };
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Lateness {
            deliveries,
            p50_ns: percentile(50),
            p99_ns: percentile(99),
            worst_ns: self.worst,
            buckets: used.map(|(index, count)| (upper(index), *count)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in (0..5000).chain([1 << 20, (1 << 40) + 12345, 1 << 61]) {
            let index = bucket(value);
            assert!(value <= upper(index), "{value}");
            assert!(value < 4 || upper(index) <= value + value / 4, "{value}");
        }
    }

    #[test]
    fn percentiles() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.report(), Lateness::default());
        for _ in 0..98 {
            histogram.add(1000);
        }
        histogram.add(1_000_000);
        histogram.add(u64::MAX);
        let report = histogram.report();
        assert_eq!(report.deliveries, 100);
        assert!((1000..=1250).contains(&report.p50_ns), "{report:?}");
        assert!((1_000_000..=1_250_000).contains(&report.p99_ns), "{report:?}");
        assert_eq!(report.worst_ns, 1 << 61);
        assert_eq!(report.buckets.len(), 3);
    }
}
