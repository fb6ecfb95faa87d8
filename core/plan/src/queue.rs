//! A queue of arrivals ordered by time, for simulations whose time never goes back.

/// A packet on its way to a node. Times in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PacketArrival {
    /// Time at which its last byte reaches the node's downlink; the queue is ordered by it.
    pub(crate) last: f64,
    /// Time at which its first byte reaches the node's downlink.
    pub(crate) first: f64,
    pub(crate) node: u32,
    pub(crate) packet: u32,
    pub(crate) tree: u32,
}

/// A radix heap: Ahuja, Mehlhorn, Orlin and Tarjan, "Faster algorithms for the shortest path problem", 1990. Times are
/// not negative, so their bits are in the order of their values. Arrivals with equal times come out in a fixed order.
pub(crate) struct ArrivalQueue {
    /// Bucket b holds arrivals whose highest bit that differs from `now` is bit b−1; bucket 0 holds those at `now`.
    buckets: [Vec<PacketArrival>; 65],
    now: u64,
}

impl Default for ArrivalQueue {
    fn default() -> ArrivalQueue {
        ArrivalQueue { buckets: [const { Vec::new() }; 65], now: 0 }
    }
}

impl ArrivalQueue {
    /// Adds an arrival, no earlier than the last one taken out.
    pub(crate) fn push(&mut self, arrival: PacketArrival) {
        let bucket = u64::BITS - (arrival.last.to_bits() ^ self.now).leading_zeros();
        self.buckets[bucket as usize].push(arrival);
    }

    /// Removes the earliest arrival.
    pub(crate) fn pop(&mut self) -> Option<PacketArrival> {
        if self.buckets[0].is_empty() {
            let bucket = self.buckets.iter().position(|bucket| !bucket.is_empty())?;
            let moved = std::mem::take(&mut self.buckets[bucket]);
            self.now = moved.iter().map(|arrival| arrival.last.to_bits()).min()?;
            moved.iter().for_each(|&arrival| self.push(arrival));
            // Reuse its memory.
            self.buckets[bucket] = moved;
            self.buckets[bucket].clear();
        }
        self.buckets[0].pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_come_in_order() {
        let mut queue = ArrivalQueue::default();
        let push = |queue: &mut ArrivalQueue, last: f64| {
            queue.push(PacketArrival { last, first: 0.0, node: 0, packet: 0, tree: 0 })
        };
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / 1e6
        };
        (0..100).for_each(|_| push(&mut queue, random()));
        let (mut now, mut count) = (0.0, 0);
        while let Some(arrival) = queue.pop() {
            assert!(arrival.last >= now);
            (now, count) = (arrival.last, count + 1);
            if count < 1000 {
                push(&mut queue, now + random());
            }
        }
        assert_eq!(count, 1099);
    }
}
