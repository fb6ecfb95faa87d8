//! The amount to keep in flight: twice the path's bandwidth-delay product, estimated from the times of
//! acknowledgements.
//!
//! The path holds its best rate of delivery times its shortest round trip. Twice that keeps it full; more would only
//! wait in a queue and delay others. The estimate is that of BBR (Cardwell and others, "BBR: Congestion-Based
//! Congestion Control", CACM 2017) without its pacing: the amount in flight doubles with each round trip until the rate
//! no longer follows. A round with too little to send is ignored unless its rate exceeds the best recent one.

/// No path needs fewer bytes in flight: the receiver acknowledges at least [`ACKNOWLEDGED`] at a time.
pub(crate) const LEAST: u32 = 512 << 10;
/// The least in flight to a receiver for which a gateway has refused frames: two full frames.
pub(crate) const FLOOR: u32 = 32 << 10;
/// A receiver acknowledges after this many bytes.
pub(crate) const ACKNOWLEDGED: u64 = 128 << 10;
/// The best rate is the maximum over this many rounds.
const ROUNDS: usize = 8;
/// The shortest round trip is taken over this epoch and the one before, in nanoseconds, because paths change.
const EPOCH_NS: u64 = 30_000_000_000;

/// A sender's estimate of the path to a receiver.
#[derive(Debug)]
pub(crate) struct Room {
    most: u32,
    now: u32,
    /// Upper limit since a gateway refused frames; each round raises it.
    ceiling: u32,
    /// Total bytes acknowledged.
    delivered: u64,
    round: Option<Round>,
    /// Bytes per second in the last rounds.
    rates: [u64; ROUNDS],
    rounds: usize,
    /// The shortest round trip of this epoch and of the last one.
    shortest_ns: [u64; 2],
    epoch_began_ns: u64,
}

#[derive(Debug)]
struct Round {
    /// The round ends once this many more frames are acknowledged.
    frames: u32,
    began_ns: u64,
    delivered: u64,
    /// More frames were waiting than the room allowed.
    full: bool,
}

impl Room {
    /// `most`: the receiver's limit for bytes in flight.
    pub(crate) fn new(most: u32) -> Room {
        Room {
            most,
            now: most.min(LEAST),
            ceiling: most,
            delivered: 0,
            round: None,
            rates: [0; ROUNDS],
            rounds: 0,
            shortest_ns: [u64::MAX; 2],
            epoch_began_ns: 0,
        }
    }

    /// Most bytes to keep in flight.
    pub(crate) fn bytes(&self) -> u32 {
        self.now.min(self.ceiling)
    }

    /// The shortest recent round trip, in nanoseconds, if it is known.
    pub(crate) fn round_trip_ns(&self) -> Option<u64> {
        self.shortest_ns.iter().copied().min().filter(|shortest| *shortest < u64::MAX)
    }

    /// A gateway had no memory for the frames in flight: halves the room.
    pub(crate) fn refused(&mut self) {
        self.ceiling = (self.bytes() / 2).max(FLOOR).min(self.most);
        self.round = None;
    }

    /// More frames were waiting than the room allowed.
    pub(crate) fn was_short(&mut self) {
        if let Some(round) = &mut self.round {
            round.full = true;
        }
    }

    /// Notes that a frame is being sent; with it, `frames` are in flight.
    pub(crate) fn sent(&mut self, frames: usize, now_ns: u64) {
        if self.round.is_none() {
            let (frames, delivered) = (frames as u32, self.delivered);
            self.round = Some(Round { frames, began_ns: now_ns, delivered, full: false });
        }
    }

    /// Discards the current round: frames in flight must be retransmitted, so its timing is meaningless.
    pub(crate) fn disturbed(&mut self) {
        self.round = None;
    }

    /// Notes the acknowledgement of this many frames and bytes.
    pub(crate) fn acknowledged(&mut self, frames: u32, bytes: u64, now_ns: u64) {
        self.delivered += bytes;
        let Some(round) = &mut self.round else { return };
        round.frames = round.frames.saturating_sub(frames);
        if round.frames > 0 {
            return;
        }
        let took_ns = now_ns.saturating_sub(round.began_ns).max(1);
        let (carried, full) = (self.delivered - round.delivered, round.full);
        self.round = None;
        self.ceiling = self.ceiling.saturating_add(FLOOR).min(self.most);
        self.learn(took_ns, carried, full, now_ns);
    }

