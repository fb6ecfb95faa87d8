//! Connections that wait for admission, and the choice of the one to drop when there are too many.
//!
//! Strangers may open connections and send little (slow loris) or nothing. Each costs a few KiB until its handshake
//! completes or times out. An address does not identify a peer: users of a login node share one, and so do machines
//! behind a NAT. So a peer that proves something is served first ([`wire::token`]), and the places are divided into
//! three rooms:
//!
//! - *Arrivals* have not sent their first message yet. A newcomer always gets in. If the room is full, the newcomer
//!   replaces the longest-waiting connection of the address with the most connections.
//! - *Proven* peers sent a valid token. They replace unproven ones, never the reverse. If there are too many proven
//!   peers, the secret with the most connections loses one.
//! - *Unproven* peers sent a message without a valid token: peers of earlier releases, other sites' gateways that dial
//!   for the first time, strangers. If there are too many, the address with the most connections loses one.
//!
//! If the newcomer's own address or secret has the most, connections younger than [`HONEST`] keep their places and the
//! newcomer is refused. Ranks that connect at once, even many, are thus admitted one after the other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::door::tokens::Credential;

/// Approximate cost in bytes of a connection until it is admitted or its handshake times out.
const COST: u64 = 16 << 10;
/// Number of places in a small gateway; [`MOST`] is the limit for any gateway. Arrivals have a quarter more.
const USUAL: u64 = 512;
const MOST: u64 = 4096;
/// Minimum age at which a connection may be replaced by one from the same address or with the same secret. An honest
/// handshake is done by then.
const HONEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Lobby {
    /// Most proven and unproven connections together.
    most: usize,
    rooms: RefCell<Rooms>,
    came: Cell<u64>,
}

#[derive(Debug, Default)]
struct Rooms {
    arrivals: Room,
    proven: Room,
    unproven: Room,
}

impl Rooms {
    fn of(&mut self, who: Who) -> &mut Room {
        match who {
            Who::Arrival(_) => &mut self.arrivals,
            Who::Proven(_) => &mut self.proven,
            Who::Unproven(_) => &mut self.unproven,
        }
    }
}

/// The group of a connection: its room, and the address or secret that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    Arrival(IpAddr),
    Proven(Credential),
    Unproven(IpAddr),
}

/// The connections in one room, by group and in order of arrival. No group is empty.
#[derive(Debug, Default)]
struct Room {
    groups: HashMap<Who, BTreeMap<u64, WaitingPeer>>,
    len: usize,
}

#[derive(Debug)]
struct WaitingPeer {
    since: Instant,
    goes: Rc<Notify>,
}

impl Room {
    fn put(&mut self, who: Who, number: u64, waiting: WaitingPeer) {
        self.len += 1;
        self.groups.entry(who).or_default().insert(number, waiting);
    }

    fn remove(&mut self, who: Who, number: u64) -> Option<WaitingPeer> {
        let group = self.groups.get_mut(&who)?;
        let gone = group.remove(&number)?;
        self.len -= 1;
        if group.is_empty() {
            self.groups.remove(&who);
        }
        Some(gone)
    }

    /// Drops the longest-waiting connection of the largest group. The newcomer counts as a member of its group. `may`
    /// returns true if this group may lose a connection that has waited since this instant. Returns true if a
    /// connection was dropped.
    fn make_room(&mut self, newcomer: Option<Who>, may: impl FnOnce(Who, Instant) -> bool) -> bool {
        let len = |who: Who, group: &BTreeMap<u64, WaitingPeer>| group.len() + usize::from(newcomer == Some(who));
        let most = self.groups.iter().map(|(who, group)| len(*who, group)).max().unwrap_or(0);
        let oldest = self
            .groups
            .iter()
            .filter(|(who, group)| len(**who, group) == most)
            .filter_map(|(who, group)| group.first_key_value().map(|(number, one)| (*number, *who, one.since)))
            .min_by_key(|(number, ..)| *number);
        let gone = oldest.filter(|(_, who, since)| may(*who, *since));
        let gone = gone.and_then(|(number, who, _)| self.remove(who, number));
        gone.inspect(|gone| gone.goes.notify_one()).is_some()
    }
}

