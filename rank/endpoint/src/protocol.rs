//! Transfers: the protocol between endpoints, without I/O. This file has the state; `send`, `receive` and `rma` have
//! the operations, and `arrival` takes frames from peers.
//!
//! Implements the messages of [`wire::message`] over the queues of `matching`. Operations go in as method calls, frames
//! through [`Sink`](crate::link::Sink); completions and items to send ([`Outgoing`]) come out of queues.
//!
//! *Credit.* A sender has credit at each peer. A `Start` costs [`ENVELOPE`] plus the bytes it promises; the receiver
//! returns the cost when the message has found its receive. So for unexpected messages a receiver stores at most its
//! number of peers times the credit. If the credit does not cover its bytes, a message promises none and waits for
//! `Go`; if it does not cover its envelope, the message waits at the sender.

use std::collections::VecDeque;
use std::sync::Arc;

use memory::{Buffer, Regions};
use rustc_hash::FxHashMap;
use slab::Slab;
use types::{Address, SiteId};
use wire::Message;
use wire::message::{Status, TransferId};

mod arrival;
mod receive;
mod rma;
mod send;

use crate::config::EndpointLimits;
use crate::link::{Outgoing, Sent};
use crate::matching::{Envelope, Posted, Unexpected, UnexpectedKey};
use crate::operation::{CompleteWhen, Completion, Failure, NotBegun, OperationKind, PeerId, SendOp, ShareOp, UserData};
use crate::sharing::{self, Sharing};

/// The cost of an envelope against a sender's credit, in bytes: about as much as the receiver stores for it.
pub(crate) const ENVELOPE: u64 = 128;
/// Maximum number of operations waiting for credit at a peer; further ones are refused.
const MAX_WAITING: usize = 16_384;
const SCRATCH: usize = 64 << 10;
/// The transfer number of all messages that are sent whole and never referred to again. `number` returns higher ones.
const WHOLE: TransferId = 1 << 31;

