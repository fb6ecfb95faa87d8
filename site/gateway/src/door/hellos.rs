//! Rate limit on TLS hellos from peers without a valid token, per address.
//!
//! A handshake costs the gateway's one thread a signature and a key exchange, and costs the requesting peer almost
//! nothing. Each handshake takes one of its address's [`MOST`] tokens. A peer that proves its identity returns its
//! token, so any number of a site's machines can connect at once and delay each other only by milliseconds. Tokens of
//! failed handshakes come back at [`A_SECOND`] per second. The limit refuses no peer: a peer that has to wait keeps its
//! position in the lobby.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::door::lobby::network;

const MOST: u32 = 64;
const A_SECOND: u32 = 16;
/// Number of addresses that are remembered; all further addresses share one budget.
const ADDRESSES: usize = 4096;
/// Interval at which a waiting peer checks again.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Hellos(RefCell<HashMap<IpAddr, Budget>>);

#[derive(Debug)]
struct Budget {
    tokens: f64,
    at: Instant,
}

impl Budget {
    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(std::mem::replace(&mut self.at, now));
        self.tokens = (self.tokens + since.as_secs_f64() * f64::from(A_SECOND)).min(MOST.into());
    }
}

impl Hellos {
    /// Waits until a hello from this address may be processed.
    pub(crate) async fn turn(&self, from: IpAddr) {
        while !self.take(from, Instant::now()) {
            sleep(LOOK).await;
        }
    }

    fn take(&self, from: IpAddr, now: Instant) -> bool {
        let mut budgets = self.0.borrow_mut();
        let mut from = network(from);
        if budgets.len() >= ADDRESSES && !budgets.contains_key(&from) {
            budgets.retain(|_, budget| {
                budget.refill(now);
                budget.tokens < f64::from(MOST)
            });
            if budgets.len() >= ADDRESSES {
                from = Ipv6Addr::UNSPECIFIED.into();
            }
        }
        let budget = budgets.entry(from).or_insert(Budget { tokens: MOST.into(), at: now });
        budget.refill(now);
        let may = budget.tokens >= 1.0;
        if may {
            budget.tokens -= 1.0;
        }
        may
    }

    /// Returns the token of a peer from this address that proved its identity.
    pub(crate) fn proved(&self, from: IpAddr) {
        if let Some(budget) = self.0.borrow_mut().get_mut(&network(from)) {
            budget.tokens = (budget.tokens + 1.0).min(MOST.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    #[test]
    fn who_proves_nothing_waits_and_others_do_not() {
        let (hellos, start) = (Hellos::default(), Instant::now());
        let taken = (0..1000).filter(|_| hellos.take(ip(1), start)).count();
        assert_eq!(taken, MOST as usize);
        assert!(hellos.take(ip(2), start));
        let later = start + Duration::from_secs(10);
        let taken = (0..1000).filter(|_| hellos.take(ip(1), later)).count();
        assert_eq!(taken, MOST as usize);
        let taken = (0..1000).filter(|n| hellos.take(ip(1), later + *n * Duration::from_millis(10))).count();
        assert!((150..=170).contains(&taken), "{taken}");
    }

    #[test]
    fn who_proves_who_it_is_waits_for_nothing() {
        let (hellos, now) = (Hellos::default(), Instant::now());
        for _ in 0..10_000 {
            assert!(hellos.take(ip(1), now));
            hellos.proved(ip(1));
        }
    }

    #[test]
    fn many_addresses_take_no_more_memory_than_some() {
        let (hellos, start) = (Hellos::default(), Instant::now());
        let taken = (0..20_000).filter(|n| hellos.take(ip(*n), start)).count();
        assert_eq!(taken, ADDRESSES + MOST as usize);
        assert!(hellos.0.borrow().len() <= ADDRESSES + 1);
        assert!((20_000..30_000).all(|n| hellos.take(ip(n), start + Duration::from_secs(n.into()))));
    }
}
