//! One direction between two sites: decides if and when a packet is delivered. Pure: time and randomness are passed in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::Rate;

/// The most bytes in flight on a link, with or without a rate limit.
const MOST_IN_FLIGHT: u64 = 256 << 20;

/// The settings of one direction between two sites.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkSettings {
    /// One-way delay after the last bit was sent.
    #[serde(rename = "delay_ns", with = "as_nanoseconds")]
    pub delay: Duration,
    /// Random addition to the delay, uniform from 0 to this value, without overtaking.
    #[serde(rename = "jitter_ns", with = "as_nanoseconds")]
    pub jitter: Duration,
    /// Probability that a segment is lost, 0 ≤ loss < 1 (1 would be `down`).
    pub loss: f64,
    /// Rate of this direction; 0 is not limited.
    #[serde(rename = "rate_bits_per_second")]
    pub rate: Rate,
    /// The most bytes queued; `None` derives it from rate and delay.
    pub queue_bytes: Option<u64>,
    /// True if nothing passes.
    pub down: bool,
}

mod as_nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(super::nanoseconds(*duration))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
}

impl LinkSettings {
    /// The most bytes that may be queued.
    #[must_use]
    pub fn queue(&self) -> u64 {
        let longest = (2 * nanoseconds(self.delay)).max(20_000_000);
        self.queue_bytes.unwrap_or_else(|| self.rate.bytes(longest).max(256 << 10))
    }
}

/// Counts of the traffic offered, sent and lost. A segment is one frame on a real wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Packets offered, super-packets counted once.
    pub packets: u64,
    /// Segments offered.
    pub segments: u64,
    /// Bytes on the wire of the segments that were sent, with 38 bytes of framing each.
    pub wire_bytes: u64,
    /// Segments lost by chance.
    pub lost_segments: u64,
    /// Segments refused because the queue was full.
    pub queue_segments: u64,
    /// Segments refused because the link was down.
    pub down_segments: u64,
}

/// The size of a packet on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub segments: u32,
    pub wire_bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Deliver the segments in these ranges at this time (ns); an empty list means all segments.
    Deliver {
        due: u64,
        survivors: Vec<std::ops::Range<u32>>,
    },
    Drop,
}

/// A source of randomness: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(pub u64);