/// The place for a frame's bytes.
#[derive(Debug)]
pub(crate) struct FramePlace {
    from: PeerId,
    target: FrameTarget,
    /// Offset of the next byte in the transfer.
    at: u64,
    /// Offset of the frame's first byte.
    start: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameTarget {
    Discard,
    Active(usize),
    Unexpected(UnexpectedKey),
    Write(TransferId),
    Atomic(TransferId),
    /// Into the buffer of our own read or fetching atomic; a status ends it with this frame.
    Result(TransferId, Option<Status>),
    /// Into the buffer of a share.
    Share(u64),
}

struct Peer {
    address: Address,
    eager: u64,
    /// Bytes that we may still send to the peer.
    credit: u64,
    /// Bytes held here for the peer's unmatched messages.
    held: u64,
    /// Bytes of freed messages that were not yet returned as credit.
    freed: u64,
    waiting: VecDeque<SendOp>,
    lost: Option<String>,
}

/// A posted receive.
struct Receive {
    buffer: Buffer,
    user: UserData,
    multi: Option<usize>,
}

/// A multi-receive's buffer.
struct Multi {
    buffer: Buffer,
    least: usize,
    used: usize,
    arriving: usize,
    retired: bool,
}

/// A message that has found its receive.
struct Active {
    from: PeerId,
    id: TransferId,
    tagged: bool,
    tag: u64,
    data: Option<u64>,
    total: u64,
    /// Bytes that will arrive.
    expected: u64,
    received: u64,
    wants_done: bool,
    discard: bool,
    user: UserData,
    into: Into,
}

enum Into {
    Own(Buffer),
    Multi { multi: usize, offset: usize, room: usize },
}

/// A message that has not found its receive.
struct UnexpectedMessage {
    id: TransferId,
    total: u64,
    promised: u64,
    received: u64,
    data: Option<u64>,
    wants_done: bool,
    store: Vec<u8>,
    /// Its receive, if that was posted before all promised bytes arrived.
    active: Option<usize>,
}

/// A peer's transfer to us that is in flight.
enum Incoming {
    Active(usize),
    Unexpected(UnexpectedKey),
    Write { key: u64, address: u64, total: u64, received: u64, data: Option<u64>, status: Status },
    Atomic { message: Message, expected: usize, bytes: Vec<u8> },
}

/// Our transfer to a peer that is in flight.
enum OwnTransfer {
    /// A message: waits for `Go` if it has a buffer, for `Done` if `delivered`.
    Send {
        to: PeerId,
        rest: Option<Arc<Buffer>>,
        promised: u64,
        /// Number of its items that have not been sent. They need the user's memory.
        queued: u8,
        complete: CompleteWhen,
        done: Sent,
    },
    /// Waits for `Done`; the user gets a completion if `report`.
    Write {
        to: PeerId,
        report: Option<Sent>,
    },
    Read {
        from: PeerId,
        user: UserData,
        buffer: Buffer,
        received: u64,
    },
    Atomic {
        to: PeerId,
        user: UserData,
        result: Buffer,
    },
}

/// The protocol's state: one per endpoint.
pub(crate) struct Protocol {
    limits: EndpointLimits,
    credit_window: u64,
    site: SiteId,
    regions: Arc<Regions>,
    peers: Vec<Peer>,
    by_address: FxHashMap<Address, PeerId>,
    posted: Posted<Receive>,
    unexpected: Unexpected<UnexpectedMessage>,
    multis: Slab<Multi>,
    active: Slab<Active>,
    incoming: FxHashMap<(PeerId, TransferId), Incoming>,
    transfers: Slab<OwnTransfer>,
    claimed: FxHashMap<usize, UnexpectedKey>,
    next_number: u32,
    scratch: Vec<u8>,
    pub completions: VecDeque<Completion>,
    pub outbox: VecDeque<(PeerId, Outgoing)>,
    pub sharing: Sharing,
}

impl Protocol {
    /// `credit_window`: the number of bytes that each peer may have stored here, the same on all endpoints of a job.
    /// `site`: peers of other sites are behind gateways.
    pub(crate) fn new(limits: EndpointLimits, credit_window: u64, site: SiteId, regions: Arc<Regions>) -> Protocol {
        Protocol {
            limits,
            credit_window,
            site,
            regions,
            peers: Vec::new(),
            by_address: FxHashMap::default(),
            posted: Posted::new(),
            unexpected: Unexpected::new(),
            multis: Slab::new(),
            active: Slab::new(),
            incoming: FxHashMap::default(),
            transfers: Slab::new(),
            claimed: FxHashMap::default(),
            next_number: 0,
            scratch: Vec::new(),
            completions: VecDeque::new(),
            outbox: VecDeque::new(),
            sharing: Sharing::default(),
        }
    }

    /// Interns an address. An endpoint of a job may be known by its identity before its listening address is known.
    pub(crate) fn intern(&mut self, address: Address) -> PeerId {
        if let Some(id) = self.by_address.get(&address.key()) {
            let peer = &mut self.peers[id.0 as usize];
            if peer.address.socket.port() == 0 {
                peer.address = address;
            }
            return *id;
        }
        let id = PeerId(self.peers.len() as u32);
        let remote = address.identity.site != self.site;
        let eager = if remote { self.limits.eager_remote } else { self.limits.eager };
        self.peers.push(Peer {
            address,
            eager: eager.min(self.credit_window / 2),
            credit: self.credit_window,
            held: 0,
            freed: 0,
            waiting: VecDeque::new(),
            lost: None,
        });
        self.by_address.insert(address.key(), id);
        id
    }

    /// Sets the maximum number of bytes of a message that are sent eagerly to this peer.
    pub(crate) fn set_eager(&mut self, peer: PeerId, eager: u64) {
        if let Some(peer) = self.peers.get_mut(peer.0 as usize) {
            peer.eager = eager.min(self.credit_window / 2);
        }
    }

