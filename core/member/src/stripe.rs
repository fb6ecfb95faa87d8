//! The choice of the gateway for the next frame to a peer: frames are striped according to the bytes that arrive
//! through each gateway.

use wire::receipt::MAX_ROUTES;

/// Another gateway takes over when the load of the one in use is higher by this many bytes.
const STRIPE: u64 = 64 << 10;
/// The last bytes of a message, up to this many, follow the ones before them: at another gateway they would wait behind
/// others' messages.
const TAIL: u64 = 16 << 10;
/// Loads that differ by less than this, in bytes, count as equal.
const LIKE: u64 = 16 << 10;
/// A receipt is due after this many bytes, if they arrived on more than one route.
const RECEIPT: u64 = 256 << 10;

/// After this many bytes, a new measurement of a gateway's share weighs as much as all earlier ones.
const MEMORY: f64 = (512 << 10) as f64;
/// A gateway with a smaller share does not come first after a pause.
const SLOW: f64 = 0.5;
/// A gateway always has at least this part of an equal share in flight: otherwise nobody would notice that it has
/// become faster.
const LEAST: f64 = 1.0 / 8.0;

/// Both halves of striping, the sender's and the receiver's; see the module docs.
#[derive(Debug, Default)]
pub struct Stripe {
    out: Vec<Out>,
    /// The first gateway after a pause.
    first: usize,
    /// The gateway of the last frame.
    last: usize,
    /// All frames go through the first usable gateway.
    in_order: bool,
    /// Bytes that have arrived, by the sender's number of the route.
    come: Vec<(u8, u64)>,
    /// Bytes that have arrived since the last receipt.
    untold: u64,
}

/// The traffic through one gateway.
#[derive(Clone, Copy, Debug)]
struct Out {
    sent: u64,
    /// Bytes known to have arrived.
    arrived: u64,
    /// Its estimated share of all arriving bytes; 1 is an equal share.
    share: f64,
}

impl Out {
    /// Bytes not known to have arrived.
    fn under_way(&self) -> u64 {
        self.sent - self.arrived
    }
}

impl Stripe {
    /// `first`: the first gateway after a pause. Different ranks start with different ones.
    pub fn starting_with(first: usize) -> Stripe {
        Stripe { first, last: first, ..Stripe::default() }
    }

    /// Sends all frames through the first usable gateway.
    pub fn first() -> Stripe {
        Stripe { in_order: true, ..Stripe::default() }
    }

    fn of(&mut self, gateway: usize) -> &mut Out {
        if self.out.len() <= gateway {
            self.out.resize(gateway + 1, Out { sent: 0, arrived: 0, share: 1.0 });
        }
        &mut self.out[gateway]
    }

    /// Sets the expected share of a gateway, relative to the others, if nothing is known about it yet.
    pub fn expect(&mut self, gateway: usize, share: f64) {
        if self.out.len() <= gateway {
            self.of(gateway).share = share.max(LEAST);
        }
    }

    /// Counts all frames as arrived.
    pub fn settle(&mut self) {
        self.out.iter_mut().for_each(|out| out.arrived = out.sent);
    }

    /// Counts a frame as sent through this gateway.
    pub fn sent(&mut self, gateway: usize, bytes: usize) {
        self.of(gateway).sent += bytes as u64;
        self.last = gateway;
    }

    /// Begins to send after a pause. If no more bytes (`in_flight`) are in flight than a receiver may leave unreported,
    /// they count as arrived, and the first gateway is next, unless it is known to be slow. So ranks that exchange
    /// messages in lockstep do not all load the same gateway.
    pub fn begin(&mut self, in_flight: u64) {
        if in_flight > RECEIPT {
            return;
        }
        self.out.iter_mut().for_each(|out| out.arrived = out.sent);
        self.last = self.first;
        if self.out.get(self.first).is_some_and(|out| out.share < SLOW) {
            let share = |gateway: &usize| self.out[*gateway].share;
            let fastest = (0..self.out.len()).max_by(|one, other| share(one).total_cmp(&share(other)));
            self.last = fastest.unwrap_or(self.first);
        }
    }