impl SplitMix64 {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[derive(Debug, Clone)]
pub(crate) struct EmulatedLink {
    pub settings: LinkSettings,
    pub counters: Counters,
    /// Time at which the last bit accepted so far will have been sent.
    free_at: u64,
    /// The latest scheduled arrival so far; nothing arrives before it.
    last_due: u64,
    in_flight: u64,
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl EmulatedLink {
    pub(super) fn new(settings: LinkSettings) -> EmulatedLink {
        EmulatedLink { settings, counters: Counters::default(), free_at: 0, last_due: 0, in_flight: 0 }
    }

    /// Offers a packet to the link at time `now` (ns of any clock that does not go back).
    pub(super) fn offer(&mut self, now: u64, size: Size, random: &mut SplitMix64) -> Verdict {
        let settings = self.settings;
        let counters = &mut self.counters;
        let segments = u64::from(size.segments);
        counters.packets += 1;
        counters.segments += segments;
        if settings.down {
            counters.down_segments += segments;
            return Verdict::Drop;
        }
        let start = self.free_at.max(now);
        let waiting = if settings.rate == Rate::UNLIMITED { 0 } else { settings.rate.bytes(start - now) };
        let full =
            settings.rate != Rate::UNLIMITED && waiting + size.wire_bytes > settings.queue().max(size.wire_bytes);
        if full || self.in_flight + size.wire_bytes > MOST_IN_FLIGHT {
            counters.queue_segments += segments;
            return Verdict::Drop;
        }
        self.free_at = start + settings.rate.nanoseconds(size.wire_bytes);
        counters.wire_bytes += size.wire_bytes;
        let survivors = if settings.loss > 0.0 {
            let survivors = survivors(size.segments, || random.unit() < settings.loss);
            let alive: u64 = survivors.iter().map(|range| u64::from(range.end - range.start)).sum();
            counters.lost_segments += segments - alive;
            if alive == 0 {
                return Verdict::Drop;
            }
            if alive == segments { Vec::new() } else { survivors }
        } else {
            Vec::new()
        };
        let jitter = match nanoseconds(settings.jitter) {
            0 => 0,
            most => random.next() % (most + 1),
        };
        self.last_due = self.last_due.max(self.free_at + nanoseconds(settings.delay) + jitter);
        self.in_flight += size.wire_bytes;
        Verdict::Deliver { due: self.last_due, survivors }
    }

    /// Notes that a packet of this size has arrived.
    pub(super) fn delivered(&mut self, wire_bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(wire_bytes);
    }

    /// Changes the settings. Packets already in flight arrive as scheduled, and no later packet overtakes them even
    /// with a shorter delay.
    pub(super) fn change(&mut self, settings: LinkSettings) {
        self.settings = settings;
    }
}

/// The runs of segments that are not lost.
fn survivors(segments: u32, mut lost: impl FnMut() -> bool) -> Vec<std::ops::Range<u32>> {
    let mut runs: Vec<std::ops::Range<u32>> = Vec::new();
    for segment in 0..segments {
        if lost() {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == segment => run.end += 1,
            _ => runs.push(segment..segment + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn settings() -> LinkSettings {
        LinkSettings {
            delay: Duration::from_millis(5),
            jitter: Duration::ZERO,
            loss: 0.0,
            rate: Rate(1_000_000_000),
            queue_bytes: None,
            down: false,
        }
    }

    fn one(wire_bytes: u64) -> Size {
        Size { segments: 1, wire_bytes }
    }

    fn due(verdict: Verdict) -> u64 {
        match verdict {
            Verdict::Deliver { due, .. } => due,
            Verdict::Drop => panic!("dropped"),
        }
    }

    #[test]
    fn departures_are_spaced_by_the_rate_and_shifted_by_the_delay() {
        let mut link = EmulatedLink::new(settings());
        let mut random = SplitMix64(1);
        let times: Vec<u64> = (0..3).map(|_| due(link.offer(MS, one(1250), &mut random))).collect();
        assert_eq!(times, [6 * MS + 10_000, 6 * MS + 20_000, 6 * MS + 30_000]);
        assert_eq!(due(link.offer(100 * MS, one(1250), &mut random)), 105 * MS + 10_000, "an idle link has no debt");
    }

    #[test]
    fn a_full_queue_drops_the_tail_and_counts_it() {
        let mut link = EmulatedLink::new(LinkSettings { queue_bytes: Some(3000), ..settings() });
        let mut random = SplitMix64(1);
        let passed = (0..5).filter(|_| link.offer(0, one(1000), &mut random) != Verdict::Drop).count();
        assert_eq!(passed, 3);
        assert_eq!(link.counters.queue_segments, 2);
        assert_eq!(link.counters.wire_bytes, 3000);
        assert_ne!(link.offer(8_000, one(1000), &mut random), Verdict::Drop, "one has left after 8 µs");
    }

    #[test]
    fn a_super_packet_larger_than_the_queue_passes_an_idle_link() {
        let mut link = EmulatedLink::new(LinkSettings { queue_bytes: Some(1000), ..settings() });
        let size = Size { segments: 40, wire_bytes: 60_000 };
        assert_ne!(link.offer(0, size, &mut SplitMix64(1)), Verdict::Drop);
        assert_eq!(link.offer(0, size, &mut SplitMix64(1)), Verdict::Drop);
    }

    #[test]
    fn without_a_rate_only_the_bound_on_flight_drops() {
        let mut link = EmulatedLink::new(LinkSettings { rate: Rate::UNLIMITED, ..settings() });
        let mut random = SplitMix64(1);
        let size = one(64 << 20);
        let passed = (0..6).filter(|_| link.offer(0, size, &mut random) != Verdict::Drop).count();
        assert_eq!(passed, 4);
        link.delivered(64 << 20);
        assert_ne!(link.offer(0, size, &mut random), Verdict::Drop);
    }

    #[test]
    fn jitter_never_reorders_and_stays_in_its_bounds() {
        let mut link = EmulatedLink::new(LinkSettings { jitter: Duration::from_millis(3), ..settings() });
        let mut random = SplitMix64(7);
        let mut last = 0;
        let mut spread = std::collections::BTreeSet::new();
        for i in 0..1000 {
            let now = i * 10 * MS;
            let at = due(link.offer(now, one(125), &mut random));
            assert!(at >= last);
            last = at;
            let extra = at - now - 5 * MS - 1000;
            assert!(extra <= 3 * MS);
            spread.insert(extra / MS);
        }
        assert!(spread.len() >= 3, "{spread:?}");
        let first = due(link.offer(last, one(125), &mut random));
        link.change(settings());
        assert!(due(link.offer(last, one(125), &mut random)) >= first);
    }

    #[test]
    fn loss_hits_segments_not_packets_and_is_counted() {
        let mut link = EmulatedLink::new(LinkSettings { loss: 0.1, rate: Rate::UNLIMITED, ..settings() });
        let mut random = SplitMix64(3);
        let mut arrived = 0;
        for i in 0..1000 {
            let size = Size { segments: 10, wire_bytes: 100 };
            match link.offer(i * MS, size, &mut random) {
                Verdict::Deliver { survivors, .. } if survivors.is_empty() => arrived += 10,
                Verdict::Deliver { survivors, .. } => arrived += survivors.iter().map(|r| r.len() as u64).sum::<u64>(),
                Verdict::Drop => {}
            }
            link.delivered(100);
        }
        assert_eq!(arrived + link.counters.lost_segments, 10_000);
        assert!((800..1200).contains(&link.counters.lost_segments), "{:?}", link.counters);
    }

    #[test]
    fn survivors_are_maximal_runs() {
        let mut losses = [true, false, false, true, false].into_iter();
        assert_eq!(survivors(5, || losses.next().unwrap_or(true)), [1..3, 4..5]);
    }

    #[test]
    fn a_link_that_is_down_passes_nothing_and_says_so() {
        let mut link = EmulatedLink::new(LinkSettings { down: true, ..settings() });
        let size = Size { segments: 4, wire_bytes: 6000 };
        assert_eq!(link.offer(0, size, &mut SplitMix64(1)), Verdict::Drop);
        assert_eq!(link.counters.down_segments, 4);
        assert_eq!(link.counters.wire_bytes, 0);
        link.change(settings());
        assert_ne!(link.offer(0, size, &mut SplitMix64(1)), Verdict::Drop);
    }

    #[test]
    fn the_default_queue_holds_two_delays() {
        assert_eq!(settings().queue(), 2_500_000);
        assert_eq!(LinkSettings { delay: Duration::from_millis(50), ..settings() }.queue(), 12_500_000);
        assert_eq!(LinkSettings { rate: Rate(1_000_000), ..settings() }.queue(), 256 << 10);
    }
}
