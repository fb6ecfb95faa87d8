//! The number of TCP connections of a trunk.

use std::time::Duration;

/// A sites file's setting for the TCP connections of a gateway's trunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// This number.
    Fixed(u16),
    /// As many as the round trip requires. A connection's bytes in flight are limited by the kernel's buffers, 3 to 4
    /// MB by default: at 1 Gbit/s that suffices for a round trip of 25 ms, and a longer one needs several connections.
    ByRoundTrip,
}

impl Links {
    const ROUND_TRIP_OF_ONE: Duration = Duration::from_millis(25);
    const MOST_BY_ROUND_TRIP: u16 = 8;

    /// Combines the settings of a trunk's two gateways: the smaller fixed number, or [`Links::ByRoundTrip`] if both use
    /// it.
    pub fn with(self, other: Links) -> Links {
        match (self, other) {
            (Links::Fixed(one), Links::Fixed(two)) => Links::Fixed(one.min(two)),
            (Links::ByRoundTrip, other) => other,
            (fixed, Links::ByRoundTrip) => fixed,
        }
    }

    /// The largest possible number.
    pub fn most(self) -> u16 {
        match self {
            Links::Fixed(links) => links,
            Links::ByRoundTrip => Links::MOST_BY_ROUND_TRIP,
        }
    }

    /// The number of links to have at this round-trip time. Pass zero while the round trip is unknown.
    pub fn wanted(self, round_trip: Duration) -> u16 {
        match self {
            Links::Fixed(links) => links,
            Links::ByRoundTrip => {
                let needed = round_trip.as_micros().div_ceil(Links::ROUND_TRIP_OF_ONE.as_micros());
                needed.clamp(1, u128::from(Links::MOST_BY_ROUND_TRIP)) as u16
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_way_has_more() {
        let wanted = |milliseconds| Links::ByRoundTrip.wanted(Duration::from_millis(milliseconds));
        assert_eq!([0, 1, 25, 26, 100, 101, 200, 5000].map(wanted), [1, 1, 1, 2, 4, 5, 8, 8]);
        assert_eq!(Links::Fixed(3).wanted(Duration::from_secs(1)), 3);
        assert_eq!((Links::ByRoundTrip.most(), Links::Fixed(64).most()), (8, 64));
    }

    #[test]
    fn both_ends_have_a_say() {
        let (two, five, any) = (Links::Fixed(2), Links::Fixed(5), Links::ByRoundTrip);
        assert_eq!([two.with(five), five.with(two), any.with(five), five.with(any)], [two, two, five, five]);
        assert_eq!(any.with(any), any);
    }
}
