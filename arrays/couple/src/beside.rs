//! Memory that ranks of one node lend each other: another rank unpacks pieces in place, so MPI does not copy them.
//!
//! Two ranks that will exchange pieces agree on this once: the sender sends its [`Beside::address`], and the receiver
//! answers whether it could [`Beside::open`] that address. From then on the sender may send the number of a slot in
//! place of the piece in it, but need not: the receiver distinguishes the two by the length of the message.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use pool::lending::ADDRESS;
use pool::lending::{Borrower, Lender, Lent};

use crate::pieces::PIECE;

/// Number of slots that a process lends: enough for it to go on while readers wait for a core.
const SLOTS: u64 = 32;
/// Minimum bytes of a message for which ranks agree: a shorter one completes before the agreement would.
pub const WORTH: usize = 64 << 10;
/// Minimum bytes of a lent piece; the message that names a slot is shorter.
pub(crate) const LEAST: usize = 4096;
const _: () = assert!(Lent::BYTES < LEAST);

/// See the module docs. A rank has one for each communicator.
#[derive(Debug)]
pub struct Beside {
    /// Number of slots that it lends, and bytes of each.
    slots: (u64, u64),
    /// `None`: there is no memory to lend.
    own: OnceLock<Option<Arc<Lender>>>,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    /// Ranks that can read this rank's slots.
    readers: HashSet<u32>,
    others: HashMap<u32, Arc<Borrower>>,
}

impl Default for Beside {
    fn default() -> Beside {
        Beside::of(SLOTS, PIECE as u64)
    }
}

impl Beside {
    pub(crate) fn of(count: u64, bytes: u64) -> Beside {
        Beside { slots: (count, bytes), own: OnceLock::new(), peers: Mutex::default() }
    }

    /// The address by which other ranks open this rank's slots; empty: there is no memory to lend.
    pub fn address(&self) -> Vec<u8> {
        let (count, bytes) = self.slots;
        let make = || Lender::new(count, bytes).ok().map(Arc::new);
        self.own.get_or_init(make).as_ref().map_or_else(Vec::new, |own| own.address().to_vec())
    }

    /// Opens another rank's slots by their address. Returns true if this rank can read them.
    pub fn open(&self, rank: u32, address: &[u8]) -> bool {
        let Ok(other) = Borrower::open(address) else { return false };
        self.lock().others.insert(rank, Arc::new(other));
        true
    }

    /// Records that another rank can read this rank's slots.
    pub fn allow(&self, rank: u32) {
        self.lock().readers.insert(rank);
    }

    /// The slots that this rank lends, if any rank can read them.
    pub(crate) fn lender(&self) -> Option<Arc<Lender>> {
        self.own.get()?.clone().filter(|_| !self.lock().readers.is_empty())
    }

    /// Returns true if the rank can read this rank's slots.
    pub(crate) fn reads(&self, rank: u32) -> bool {
        self.lock().readers.contains(&rank)
    }

    /// The opened slots of another rank, if any.
    pub(crate) fn borrower(&self, rank: u32) -> Option<Arc<Borrower>> {
        self.lock().others.get(&rank).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