    /// Counts no frame as in flight through this gateway any more.
    pub fn lost(&mut self, gateway: usize) {
        let out = self.of(gateway);
        out.arrived = out.sent;
    }

    /// Bytes in flight, scaled to gateways of equal speed. If loads are equal, all gateways take the same time to carry
    /// their bytes, and no frame sent through a fast gateway waits for frames on a slow one.
    pub fn load(&self, gateway: usize) -> u64 {
        self.out.get(gateway).map_or(0, |out| (out.under_way() as f64 / out.share) as u64)
    }

    /// The gateway for the next frame of a message that has this many bytes `left`: the last one, until another has
    /// much less load. Among equals it is the next in a circle, so ranks that started with different gateways, and send
    /// alike, do not all meet at one.
    pub fn choose(&self, mut usable: impl Iterator<Item = usize>, left: u64) -> Option<usize> {
        if self.in_order {
            return usable.next();
        }
        let after_last = |gateway: usize| (gateway + MAX_ROUTES - self.last - 1) % MAX_ROUTES;
        let mut least: Option<usize> = None;
        let mut last = false;
        for gateway in usable {
            last |= gateway == self.last;
            let key = |gateway| (self.load(gateway) / LIKE, after_last(gateway));
            if least.is_none_or(|least| key(gateway) < key(least)) {
                least = Some(gateway);
            }
        }
        let least = least?;
        let more = if left < TAIL { STRIPE + TAIL } else { STRIPE };
        let stay = last && self.load(self.last) < self.load(least) + more;
        Some(if stay { self.last } else { least })
    }

    /// Counts a frame that has arrived and took this route at its sender.
    pub fn came(&mut self, route: u8, bytes: u32) {
        self.untold += u64::from(bytes);
        match self.come.iter_mut().find(|(known, _)| *known == route) {
            Some((_, count)) => *count += u64::from(bytes),
            None => self.come.push((route, u64::from(bytes))),
        }
    }

    /// Returns true if the peer needs a receipt for the bytes that have arrived on each route.
    pub fn receipt_is_due(&self) -> bool {
        self.come.len() > 1 && self.untold >= RECEIPT
    }

    /// The receipt: empty if there is only one route.
    pub fn receipt(&mut self) -> Vec<u8> {
        self.untold = 0;
        if self.come.len() > 1 { wire::receipt::encode(&self.come) } else { Vec::new() }
    }

    /// Processes the peer's receipt: bytes that have arrived through each gateway. More than was sent counts as all of
    /// it.
    pub fn arrived(&mut self, receipt: &[(u8, u64)]) {
        if receipt.is_empty() {
            return;
        }
        let mut came = vec![0; self.out.len()];
        for (gateway, bytes) in receipt {
            let gateway = usize::from(*gateway);
            if let Some(out) = self.out.get_mut(gateway) {
                let now = (*bytes).max(out.arrived).min(out.sent);
                came[gateway] += now - out.arrived;
                out.arrived = now;
            }
        }
        self.learn(&came);
    }

