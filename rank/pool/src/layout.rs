//! Offsets and sizes of the parts of a region.
//!
//! | part | size | written by |
//! |---|---|---|
//! | header | a page | its creator, before anybody else opens it |
//! | seats | 256 bytes for each endpoint | that endpoint |
//! | knocks | a row of lines for each endpoint, one line for each rank | that rank, to announce "I write to you" |
//! | rings | one for each ordered pair of endpoints | head: its reader; the rest: its writer |
//!
//! Many processors fetch two neighbouring cache lines together, so data written often has 128 bytes to itself.

/// Endpoints of one rank that have a seat in the region. An MPI library opens one or two.
pub const INSTANCES: u32 = 4;
/// Maximum number of ranks in a region: rings then begin at most at 2⁵³, which every filesystem in memory can address.
pub(crate) const MAX_RANKS: u32 = 4096;
/// Smallest and largest size of a ring in bytes, head included.
pub(crate) const RING_BYTES: std::ops::RangeInclusive<u64> = 16 << 10..=128 << 10;
/// Bytes of an area that only one side writes: two cache lines.
pub(crate) const LINE: u64 = 128;
/// Bytes of a seat: one line written when it is taken, one written whenever its owner falls asleep.
pub(crate) const SEAT: u64 = 2 * LINE;
/// Bytes of one rank's knocks at one endpoint.
const KNOCKS: u64 = 64;

const PAGE: u64 = 4096;

/// The geometry of a region: a function of the number of ranks and the size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionLayout {
    ranks: u64,
    ring: u64,
}

impl RegionLayout {
    /// `None` if no region can have this shape.
    pub(crate) fn new(ranks: u32, ring: u64) -> Option<RegionLayout> {
        let fits = (1..=MAX_RANKS).contains(&ranks) && RING_BYTES.contains(&ring) && ring.is_power_of_two();
        fits.then_some(RegionLayout { ranks: ranks.into(), ring })
    }

    /// The largest ring for which the rings of all pairs of ranks together fit into a quarter of `room`.
    pub(crate) fn ring_bytes(ranks: u32, room: u64) -> u64 {
        let pairs = u64::from(ranks) * u64::from(ranks.max(2) - 1);
        let share = (room / 4 / pairs.max(1)).max(1);
        let power = if share.is_power_of_two() { share } else { share.next_power_of_two() / 2 };
        power.clamp(*RING_BYTES.start(), *RING_BYTES.end())
    }

    /// Number of endpoints with a seat.
    pub(crate) fn seats(&self) -> u32 {
        self.ranks as u32 * INSTANCES
    }

    /// Bytes of a ring, head included.
    pub(crate) fn ring(&self) -> u64 {
        self.ring
    }

    pub(crate) fn seat(&self, seat: u32) -> u64 {
        PAGE + u64::from(seat) * SEAT
    }

    /// Bytes of the header and the seats, which the creator allocates.
    pub(crate) fn seats_end(&self) -> u64 {
        self.seat(self.seats()).next_multiple_of(PAGE)
    }

    /// Offset of the knocks at endpoint `of`, which allocates them when it joins.
    pub(crate) fn row(&self, of: u32) -> u64 {
        self.seats_end() + u64::from(of) * self.row_bytes()
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        (self.ranks * KNOCKS).next_multiple_of(PAGE)
    }

    /// Offset of the word in which endpoint `from` announces to `to` that it writes to the ring between them.
    pub(crate) fn knock(&self, to: u32, from: u32) -> u64 {
        self.row(to) + u64::from(from / INSTANCES) * KNOCKS + u64::from(from % INSTANCES) * 8
    }

    /// Bytes before the rings.
    pub(crate) fn fixed(&self) -> u64 {
        self.row(self.seats())
    }

    pub(crate) fn ring_at(&self, from: u32, to: u32) -> u64 {
        self.fixed() + (u64::from(from) * u64::from(self.seats()) + u64::from(to)) * self.ring
    }

    /// The file's length in bytes.
    pub(crate) fn total(&self) -> u64 {
        self.ring_at(self.seats(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        for ranks in [1, 2, 3, 63, 64, 65, 300] {
            let layout = RegionLayout::new(ranks, 16 << 10).unwrap();
            let last = layout.seats() - 1;
            assert!(layout.seat(0) >= PAGE && layout.seat(last) + SEAT <= layout.seats_end());
            assert!(layout.knock(0, 0) == layout.seats_end());
            assert!(layout.knock(0, last) + 8 <= layout.row(0) + layout.row_bytes());
            assert_eq!(layout.row(1), layout.row(0) + layout.row_bytes());
            assert!(layout.knock(last, last) + 8 <= layout.fixed() && layout.fixed() == layout.ring_at(0, 0));
            assert_eq!(layout.ring_at(last, last) + layout.ring(), layout.total());
            assert_eq!(layout.fixed() % PAGE, 0);
        }
        assert!(i64::try_from(RegionLayout::new(MAX_RANKS, *RING_BYTES.end()).unwrap().total()).is_ok());
    }

    #[test]
    fn shapes_that_no_region_has() {
        for (ranks, ring) in [(0, 16 << 10), (MAX_RANKS + 1, 16 << 10), (2, 8 << 10), (2, 256 << 10), (2, 20 << 10)] {
            assert_eq!(RegionLayout::new(ranks, ring), None, "{ranks} ranks, rings of {ring}");
        }
    }

    #[test]
    fn rings_shrink_where_many_share_little() {
        assert_eq!(RegionLayout::ring_bytes(2, 16 << 30), 128 << 10);
        assert_eq!(RegionLayout::ring_bytes(64, 1 << 30), 64 << 10);
        assert_eq!(RegionLayout::ring_bytes(16, 64 << 20), 64 << 10);
        assert_eq!(RegionLayout::ring_bytes(1000, 1 << 20), 16 << 10);
        assert_eq!(RegionLayout::ring_bytes(1, 0), 16 << 10);
    }
}
