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
use crate::state::State;
use crate::trees::Planned;

/// A share has at most this many receivers, and this many sites get it.
pub(crate) const MOST_RECEIVERS: usize = 64;
/// Low bits of a key, which number a communicator's chunks.
const CHUNK_BITS: u32 = 24;
/// Of these, the one that tells what leaders tell each other from the chunks of broadcasts.
const LEADERS: u64 = 1 << (CHUNK_BITS - 1);

/// How the ranks of a communicator reach each other's endpoints.
pub(crate) struct Shares {
    transport: &'static dyn Transport,
    algorithm: Option<plan::Algorithm>,
    /// By rank of the communicator.
    addresses: Vec<Address>,
    /// The high bits of the communicator's keys.
    context: u64,
    /// The number of the next chunk, the same on all ranks.
    next: Cell<u64>,
    /// The same among its leaders, for what they tell each other.
    told: Cell<u64>,
    /// For messages that this rank sends to other sites.
    planned: RefCell<Option<Planned>>,
}

/// Tells the communicators of this process apart.
static NEXT_CONTEXT: AtomicU64 = AtomicU64::new(0);
/// Tells the shares of this process apart.
static NEXT_TICKET: AtomicUsize = AtomicUsize::new(1);
/// Shares that have ended and whose threads have not looked yet: whether they succeeded.
static ENDED: Mutex<Option<HashMap<usize, bool>>> = Mutex::new(None);

impl Shares {
    /// Agrees with the ranks of `private` on how to use shares; `None` if one of them has no endpoint. Collective.
    pub(crate) fn agree(mpi: &Mpi, state: &State, private: Handle, size: usize) -> Result<Option<Shares>, Fault> {
        let mut own = None;
        let (transport, algorithm) = (state.transport, state.algorithm);
        transport.with(&mut |endpoint| own = Some(endpoint.address()));
        // The address of a rank in a job is never all zeros.
        let mut bytes = [0; ADDRESS_LEN + 8];
        if let Some(own) = own {
            bytes[..ADDRESS_LEN].copy_from_slice(&own.to_bytes());
        }
        // No two communicators of a rank propose the same, so what all proposed names the communicator. That two have
        // the same hash is unlikely beyond concern.
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

    /// Numbers for the next `count` chunks of the communicator: the number of the first one.
    pub(crate) fn reserve(&self, count: usize) -> u64 {
        let first = self.next.get();
        self.next.set(first.wrapping_add(count as u64) % LEADERS);
        first
    }

    /// The number of what each leader now tells all others.
    pub(crate) fn reserve_for_leaders(&self) -> u64 {
        self.told.set((self.told.get() + 1) % LEADERS);
        LEADERS + self.told.get()
    }

    fn key(&self, chunk: u64) -> u64 {
        self.context | chunk
    }

    /// Awaits a chunk. `None`: too many are awaited, try again later.
    ///
    /// # Safety
    /// `start` has room for `length` bytes, which nobody else touches until the share has ended.
    pub(crate) unsafe fn receive(
        &self,
        from: u32,
        chunk: u64,
        (start, length): (*mut u8, usize),
    ) -> Result<Option<Share<'_>>, Fault> {
        let address = self.addresses[from as usize];
        self.begin(|endpoint, user| {
            let peer = endpoint.peer(address);
            // SAFETY: the caller's promise.
            let buffer = unsafe { Buffer::from_raw([(start, length)]) }.unwrap_or_else(Buffer::empty);
            endpoint.receive_share(peer, self.key(chunk), buffer, user)
        })
    }

    /// Sends a chunk of a message of `bytes` from site `own` to the ranks `to`, at the sites `sites`. `None`: try again
    /// later.
    ///
    /// # Safety
    /// `start` holds `length` bytes, which nobody changes until the share has ended.
    pub(crate) unsafe fn send(
        &self,
        chunk: u64,
        (start, length): (*mut u8, usize),
        to: &[u32],
        trees: &Trees<'_>,
    ) -> Result<Option<Share<'_>>, Fault> {
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

    /// Takes note of shares that have ended. Makes no progress.
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
    ) -> Result<Option<Share<'_>>, Fault> {
        let ticket = NEXT_TICKET.fetch_add(1, Ordering::Relaxed);
        let user = UserData { context: ticket, flags: 0 };
        let mut result = Err(NotBegun::Closed);
        self.transport.with(&mut |endpoint| result = work(endpoint, user));
        match result {
            Ok(()) => Ok(Some(Share { shares: self, ticket, has_ended: false })),
            Err(NotBegun::Again) => Ok(None),
            Err(_) => Err(Fault::LOST),
        }
    }
}

/// FNV-1a (Fowler, Noll and Vo), of 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What trees are planned for.
#[derive(Clone, Copy)]
pub(crate) struct Trees<'a> {
    /// The site that sends.
    pub own: SiteId,
    /// Those that receive.
    pub others: &'a [SiteId],
    /// Bytes of the whole message.
    pub bytes: u64,
}

/// A share in flight. Dropped before its end, it gives its memory back all the same.
pub(crate) struct Share<'a> {
    shares: &'a Shares,
    ticket: usize,
    has_ended: bool,
}

impl Share<'_> {
    /// Whether it had ended when [`Shares::collect`] was called last; a fault if something of it was lost.
    pub(crate) fn has_ended(&mut self) -> Result<bool, Fault> {
        let found = ENDED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().remove(&self.ticket);
        self.has_ended |= found.is_some();
        if found == Some(false) { Err(Fault::LOST) } else { Ok(self.has_ended) }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let user = UserData { context: self.ticket, flags: 0 };
        // What is being sent is read until it has ended, which it does once its receivers have it or are lost.
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
