//! How much goes to a peer by each gateway, and how much of it has arrived: frames are striped by that.

use wire::receipt::MAX_ROUTES;

/// Another gateway takes over when so many bytes more are under way by the one in use.
const STRIPE: u64 = 64 << 10;
/// A receipt is sent at least so often, in bytes that came by more than one route.
const RECEIPT: u64 = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct Flows {
    /// Bytes sent and bytes known to have arrived, by gateway.
    out: Vec<(u64, u64)>,
    last: usize,
    /// Bytes that have come, by the route that their sender names.
    come: Vec<(u8, u64)>,
    /// Bytes that have come since the last receipt.
    untold: u64,
}

impl Flows {
    /// `first`: the gateway to begin with. Different ranks begin with different ones.
    pub fn starting_with(first: usize) -> Flows {
        Flows { last: first, ..Flows::default() }
    }

    fn of(&mut self, gateway: usize) -> &mut (u64, u64) {
        if self.out.len() <= gateway {
            self.out.resize(gateway + 1, (0, 0));
        }
        &mut self.out[gateway]
    }

    /// A frame has left by this gateway.
    pub fn sent(&mut self, gateway: usize, bytes: usize) {
        self.of(gateway).0 += bytes as u64;
        self.last = gateway;
    }

    /// What was under way by this gateway is not any more.
    pub fn lost(&mut self, gateway: usize) {
        let (sent, arrived) = self.of(gateway);
        *arrived = *sent;
    }

    fn under_way(&self, gateway: usize) -> u64 {
        self.out.get(gateway).map_or(0, |(sent, arrived)| sent.saturating_sub(*arrived))
    }

    /// The gateway for the next frame: that of the last one, until another has much less under way. Of equals it is the next in a
    /// circle, so that ranks that began with different ones, and send alike, do not all come together at one.
    pub fn choose(&self, usable: impl Iterator<Item = usize>) -> Option<usize> {
        let after_last = |gateway: usize| (gateway + MAX_ROUTES - self.last - 1) % MAX_ROUTES;
        let mut least: Option<usize> = None;
        let mut last = false;
        for gateway in usable {
            last |= gateway == self.last;
            let key = |gateway| (self.under_way(gateway), after_last(gateway));
            if least.is_none_or(|least| key(gateway) < key(least)) {
                least = Some(gateway);
            }
        }
        let least = least?;
        let stay = last && self.under_way(self.last) < self.under_way(least) + STRIPE;
        Some(if stay { self.last } else { least })
    }

    /// A frame has come that took this route at its sender.
    pub fn came(&mut self, route: u8, bytes: u32) {
        self.untold += u64::from(bytes);
        match self.come.iter_mut().find(|(known, _)| *known == route) {
            Some((_, count)) => *count += u64::from(bytes),
            None => self.come.push((route, u64::from(bytes))),
        }
    }

    /// Whether the peer should be told how much has come by which route.
    pub fn receipt_is_due(&self) -> bool {
        self.come.len() > 1 && self.untold >= RECEIPT
    }

    /// What it is told: nothing where there is only one route.
    pub fn receipt(&mut self) -> Vec<u8> {
        self.untold = 0;
        if self.come.len() > 1 { wire::receipt::encode(&self.come) } else { Vec::new() }
    }

    /// The peer says how much has arrived by each gateway. More than was sent counts as all of it.
    pub fn arrived(&mut self, receipt: &[(u8, u64)]) {
        for (gateway, bytes) in receipt {
            if let Some((sent, arrived)) = self.out.get_mut(usize::from(*gateway)) {
                *arrived = (*bytes).max(*arrived).min(*sent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gateway_gets_as_much_as_it_delivers() {
        let (mut sender, mut receiver) = (Flows::default(), Flows::default());
        let (mut queues, mut delivered, frame) = ([0u64; 2], [0u64; 2], 16 << 10);
        for turn in 0..20_000 {
            while (0..2).map(|gateway| sender.under_way(gateway)).sum::<u64>() < 4 << 20 {
                let gateway = sender.choose(0..2).unwrap();
                sender.sent(gateway, frame);
                queues[gateway] += 1;
            }
            // Gateway 1 delivers three frames while gateway 0 delivers one.
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
        let mut flows = Flows::default();
        for _ in 0..3 {
            let gateway = flows.choose(0..4).unwrap();
            assert_eq!(gateway, 0);
            flows.sent(gateway, 1000);
        }
        flows.sent(0, STRIPE as usize);
        assert_eq!(flows.choose(0..4), Some(1));
        let mut third = Flows::starting_with(2);
        assert_eq!(third.choose(0..4), Some(2));
        third.sent(2, STRIPE as usize);
        assert_eq!((third.choose(0..4), third.choose(0..3)), (Some(3), Some(0)));
        assert_eq!(flows.choose(std::iter::empty()), None);
        assert_eq!(flows.choose(0..1), Some(0));
        flows.lost(0);
        assert_eq!(flows.choose(0..4), Some(0));
    }
}