/// Number of places for proven and unproven connections in a gateway with this much memory and this many file
/// descriptors. Half of the descriptors are reserved for admitted connections.
pub(crate) fn places(memory: u64, descriptors: u64) -> usize {
    (memory / 16 / COST).clamp(USUAL, MOST).min(descriptors / 5 * 2).max(1) as usize
}

impl Lobby {
    /// `most`: limit on proven and unproven connections together. Arrivals get a quarter of it in addition.
    pub(crate) fn new(most: usize) -> Lobby {
        Lobby { most, rooms: RefCell::default(), came: Cell::new(0) }
    }

    /// Number of waiting connections.
    pub(crate) fn len(&self) -> usize {
        let rooms = self.rooms.borrow();
        rooms.arrivals.len + rooms.proven.len + rooms.unproven.len
    }

    /// Returns true if a newcomer must take the place of another arrival.
    pub(crate) fn is_full(&self) -> bool {
        self.rooms.borrow().arrivals.len >= (self.most / 4).max(1)
    }

    /// An eighth of the places is reserved for unproven connections.
    fn most_proven(&self) -> usize {
        (self.most - self.most / 8).max(1)
    }

    /// Lets a newcomer in. If there are too many arrivals, one of them has to go: its [`LobbySeat::must_go`] returns.
    pub(crate) fn enter(self: &Rc<Lobby>, from: IpAddr, now: Instant) -> LobbySeat {
        let who = Who::Arrival(network(from));
        let full = self.is_full();
        let mut rooms = self.rooms.borrow_mut();
        if full {
            rooms.arrivals.make_room(Some(who), |_, _| true);
        }
        let number = self.came.get();
        self.came.set(number + 1);
        let goes = Rc::new(Notify::new());
        rooms.arrivals.put(who, number, WaitingPeer { since: now, goes: goes.clone() });
        LobbySeat { lobby: self.clone(), number, who: Cell::new(who), goes }
    }

    /// Returns true if there is a place for this proven or unproven connection, after dropping another one if
    /// necessary.
    fn has_room(&self, who: Who, now: Instant) -> bool {
        let mut rooms = self.rooms.borrow_mut();
        let older = |since| now.duration_since(since) >= HONEST;
        let full = rooms.proven.len + rooms.unproven.len >= self.most;
        match who {
            Who::Proven(_) if rooms.proven.len >= self.most_proven() => {
                rooms.proven.make_room(Some(who), |whose, since| whose != who || older(since))
            }
            Who::Proven(_) if full => rooms.unproven.make_room(None, |_, _| true),
            Who::Unproven(_) if full => {
                rooms.unproven.make_room(Some(who), |whose, since| whose != who || older(since))
            }
            _ => true,
        }
    }
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct LobbySeat {
    lobby: Rc<Lobby>,
    number: u64,
    who: Cell<Who>,
    goes: Rc<Notify>,
}

impl LobbySeat {
    /// Returns when a newcomer has been given this place.
    pub(crate) async fn must_go(&self) {
        self.goes.notified().await;
    }

    /// Moves the connection to the proven ones. Returns false if it must go.
    #[must_use]
    pub(crate) fn proved(&self, credential: Credential, now: Instant) -> bool {
        self.becomes(Who::Proven(credential), now)
    }

    /// Moves the connection to the unproven ones: its first message, from this address, proved nothing. Returns false
    /// if it must go.
    #[must_use]
    pub(crate) fn proved_nothing(&self, from: IpAddr, now: Instant) -> bool {
        self.becomes(Who::Unproven(network(from)), now)
    }

    fn becomes(&self, who: Who, now: Instant) -> bool {
        let before = self.who.replace(who);
        let waiting = self.lobby.rooms.borrow_mut().of(before).remove(before, self.number);
        // The connection has already lost its place, and its task has been notified to end it.
        let Some(waiting) = waiting else { return false };
        let stays = self.lobby.has_room(who, now);
        if stays {
            self.lobby.rooms.borrow_mut().of(who).put(who, self.number, waiting);
        }
        stays
    }
}

impl Drop for LobbySeat {
    fn drop(&mut self) {
        let who = self.who.get();
        self.lobby.rooms.borrow_mut().of(who).remove(who, self.number);
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
mod tests;
