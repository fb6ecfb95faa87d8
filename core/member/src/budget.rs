//! A limit on all bytes that a member has in flight to its peers.
//!
//! Gateways promise memory to no member: they hold frames for slow receivers, and refuse frames when memory is short
//! ([`wire::FrameKind::Refused`]). So a member starts with a share that every member can have at once, raises its limit
//! while no gateway refuses, and halves it when one does: slow start and additive increase, multiplicative decrease
//! (Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks",
//! 1989).

/// A member may always have this much in flight, in bytes: four frames.
const FLOOR: u64 = 64 << 10;
/// Added each time as many bytes as the limit have been acknowledged: one frame, in bytes.
const STEP: u64 = 16 << 10;
/// Refusals within this time of the last one belong to the same shortage.
const SAME_NS: u64 = 100_000_000;

#[derive(Debug)]
pub struct Budget {
    /// Most bytes in flight now; `None`: only windows limit them.
    limit: Option<u64>,
    in_flight: u64,
    /// Bytes that were in flight when the limit was reached: their acknowledgement shows that the limit is not too
    /// high.
    tests: u64,
    /// No gateway has refused anything yet: the limit doubles with each round trip.
    slow_start: bool,
    refused_ns: Option<u64>,
}

impl Budget {
    /// No limit except the windows.
    pub fn unlimited() -> Budget {
        Budget { limit: None, in_flight: 0, tests: 0, slow_start: true, refused_ns: None }
    }

    /// Starts with this share in bytes.
    pub fn starting_with(share: u64) -> Budget {
        Budget { limit: Some(share.max(FLOOR)), ..Budget::unlimited() }
    }

    /// Returns true if this many more bytes may be in flight. With nothing in flight, a frame of any size may be sent.
    pub fn may_send(&mut self, bytes: u64) -> bool {
        let fits = self.in_flight == 0 || self.limit.is_none_or(|limit| self.in_flight + bytes <= limit);
        if !fits {
            self.tests = self.in_flight;
        }
        fits
    }

    /// Bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The limit for bytes in flight, if there is one.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    pub(crate) fn sent(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// Counts these bytes as acknowledged.
    pub(crate) fn acknowledged(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        let tested = bytes.min(self.tests);
        self.tests -= tested;
        if let Some(limit) = &mut self.limit {
            *limit += if self.slow_start { tested } else { STEP * tested / *limit };
        }
    }

    /// Removes these bytes, which will never be acknowledged: their receiver is lost.
    pub(crate) fn forgotten(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Notes that a gateway was short of memory.
    pub(crate) fn refused(&mut self, now_ns: u64) {
        if self.refused_ns.is_some_and(|last| now_ns.saturating_sub(last) < SAME_NS) {
            return;
        }
        self.refused_ns = Some(now_ns);
        self.slow_start = false;
        self.tests = 0;
        if let Some(limit) = &mut self.limit {
            *limit = (self.in_flight.min(*limit) / 2).max(FLOOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips in which the member sends as much as it may, and all of it is acknowledged.
    fn rounds(budget: &mut Budget, count: usize) {
        for _ in 0..count {
            let mut frames = 0;
            while budget.may_send(STEP) {
                budget.sent(STEP);
                frames += 1;
            }
            (0..frames).for_each(|_| budget.acknowledged(STEP));
        }
    }

    #[test]
    fn it_doubles_until_a_gateway_refuses() {
        let mut budget = Budget::starting_with(64 << 10);
        rounds(&mut budget, 8);
        let limit = budget.limit().unwrap();
        assert!(limit > 2 << 20, "{limit}");
        while budget.may_send(STEP) {
            budget.sent(STEP);
        }
        budget.refused(1_000);
        budget.refused(2_000);
        let halved = budget.limit().unwrap();
        assert!(halved > limit / 3 && halved < limit * 2 / 3, "once for one shortage: {halved} of {limit}");
        budget.refused(SAME_NS + 2_000);
        assert!(budget.limit().unwrap() < limit, "{budget:?}");
        let in_flight = budget.in_flight();
        budget.acknowledged(in_flight);
        let before = budget.limit().unwrap();
        rounds(&mut budget, 8);
        let grown = budget.limit().unwrap() - before;
        assert!((2 * STEP..=10 * STEP).contains(&grown), "{grown}");
    }

    #[test]
    fn there_is_always_room_for_a_frame_and_little_use_teaches_nothing() {
        let mut budget = Budget::starting_with(0);
        assert!(budget.may_send(1 << 20), "one frame of any size");
        for turn in 0..100 {
            budget.sent(100);
            budget.refused(turn * 2 * SAME_NS);
            budget.acknowledged(100);
        }
        assert_eq!(budget.limit(), Some(FLOOR));
        budget.sent(FLOOR);
        assert!(!budget.may_send(1));
        budget.forgotten(FLOOR);
        assert!(budget.may_send(1) && Budget::unlimited().may_send(u64::MAX / 2));
    }
}
