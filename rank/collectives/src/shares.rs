//! Chunks of a message between sites: shares of the rank's endpoint, sent once and copied by gateways.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use endpoint::{Endpoint, NotBegun, ShareOp, UserData};
use memory::Buffer;
use types::id::ADDRESS_LEN;
use types::{Address, SiteId};

use crate::abi::Handle;
use crate::door::Transport;
use crate::mpi::{Fault, Mpi};
use crate::state::CollectivesState;
use crate::trees::Planned;

/// Maximum number of a share's receivers, and of the sites that get it.
pub(crate) const MOST_RECEIVERS: usize = 64;
/// Number of low bits of a key that number a communicator's chunks.
const CHUNK_BITS: u32 = 24;
/// One of these bits: set for the leaders' exchanges, clear for chunks of broadcasts.
const LEADERS: u64 = 1 << (CHUNK_BITS - 1);

/// State for sharing chunks among the ranks of a communicator.
pub(crate) struct Shares {
    transport: &'static dyn Transport,
    algorithm: Option<plan::Algorithm>,
    /// Address of each rank of the communicator.
    addresses: Vec<Address>,
    /// The high bits of the communicator's keys.
    context: u64,
    /// Number of the next chunk, the same on all ranks.
    next: Cell<u64>,
    /// Number of the leaders' last exchange, the same on all leaders.
    told: Cell<u64>,
    /// Trees for messages that this rank sends to other sites.
    planned: RefCell<Option<Planned>>,
}

/// Number of the next communicator of this process, which distinguishes it from the others.
static NEXT_CONTEXT: AtomicU64 = AtomicU64::new(0);
/// Number of the next share of this process, which distinguishes it from the others.
static NEXT_TICKET: AtomicUsize = AtomicUsize::new(1);
/// Shares that have ended but whose threads have not looked yet; true if the share succeeded.
static ENDED: Mutex<Option<HashMap<usize, bool>>> = Mutex::new(None);

