//! Connections that are not admitted yet: which ones wait, and which one is dropped when there are too many.
//!
//! Strangers may open connections and send little (slow loris) or nothing. Each costs a few KiB until its handshake
//! completes or times out. When all places are taken, a newcomer replaces the connection that has waited longest among
//! those of the address with the most connections. An address that opens many connections therefore only hurts itself:
//! other addresses get in as long as they have fewer. If the newcomer's own address has the most, connections younger
//! than [`HONEST`] keep their places and the newcomer is turned away: many ranks of one node that connect at once are
//! admitted one after the other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Approximate cost in bytes of a connection until it is admitted or its handshake times out.
const COST: u64 = 16 << 10;
/// Number of places in a small gateway, and the most in any.
const USUAL: u64 = 512;
const MOST: u64 = 4096;
/// A connection is not replaced by one from the same address before it is this old: an honest handshake is done by
/// then.
const HONEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Lobby {
    most: usize,
    /// In order of arrival.
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    came: Cell<u64>,
}

#[derive(Debug)]
struct Waiting {
    from: IpAddr,
    since: Instant,
    goes: Rc<Notify>,
}

/// Number of places in a gateway with this much memory and this many file descriptors. Half of the descriptors are
/// reserved for admitted connections.
pub(crate) fn places(memory: u64, descriptors: u64) -> usize {
    (memory / 16 / COST).clamp(USUAL, MOST).min(descriptors / 2).max(1) as usize
}

impl Lobby {
    /// `most`: connections at once.
    pub(crate) fn new(most: usize) -> Lobby {
        Lobby { most, waiting: RefCell::default(), came: Cell::new(0) }
    }

    /// Number of waiting connections.
    pub(crate) fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Lets a newcomer in. If there are too many connections, either another has to go, and its [`Place::must_go`]
    /// returns, or the newcomer is turned away.
    pub(crate) fn enter(self: &Rc<Lobby>, from: IpAddr, now: Instant) -> Option<Place> {
        let from = network(from);
        if self.len() >= self.most && !self.makes_room(from, now) {
            return None;
        }
        let number = self.came.get();
        self.came.set(number + 1);
        let goes = Rc::new(Notify::new());
        self.waiting.borrow_mut().insert(number, Waiting { from, since: now, goes: goes.clone() });
        Some(Place { lobby: self.clone(), number, goes })
    }

    /// Makes room for a newcomer, which counts as one of its address's connections.
    fn makes_room(&self, newcomer: IpAddr, now: Instant) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let mut counts = HashMap::from([(newcomer, 1)]);
        waiting.values().for_each(|one| *counts.entry(one.from).or_default() += 1);
        let most = counts.values().copied().max().unwrap_or(0);
        let goes = |one: &Waiting| one.from != newcomer || now.duration_since(one.since) >= HONEST;
        let oldest = waiting.iter().find(|(_, one)| counts[&one.from] == most).filter(|(_, one)| goes(one));
        let gone = oldest.map(|(number, _)| *number).and_then(|number| waiting.remove(&number));
        gone.inspect(|gone| gone.goes.notify_one()).is_some()
    }
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    lobby: Rc<Lobby>,
    number: u64,
    goes: Rc<Notify>,
}

impl Place {
    /// Returns when a newcomer has been given this place.
    pub(crate) async fn must_go(&self) {
        self.goes.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.waiting.borrow_mut().remove(&self.number);
    }
}

/// The network that one stranger can easily use in full: an IPv4 address, or a /64 of IPv6.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn goes(place: &Place) -> bool {
        pin!(place.must_go()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_has_most_makes_room_and_others_stay() {
        let (lobby, start) = (Rc::new(Lobby::new(5)), Instant::now());
        let enter = |from, seconds| lobby.enter(ip(from), start + seconds * Duration::from_secs(1));
        let friends = [enter("10.0.0.1", 0).unwrap(), enter("10.0.0.2", 0).unwrap()];
        let loris: Vec<Place> = (0..20).map(|n| enter("192.0.2.66", n).unwrap()).collect();
        assert_eq!(lobby.len(), 5);
        let gone: Vec<bool> = loris.iter().map(goes).collect();
        assert_eq!(gone, [[true; 17].as_slice(), &[false; 3]].concat(), "the oldest first");
        // However short it has waited.
        let another = enter("10.0.0.3", 17).unwrap();
        assert!(!friends.iter().chain([&another]).any(goes) && goes(&loris[17]));
        drop((friends, another));
        assert_eq!(lobby.len(), 2);
        drop(loris);
        assert_eq!(lobby.len(), 0);
    }

    #[test]
    fn who_come_at_once_from_one_address_do_not_push_each_other_out() {
        let (lobby, start) = (Rc::new(Lobby::new(5)), Instant::now());
        let mut ranks: Vec<Option<Place>> = (0..8).map(|_| lobby.enter(ip("10.0.0.1"), start)).collect();
        assert_eq!(ranks.iter().flatten().count(), 5);
        assert!(!ranks.iter().flatten().any(goes));
        ranks[0] = None;
        assert!(lobby.enter(ip("10.0.0.1"), start).is_some(), "a place is free again");
    }

    #[test]
    fn places_follow_memory_and_descriptors() {
        assert_eq!(places(16 << 20, 1024), 512);
        assert_eq!(places(16 << 20, 1 << 20), 512);
        assert_eq!(places(256 << 20, 1 << 20), 1024);
        assert_eq!(places(1 << 40, u64::MAX), 4096);
        assert_eq!(places(1 << 30, 256), 128);
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let (lobby, start) = (Rc::new(Lobby::new(4)), Instant::now());
        let enter = |from: &str, seconds| lobby.enter(ip(from), start + seconds * Duration::from_secs(1)).unwrap();
        let friend = enter("10.0.0.1", 0);
        let same = enter("::ffff:10.0.0.1", 0);
        let places: Vec<Place> = (0..9).map(|n| enter(&format!("2001:db8::{n}"), n)).collect();
        assert!(!goes(&friend) && !goes(&same) && places[..7].iter().all(goes) && lobby.len() == 4);
    }
}