    fn learn(&mut self, took_ns: u64, carried: u64, full: bool, now_ns: u64) {
        if now_ns.saturating_sub(self.epoch_began_ns) > EPOCH_NS {
            self.shortest_ns = [u64::MAX, self.shortest_ns[0]];
            self.epoch_began_ns = now_ns;
        }
        self.shortest_ns[0] = self.shortest_ns[0].min(took_ns);
        let shortest_ns = self.shortest_ns[0].min(self.shortest_ns[1]);
        let rate = (u128::from(carried) * 1_000_000_000 / u128::from(took_ns)) as u64;
        let best = self.rates.iter().copied().max().unwrap_or(0);
        if !full && rate <= best {
            return;
        }
        self.rates[self.rounds % ROUNDS] = rate;
        self.rounds += 1;
        let best = self.rates.iter().copied().max().unwrap_or(0);
        let held = u128::from(best) * u128::from(shortest_ns) / 1_000_000_000;
        let twice = u32::try_from(held * 2).unwrap_or(u32::MAX);
        self.now = twice.saturating_add(LEAST).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const FRAME: u32 = 16 << 10;

    /// A sender with an endless supply, over a path of its own with this rate (bytes per second) and round trip.
    /// Returns the bytes delivered.
    fn fill(room: &mut Room, clock_ns: &mut u64, rate: u64, round_trip_ns: u64, for_ns: u64) -> u64 {
        let (end, frame_ns) = (*clock_ns + for_ns, u64::from(FRAME) * 1_000_000_000 / rate);
        let mut acks: VecDeque<u64> = VecDeque::new();
        let (mut free_at, mut unsaid, mut under_way, mut delivered) = (*clock_ns, 0u64, 0usize, 0u64);
        loop {
            while (under_way as u64 + 1) * u64::from(FRAME) <= u64::from(room.bytes()) {
                under_way += 1;
                room.sent(under_way, *clock_ns);
                free_at = free_at.max(*clock_ns) + frame_ns;
                acks.push_back(free_at + round_trip_ns);
            }
            room.was_short();
            let Some(at) = acks.pop_front().filter(|at| *at < end) else { break };
            *clock_ns = at;
            unsaid += u64::from(FRAME);
            if unsaid >= ACKNOWLEDGED {
                let frames = (unsaid / u64::from(FRAME)) as u32;
                under_way -= frames as usize;
                delivered += unsaid;
                room.acknowledged(frames, unsaid, *clock_ns);
                unsaid = 0;
            }
        }
        *clock_ns = end;
        room.disturbed();
        delivered
    }

    #[test]
    fn a_path_is_filled_and_not_flooded() {
        for (rate, round_trip_ms) in
            [(125_000_000u64, 100u64), (25_000_000, 20), (25_000_000, 1), (1_250_000_000, 20), (1_000_000, 200)]
        {
            let (mut room, mut clock) = (Room::new(64 << 20), 0);
            let round_trip_ns = round_trip_ms * 1_000_000;
            fill(&mut room, &mut clock, rate, round_trip_ns, 20 * round_trip_ns);
            let carried = fill(&mut room, &mut clock, rate, round_trip_ns, 2_000_000_000);
            let path = rate * round_trip_ns / 1_000_000_000;
            let case = format!(
                "{rate} B/s, {round_trip_ms} ms: room {}, the path holds {path}, carried {carried}",
                room.bytes()
            );
            assert!(
                carried as f64 > 0.93 * (rate as f64 * (2.0 - round_trip_ns as f64 / 1e9)) - 2.0 * LEAST as f64,
                "{case}"
            );
            assert!(u64::from(room.bytes()) < 3 * path + 3 * u64::from(LEAST), "{case}");
        }
    }

    #[test]
    fn a_path_that_gets_slower_or_longer_is_learnt() {
        let (mut room, mut clock) = (Room::new(64 << 20), 0);
        fill(&mut room, &mut clock, 125_000_000, 100_000_000, 3_000_000_000);
        let long = room.bytes();
        fill(&mut room, &mut clock, 12_500_000, 100_000_000, 60_000_000_000);
        assert!(room.bytes() < long / 3, "{} after {long}", room.bytes());
        fill(&mut room, &mut clock, 125_000_000, 200_000_000, 90_000_000_000);
        let carried = fill(&mut room, &mut clock, 125_000_000, 200_000_000, 2_000_000_000);
        assert!(carried > 200_000_000, "{carried} with {}", room.bytes());
    }

    #[test]
    fn a_refusal_halves_it_and_rounds_restore_it() {
        let (mut room, mut clock) = (Room::new(64 << 20), 0);
        fill(&mut room, &mut clock, 125_000_000, 100_000_000, 3_000_000_000);
        let before = room.bytes();
        room.refused();
        assert_eq!(room.bytes(), before / 2);
        (0..30).for_each(|_| room.refused());
        assert_eq!(room.bytes(), FLOOR);
        for turn in 0..20_000u64 {
            room.sent(1, clock + turn * 2_000);
            room.acknowledged(1, 100, clock + turn * 2_000 + 1_000);
        }
        assert!(room.bytes() > 8 << 20, "{}", room.bytes());
    }

    #[test]
    fn little_to_send_teaches_nothing_and_no_more_is_granted_than_the_receiver_allows() {
        let mut room = Room::new(64 << 20);
        for turn in 0..100 {
            room.sent(1, turn * 1_000_000);
            room.acknowledged(1, 100, turn * 1_000_000 + 50_000);
        }
        assert!(room.bytes() <= 2 * LEAST, "{}", room.bytes());
        let (mut room, mut clock) = (Room::new(1 << 20), 0);
        fill(&mut room, &mut clock, 125_000_000, 100_000_000, 3_000_000_000);
        assert_eq!(room.bytes(), 1 << 20);
        assert_eq!(Room::new(1000).bytes(), 1000);
    }
}