    /// Adjusts shares to the bytes that have arrived (`came`, by gateway) through gateways with frames still in flight.
    /// A gateway with none left could have carried more, but not less.
    fn learn(&mut self, came: &[u64]) {
        let is_full = |out: &Out| out.under_way() > 0;
        let full = || self.out.iter().zip(came).filter(|(out, _)| is_full(out));
        let all = full().map(|(_, came)| *came).sum::<u64>() as f64;
        if all == 0.0 {
            return;
        }
        let per_byte = full().map(|(out, _)| out.share).sum::<f64>() / all;
        let new = all / (all + MEMORY);
        for (out, came) in self.out.iter_mut().zip(came) {
            let carried = *came as f64 * per_byte;
            if is_full(out) || carried > out.share {
                out.share += new * (carried - out.share);
            }
        }
        let mean = self.out.iter().map(|out| out.share).sum::<f64>() / self.out.len() as f64;
        self.out.iter_mut().for_each(|out| out.share = (out.share / mean).max(LEAST));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use super::*;

    fn under_way(stripe: &Stripe, gateway: usize) -> u64 {
        stripe.out.get(gateway).map_or(0, Out::under_way)
    }

    #[test]
    fn each_gateway_gets_as_much_as_it_delivers() {
        let (mut sender, mut receiver) = (Stripe::default(), Stripe::default());
        let (mut queues, mut delivered, frame) = ([0u64; 2], [0u64; 2], 16 << 10);
        for turn in 0..20_000 {
            while (0..2).map(|gateway| under_way(&sender, gateway)).sum::<u64>() < 4 << 20 {
                let gateway = sender.choose(0..2, STRIPE).unwrap();
                sender.sent(gateway, frame);
                queues[gateway] += 1;
            }
            // Gateway 1 delivers three frames for each frame of gateway 0.
            let gateway = usize::from(turn % 4 != 0);
            if queues[gateway] > 0 {
                queues[gateway] -= 1;
                delivered[gateway] += 1;
                receiver.came(gateway as u8, frame as u32);
            }
            if receiver.receipt_is_due() {
                sender.arrived(&wire::receipt::decode(&receiver.receipt()).unwrap());
            }
        }
        assert!(delivered.iter().sum::<u64>() > 19_000, "a gateway waited for frames: {delivered:?}");
        assert!((29..=31).contains(&(delivered[1] * 10 / delivered[0])), "{delivered:?}");
    }

    #[test]
    fn little_stays_where_it_is() {
        let mut stripe = Stripe::default();
        for _ in 0..3 {
            let gateway = stripe.choose(0..4, STRIPE).unwrap();
            assert_eq!(gateway, 0);
            stripe.sent(gateway, 1000);
        }
        stripe.sent(0, STRIPE as usize);
        assert_eq!(stripe.choose(0..4, STRIPE), Some(1));
        let mut third = Stripe::starting_with(2);
        assert_eq!(third.choose(0..4, STRIPE), Some(2));
        third.sent(2, STRIPE as usize);
        assert_eq!((third.choose(0..4, STRIPE), third.choose(0..3, STRIPE)), (Some(3), Some(0)));
        assert_eq!(stripe.choose(std::iter::empty(), STRIPE), None);
        assert_eq!(stripe.choose(0..1, STRIPE), Some(0));
        stripe.lost(0);
        assert_eq!(stripe.choose(0..4, STRIPE), Some(0));
    }

    #[test]
    fn ranks_in_step_do_not_meet() {
        let mut ranks: Vec<Stripe> = (0..4).map(Stripe::starting_with).collect();
        for _ in 0..10 {
            for (own, stripe) in ranks.iter_mut().enumerate() {
                // Its last message counts as arrived, although no receipt came, and a message of one stripe and its
                // header stays whole.
                stripe.begin(STRIPE + 100);
                for left in [STRIPE + 100, 100] {
                    assert_eq!(stripe.choose(0..4, left), Some(own));
                    stripe.sent(own, left.min(STRIPE) as usize);
                }
            }
        }
        let stripe = &mut ranks[0];
        stripe.begin(RECEIPT + 1);
        assert_eq!(stripe.choose(0..4, STRIPE), Some(1), "more is in flight than a receiver keeps to itself");
    }

    #[test]
    fn gateways_that_had_nothing_more_to_carry_are_not_slow() {
        let mut stripe = Stripe::default();
        for _ in 0..50 {
            (0..4).for_each(|gateway| stripe.sent(gateway, if gateway == 0 { 256 << 10 } else { 16 << 10 }));
            let all: Vec<(u8, u64)> = stripe.out.iter().zip(0..).map(|(out, gateway)| (gateway, out.sent)).collect();
            stripe.arrived(&all);
        }
        assert!(stripe.out.iter().all(|out| out.share == 1.0), "{:?}", stripe.out);
    }

    #[test]
    fn a_slow_gateway_is_not_begun_with() {
        let mut stripe = Stripe::starting_with(1);
        for turn in 1..=50 {
            (0..3).for_each(|gateway| stripe.sent(gateway, 300 << 10));
            stripe.arrived(&[(0, (turn * 256) << 10), (1, (turn * 16) << 10), (2, (turn * 256) << 10)]);
        }
        stripe.begin(0);
        assert_ne!(stripe.choose(0..3, STRIPE), Some(1), "{:?}", stripe.out);
    }

    /// Bytes that arrive in order in 20 s, as a fraction of the capacity of all gateways, with a channel of this window
    /// over paths of 10 ms each way.
    fn carried(rates: &[u64], window: u64) -> f64 {
        const FRAME: u64 = 16 << 10;
        const STEP_US: u64 = 100;
        const DELAY_US: u64 = 10_000;
        let (mut sender, mut receiver) = (Stripe::default(), Stripe::default());
        let mut queues = vec![VecDeque::<u64>::new(); rates.len()];
        let mut credit = vec![0u64; rates.len()];
        // Frames in flight to the receiver, and acknowledgements in flight back: time of arrival, and content.
        let mut there = VecDeque::<(u64, usize, u64)>::new();
        let mut back = VecDeque::<(u64, u64, Vec<u8>)>::new();
        let (mut sent, mut known, mut in_order, mut told) = (0u64, 0u64, 0u64, 0u64);
        let mut early = BTreeSet::new();
        for now in (0..20_000_000).step_by(STEP_US as usize) {
            while back.front().is_some_and(|(at, ..)| *at <= now) {
                let (_, acknowledged, receipt) = back.pop_front().unwrap();
                known = acknowledged;
                sender.arrived(&wire::receipt::decode(&receipt).unwrap());
            }
            while (sent + 1 - known) * FRAME <= window {
                let gateway = sender.choose(0..rates.len(), STRIPE).unwrap();
                sender.sent(gateway, FRAME as usize);
                queues[gateway].push_back(sent);
                sent += 1;
            }
            for (gateway, queue) in queues.iter_mut().enumerate() {
                credit[gateway] = (credit[gateway] + rates[gateway] * STEP_US / 1_000_000).min(2 * FRAME);
                while credit[gateway] >= FRAME && !queue.is_empty() {
                    credit[gateway] -= FRAME;
                    there.push_back((now + DELAY_US, gateway, queue.pop_front().unwrap()));
                }
            }
            while there.front().is_some_and(|(at, ..)| *at <= now) {
                let (_, gateway, number) = there.pop_front().unwrap();
                receiver.came(gateway as u8, FRAME as u32);
                early.insert(number);
                while early.remove(&in_order) {
                    in_order += 1;
                }
                if (in_order - told) * FRAME >= 128 << 10 || receiver.receipt_is_due() {
                    told = in_order;
                    back.push_back((now + DELAY_US, in_order, receiver.receipt()));
                }
            }
        }
        (in_order * FRAME) as f64 / 20.0 / rates.iter().sum::<u64>() as f64
    }

    #[test]
    fn gateways_of_unlike_speed_are_all_used() {
        for (rates, window) in [
            (vec![6_000_000, 6_000_000, 3_000_000, 3_000_000], 1 << 20),
            (vec![6_000_000, 6_000_000, 6_000_000, 6_000_000], 1 << 20),
            (vec![6_000_000, 6_000_000, 3_000_000, 3_000_000], 640 << 10),
            (vec![12_000_000, 1_000_000], 1 << 20),
            (vec![12_000_000, 12_000_000, 12_000_000, 1_500_000], 2 << 20),
        ] {
            let share = carried(&rates, window);
            assert!(share > 0.8, "{rates:?}: {share}");
        }
    }
}