impl Shares {
    /// Agrees with the ranks of `private` on the use of shares; `None` if one of them has no endpoint. Collective.
    pub(crate) fn agree(
        mpi: &Mpi,
        state: &CollectivesState,
        private: Handle,
        size: usize,
    ) -> Result<Option<Shares>, Fault> {
        let mut own = None;
        let (transport, algorithm) = (state.transport, state.algorithm);
        transport.with(&mut |endpoint| own = Some(endpoint.address()));
        // The address of a rank in a job is never all zeros.
        let mut bytes = [0; ADDRESS_LEN + 8];
        if let Some(own) = own {
            bytes[..ADDRESS_LEN].copy_from_slice(&own.to_bytes());
        }
        // No two communicators of a rank propose the same number, so the proposals of all ranks together identify the
        // communicator. A collision of two hashes is too unlikely to matter.
        let proposed = NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed);
        bytes[ADDRESS_LEN..].copy_from_slice(&proposed.to_le_bytes());
        let all = mpi.all(private, bytes, size)?;
        let address = |bytes: &[u8; ADDRESS_LEN + 8]| Address::from_bytes(bytes.first_chunk()?);
        let addresses: Option<Vec<Address>> = all.iter().map(|bytes| address(bytes).filter(|at| at.job != 0)).collect();
        let context = hash(all.as_flattened()) << CHUNK_BITS;
        let planned = RefCell::default();
        let (next, told) = Default::default();
        Ok(addresses.map(|addresses| Shares { transport, algorithm, addresses, context, next, told, planned }))
    }

    /// Reserves numbers for the next `count` chunks of the communicator; returns the first.
    pub(crate) fn reserve(&self, count: usize) -> u64 {
        let first = self.next.get();
        self.next.set(first.wrapping_add(count as u64) % LEADERS);
        first
    }

    /// Reserves the number of the leaders' next exchange.
    pub(crate) fn reserve_for_leaders(&self) -> u64 {
        self.told.set((self.told.get() + 1) % LEADERS);
        LEADERS + self.told.get()
    }

    fn key(&self, chunk: u64) -> u64 {
        self.context | chunk
    }

    /// Awaits a chunk. `None`: too many are awaited already; try again later.
    ///
    /// # Safety
    /// `start` has room for `length` bytes, which nobody else touches until the share has ended.
    pub(crate) unsafe fn receive(
        &self,
        from: u32,
        chunk: u64,
        (start, length): (*mut u8, usize),
    ) -> Result<Option<PendingShare<'_>>, Fault> {
        let address = self.addresses[from as usize];
        self.begin(|endpoint, user| {
            let peer = endpoint.peer(address);
            // SAFETY: the caller's promise.
            let buffer = unsafe { Buffer::from_raw([(start, length)]) }.unwrap_or_else(Buffer::empty);
            endpoint.receive_share(peer, self.key(chunk), buffer, user)
        })
    }

    /// Sends a chunk to the ranks `to`, along trees planned from `trees`. `None`: try again later.
    ///
    /// # Safety
    /// `start` holds `length` bytes, which nobody changes until the share has ended.
    pub(crate) unsafe fn send(
        &self,
        chunk: u64,
        (start, length): (*mut u8, usize),
        to: &[u32],
        trees: &Trees<'_>,
    ) -> Result<Option<PendingShare<'_>>, Fault> {
        self.begin(|endpoint, user| {
            let trees = self.trees(endpoint, trees);
            let to = to.iter().map(|rank| endpoint.peer(self.addresses[*rank as usize])).collect();
            // SAFETY: the caller's promise.
            let buffer = unsafe { Buffer::from_raw([(start, length)]) }.unwrap_or_else(Buffer::empty);
            endpoint.share(ShareOp { key: self.key(chunk), to, buffer, trees, user })
        })
    }

    fn trees(&self, endpoint: &Endpoint, wanted: &Trees<'_>) -> Vec<endpoint::ShareTree> {
        let mut planned = self.planned.borrow_mut();
        let links = endpoint.links();
        let Trees { own, others, bytes } = *wanted;
        match &*planned {
            Some(planned) if planned.serves(links, bytes) => planned.trees.clone(),
            _ => planned.insert(Planned::new(links, own, others, bytes, self.algorithm)).trees.clone(),
        }
    }

    /// Records shares that have ended. Makes no progress.
    pub(crate) fn collect(&self) {
        self.transport.with(&mut |endpoint| {
            let mut ended = None;
            while let Some(done) = endpoint.next_share_completion() {
                let ended = ended.get_or_insert_with(|| ENDED.lock().unwrap_or_else(PoisonError::into_inner));
                ended.get_or_insert_default().insert(done.user.context, done.result.is_ok());
            }
        });
    }

    fn begin(
        &self,
        work: impl Fn(&mut Endpoint, UserData) -> Result<(), NotBegun>,
    ) -> Result<Option<PendingShare<'_>>, Fault> {
        let ticket = NEXT_TICKET.fetch_add(1, Ordering::Relaxed);
        let user = UserData { context: ticket, flags: 0 };
        let mut result = Err(NotBegun::Closed);
        self.transport.with(&mut |endpoint| result = work(endpoint, user));
        match result {
            Ok(()) => Ok(Some(PendingShare { shares: self, ticket, has_ended: false })),
            Err(NotBegun::Again) => Ok(None),
            Err(_) => Err(Fault::LOST),
        }
    }
}

/// 64-bit FNV-1a hash (Fowler, Noll and Vo).
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Input for planning trees.
#[derive(Clone, Copy)]
pub(crate) struct Trees<'a> {
    /// The sending site.
    pub own: SiteId,
    /// The receiving sites.
    pub others: &'a [SiteId],
    /// Length of the whole message, in bytes.
    pub bytes: u64,
}

/// A share in flight. If dropped before its end, it releases its memory first.
pub(crate) struct PendingShare<'a> {
    shares: &'a Shares,
    ticket: usize,
    has_ended: bool,
}

impl PendingShare<'_> {
    /// Returns true if it had ended at the last call of [`Shares::collect`]; a fault if part of it was lost.
    pub(crate) fn has_ended(&mut self) -> Result<bool, Fault> {
        let found = ENDED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().remove(&self.ticket);
        self.has_ended |= found.is_some();
        if found == Some(false) { Err(Fault::LOST) } else { Ok(self.has_ended) }
    }
}

impl Drop for PendingShare<'_> {
    fn drop(&mut self) {
        let user = UserData { context: self.ticket, flags: 0 };
        // The memory of a share that is being sent is read until it ends: when its receivers have it or are lost.
        while !self.has_ended {
            let mut is_free = true;
            let is_open = self.shares.transport.with(&mut |endpoint| {
                is_free = endpoint.forget_share(user);
                if !is_free {
                    endpoint.wait(Duration::from_millis(1));
                }
            });
            self.shares.collect();
            let found =
                ENDED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().remove(&self.ticket);
            self.has_ended = is_free || !is_open || found.is_some();
        }
    }
}
