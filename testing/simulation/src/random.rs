/// A seeded generator: the same seed gives the same numbers on every machine.
///
/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream `stream` of a seed. Streams of one seed are independent, so more draws in one place do not change the
    /// draws in another.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random { state: seed };
        random.state = random.bits() ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03);
        random
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number uniform in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A number uniform in 0..count; 0 if `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.bits()) * count as u128) >> 64) as usize
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// `count` different values of `from`, in random order; all of them if there are no more.
    pub fn choose<T: Copy>(&mut self, from: &[T], count: usize) -> Vec<T> {
        let mut pool = from.to_vec();
        let count = count.min(pool.len());
        for place in 0..count {
            let other = place + self.below(pool.len() - place);
            pool.swap(place, other);
        }
        pool.truncate(count);
        pool
    }
}
