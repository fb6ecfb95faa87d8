//! What ranks of one node lend each other of their memory: pieces that another rank unpacks where they are, instead of
//! MPI's copying them.
//!
//! Ranks that will exchange pieces agree on that once: the one that sends tells its [`Beside::address`], the other one
//! answers whether it could [`Beside::open`] it. From then on the first may send, in place of a piece, which slot it is
//! in. It need not: the length of a message says what it is.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use pool::lending::ADDRESS;
use pool::lending::{Borrower, Lender, Lent};

use crate::pieces::PIECE;

/// Slots that a process lends: enough for it to go on while those that read wait for a core.
const SLOTS: u64 = 32;
/// Bytes of a message for which ranks agree: less is over sooner than they have.
pub const WORTH: usize = 64 << 10;
/// Bytes of the least piece that is lent; what says where a piece is has fewer.
pub(crate) const LEAST: usize = 4096;
const _: () = assert!(Lent::BYTES < LEAST);

/// See the module docs. A rank has one for each communicator.
#[derive(Debug)]
pub struct Beside {
    /// How many slots it lends, and their bytes.
    slots: (u64, u64),
    /// `None`: there is no memory to lend.
    own: OnceLock<Option<Arc<Lender>>>,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    /// Ranks that can read what is lent.
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

    /// What the ranks have to know that shall read from this one; empty: they cannot.
    pub fn address(&self) -> Vec<u8> {
        let (count, bytes) = self.slots;
        let make = || Lender::new(count, bytes).ok().map(Arc::new);
        self.own.get_or_init(make).as_ref().map_or_else(Vec::new, |own| own.address().to_vec())
    }

    /// Whether this rank can read what another one lends whose address this is.
    pub fn open(&self, rank: u32, address: &[u8]) -> bool {
        let Ok(other) = Borrower::open(address) else { return false };
        self.lock().others.insert(rank, Arc::new(other));
        true
    }

    /// Another rank has said that it can read what this one lends.
    pub fn allow(&self, rank: u32) {
        self.lock().readers.insert(rank);
    }

    /// What this rank lends, if any can read it.
    pub(crate) fn lender(&self) -> Option<Arc<Lender>> {
        self.own.get()?.clone().filter(|_| !self.lock().readers.is_empty())
    }

    /// Whether a rank can read what this one lends.
    pub(crate) fn reads(&self, rank: u32) -> bool {
        self.lock().readers.contains(&rank)
    }

    /// By which what a rank lends can be read.
    pub(crate) fn borrower(&self, rank: u32) -> Option<Arc<Borrower>> {
        self.lock().others.get(&rank).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