    /// True if none of our transfers, and no answer to one, is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.sharing.is_idle()
            && self.transfers.is_empty()
            && self.outbox.is_empty()
            && self.peers.iter().all(|peer| peer.waiting.is_empty())
    }

    /// True if an operation has still to arrive or to be sent. Multi-receive buffers, which MPI libraries keep posted
    /// all the time, do not count.
    pub(crate) fn is_awaited(&self) -> bool {
        let standing = self.multis.iter().filter(|(_, multi)| !multi.retired).count();
        self.posted.len() > standing || self.sharing.is_awaited() || !self.is_idle()
    }

    /// Bytes stored for unexpected messages.
    #[cfg(test)]
    pub(crate) fn stored(&self) -> u64 {
        self.peers.iter().map(|peer| peer.held).sum()
    }

    fn checked(&mut self, peer: PeerId) -> Result<&mut Peer, NotBegun> {
        self.peers.get_mut(peer.0 as usize).ok_or(NotBegun::UnknownPeer)
    }

    fn lost_failure(&self, peer: PeerId) -> Failure {
        let peer = &self.peers[peer.0 as usize];
        Failure::PeerLost { address: peer.address, reason: peer.lost.clone().unwrap_or_default() }
    }

    pub(crate) fn share(&mut self, op: ShareOp) -> Result<(), NotBegun> {
        sharing::check(&op, self.site, |peer| self.peers.get(peer.0 as usize).map(|peer| peer.address.identity))?;
        let lost: Vec<(PeerId, Failure)> = op
            .to
            .iter()
            .filter(|peer| self.peers[peer.0 as usize].lost.is_some())
            .map(|peer| (*peer, self.lost_failure(*peer)))
            .collect();
        let cost = sharing::cost(op.buffer.len() as u64);
        let why_lost = |peer| lost.iter().find(|(other, _)| *other == peer).map(|(_, failure)| failure.clone());
        let has_credit = |peer: PeerId| {
            let peer = &self.peers[peer.0 as usize];
            peer.waiting.is_empty() && peer.credit >= cost.saturating_add(self.credit_window / 2)
        };
        for peer in self.sharing.share(op, why_lost, has_credit) {
            self.peers[peer.0 as usize].credit -= cost;
        }
        Ok(())
    }

    pub(crate) fn receive_share(
        &mut self,
        from: PeerId,
        key: u64,
        buffer: Buffer,
        user: UserData,
    ) -> Result<(), NotBegun> {
        if self.checked(from)?.lost.is_some() {
            let failure = self.lost_failure(from);
            let done = Completion { from: Some(from), buffer: Some(buffer), ..blank(OperationKind::Share, user) };
            self.sharing.completions.push_back(Completion { result: Err(failure), ..done });
            return Ok(());
        }
        let bytes = buffer.len() as u64;
        let cost = self.sharing.receive(from, key, buffer, user)?;
        // `Ready` returns the credit.
        self.peers[from.0 as usize].held -= cost;
        self.outbox.push_back((from, Outgoing::header(Message::Ready { key, bytes })));
        Ok(())
    }
}

/// The envelope and lengths of a message that starts.
struct MessageStart {
    envelope: Envelope,
    id: TransferId,
    total: u64,
    promised: u64,
    data: Option<u64>,
    wants_done: bool,
}

pub(crate) fn blank(kind: OperationKind, user: UserData) -> Completion {
    Completion {
        kind,
        user,
        tagged: false,
        tag: 0,
        length: 0,
        offset: 0,
        data: None,
        from: None,
        released: false,
        buffer: None,
        result: Ok(()),
    }
}

fn completion_of(sent: Sent, result: Result<(), Failure>) -> Completion {
    match sent {
        Sent::Complete { kind, user, tagged, tag, length } => {
            Completion { tagged, tag, length, result, ..blank(kind, user) }
        }
        Sent::Transfer(_) | Sent::Share(_) => Completion { result, ..blank(OperationKind::Send, UserData::default()) },
    }
}

#[cfg(test)]
mod tests;
