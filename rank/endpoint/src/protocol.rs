//! Transfers: the protocol between endpoints, without I/O. This file has the state and the user's operations; `arrival`
//! handles frames from peers.
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

use crate::config::EndpointLimits;
use crate::link::{Bytes, Outgoing, Sent};
use crate::matching::{Envelope, Posted, Unexpected, UnexpectedKey};
use crate::operation::{
    AtomicOp, CompleteWhen, Completion, Failure, MAX_ATOMIC, Match, NotBegun, OperationKind, PeekThen, PeerId, ReadOp,
    RecvOp, SendOp, ShareOp, UserData, WriteOp,
};
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

    pub(crate) fn send(&mut self, op: SendOp) -> Result<(), NotBegun> {
        let peer = self.checked(op.to)?;
        if peer.lost.is_some() {
            self.unsent_op(&op);
            return Ok(());
        }
        if peer.waiting.is_empty() && peer.credit >= ENVELOPE {
            self.start(op);
            return Ok(());
        }
        if peer.waiting.len() >= MAX_WAITING {
            return Err(NotBegun::Again);
        }
        let buffered = op.complete == CompleteWhen::Buffered;
        peer.waiting.push_back(if buffered { SendOp { buffer: op.buffer.into_owned(), ..op } } else { op });
        Ok(())
    }

    /// Sends a short message whole, if nothing prevents it and `write` takes it at once. Otherwise returns the
    /// operation. Most messages over memory take this short path.
    pub(crate) fn send_whole(&mut self, op: SendOp, write: impl FnOnce(&Message, &[u8]) -> bool) -> Result<(), SendOp> {
        let (Some(bytes), Some(peer)) = (op.buffer.as_slice(), self.peers.get_mut(op.to.0 as usize)) else {
            return Err(op);
        };
        let total = bytes.len() as u64;
        let delivered = op.complete == CompleteWhen::Delivered;
        if delivered
            || total > peer.eager
            || peer.credit < ENVELOPE + total
            || !peer.waiting.is_empty()
            || peer.lost.is_some()
        {
            return Err(op);
        }
        let (tagged, tag) = (op.tag.is_some(), op.tag.unwrap_or(0));
        let message =
            Message::Start { id: WHOLE, tagged, tag, total, promised: total, data: op.data, wants_done: false };
        if !write(&message, bytes) {
            return Err(op);
        }
        peer.credit -= ENVELOPE + total;
        self.completions.push_back(Completion { tagged, tag, length: total, ..blank(OperationKind::Send, op.user) });
        Ok(())
    }

    /// Starts sends that waited for credit.
    fn start_waiting(&mut self, to: PeerId) {
        loop {
            let peer = &mut self.peers[to.0 as usize];
            if peer.credit < ENVELOPE {
                return;
            }
            let Some(op) = peer.waiting.pop_front() else { return };
            self.start(op);
        }
    }

    /// Starts a send whose envelope has credit.
    fn start(&mut self, op: SendOp) {
        let SendOp { to, tag, data, buffer, complete, user } = op;
        let total = buffer.len() as u64;
        let peer = &mut self.peers[to.0 as usize];
        let wish = total.min(peer.eager);
        let promised = if peer.credit >= ENVELOPE + wish { wish } else { 0 };
        peer.credit -= ENVELOPE + promised;
        let (tagged, tag) = (tag.is_some(), tag.unwrap_or(0));
        let start = |id, wants_done| Message::Start { id, tagged, tag, total, promised, data, wants_done };
        let done = Sent::Complete { kind: OperationKind::Send, user, tagged, tag, length: total };
        let item = |id, wants_done, end, bytes| {
            let head = Some(start(id, wants_done));
            Outgoing { head, id, reply: false, at: 0, end, bytes, detach: false, sent: None }
        };
        let item = match complete {
            CompleteWhen::Sent if promised == total => {
                let id = self.number();
                Outgoing { sent: Some(done), ..item(id, false, total, Bytes::Buffer(buffer)) }
            }
            CompleteWhen::Buffered if promised == total => {
                let id = self.number();
                self.completions.push_back(completion_of(done, Ok(())));
                Outgoing { detach: true, ..item(id, false, total, Bytes::Buffer(buffer)) }
            }
            complete => {
                let buffered = complete == CompleteWhen::Buffered;
                let buffer = Arc::new(if buffered { buffer.into_owned() } else { buffer });
                if buffered {
                    self.completions.push_back(completion_of(done, Ok(())));
                }
                let rest = (promised < total).then(|| buffer.clone());
                let id = self.transfers.insert(OwnTransfer::Send { to, rest, promised, queued: 1, complete, done });
                let id = id as TransferId;
                let bytes = if promised > 0 { Bytes::Shared(buffer) } else { Bytes::None };
                let sent = Some(Sent::Transfer(id));
                Outgoing { sent, ..item(id, complete == CompleteWhen::Delivered, promised, bytes) }
            }
        };
        self.outbox.push_back((to, item));
    }

    /// A number for a transfer that has no state here, distinct from the numbers that `transfers` gives.
    fn number(&mut self) -> TransferId {
        self.next_number = self.next_number % 0x7FFF_FFFE + 1;
        self.next_number | WHOLE
    }

    fn unsent_op(&mut self, op: &SendOp) {
        let (tagged, tag) = (op.tag.is_some(), op.tag.unwrap_or(0));
        let done = Sent::Complete { kind: OperationKind::Send, user: op.user, tagged, tag, length: 0 };
        let failure = self.lost_failure(op.to);
        if op.complete != CompleteWhen::Buffered || op.user.context != 0 {
            self.completions.push_back(completion_of(done, Err(failure)));
        }
    }

    fn lost_failure(&self, peer: PeerId) -> Failure {
        let peer = &self.peers[peer.0 as usize];
        Failure::PeerLost { address: peer.address, reason: peer.lost.clone().unwrap_or_default() }
    }

    pub(crate) fn receive(&mut self, op: RecvOp) -> Result<(), NotBegun> {
        let RecvOp { matching, buffer, multi, user } = op;
        if let Some(from) = matching.from {
            self.checked(from)?;
        }
        match multi {
            Some(least) => self.post_multi(matching, buffer, least, user),
            None => match self.unexpected.find(&matching) {
                Some(key) => {
                    self.unexpected.hide(key);
                    self.take(key, user, false, Into::Own(buffer));
                }
                None => match matching.from.filter(|from| self.peers[from.0 as usize].lost.is_some()) {
                    Some(from) => {
                        let failure = self.lost_failure(from);
                        self.complete_failed(user, matching.tagged, matching.tag, failure, Some(buffer));
                    }
                    None => self.posted.push(matching, Receive { buffer, user, multi: None }),
                },
            },
        }
        Ok(())
    }

    fn post_multi(&mut self, matching: Match, buffer: Buffer, least: usize, user: UserData) {
        let multi = self.multis.insert(Multi { buffer, least, used: 0, arriving: 0, retired: false });
        while let Some(key) = self.unexpected.find(&matching) {
            let total = self.unexpected.get(key).total;
            let Some(into) = self.reserve(multi, total) else { break };
            self.unexpected.hide(key);
            self.take(key, user, false, into);
            if !self.multis.contains(multi) || self.multis[multi].retired {
                return;
            }
        }
        if self.multis[multi].retired {
            self.release_empty(multi, user);
            return;
        }
        self.posted.push(matching, Receive { buffer: Buffer::empty(), user, multi: Some(multi) });
    }

    /// Reserves room for a message in a multi-receive buffer; `None`: too little is left, and the buffer is retired.
    fn reserve(&mut self, key: usize, total: u64) -> Option<Into> {
        let multi = &mut self.multis[key];
        let left = multi.buffer.len() - multi.used;
        let fits = u64::try_from(left).is_ok_and(|left| total <= left);
        if !fits && multi.used > 0 {
            multi.retired = true;
            return None;
        }
        let room = if fits { total as usize } else { left };
        let offset = multi.used;
        multi.used += room;
        multi.arriving += 1;
        multi.retired = multi.buffer.len() - multi.used < multi.least.max(1);
        Some(Into::Multi { multi: key, offset, room })
    }

    /// Returns a retired multi-receive buffer to the user, if no message is arriving in it.
    fn release_empty(&mut self, multi: usize, user: UserData) {
        if self.multis[multi].arriving == 0 {
            self.multis.remove(multi);
            self.completions.push_back(Completion { released: true, ..blank(OperationKind::Recv, user) });
        }
    }

    /// Gives a hidden unexpected message to a receive.
    fn take(&mut self, key: UnexpectedKey, user: UserData, discard: bool, into: Into) {
        let envelope = self.unexpected.envelope(key);
        let waiting = self.unexpected.get(key);
        let message = MessageStart {
            envelope,
            id: waiting.id,
            total: waiting.total,
            promised: waiting.promised,
            data: waiting.data,
            wants_done: waiting.wants_done,
        };
        let complete = waiting.received == waiting.promised;
        let active = self.activate(&message, user, discard, into);
        self.unexpected.get_mut(key).active = Some(active);
        if complete {
            self.settle(key, active);
        }
    }

    pub(crate) fn peek(&mut self, matching: Match, then: PeekThen, user: UserData) {
        let Some(key) = self.unexpected.find(&matching) else {
            self.complete_failed(user, matching.tagged, matching.tag, Failure::NoMessage, None);
            return;
        };
        let envelope = self.unexpected.envelope(key);
        let waiting = self.unexpected.get(key);
        let found = Completion {
            tagged: envelope.tagged,
            tag: envelope.tag,
            length: waiting.total,
            data: waiting.data,
            from: Some(envelope.from),
            ..blank(OperationKind::Recv, user)
        };
        match then {
            PeekThen::Leave => self.completions.push_back(found),
            PeekThen::Claim => {
                self.unexpected.hide(key);
                self.claimed.insert(user.context, key);
                self.completions.push_back(found);
            }
            PeekThen::Discard => {
                self.unexpected.hide(key);
                self.take(key, user, true, Into::Own(Buffer::empty()));
            }
        }
    }

    pub(crate) fn receive_claimed(&mut self, buffer: Buffer, user: UserData, discard: bool) -> Result<(), NotBegun> {
        let key = self.claimed.remove(&user.context).ok_or(NotBegun::NotClaimed)?;
        self.take(key, user, discard, Into::Own(buffer));
        Ok(())
    }

    pub(crate) fn cancel(&mut self, context: usize) -> bool {
        let Some(key) = self.posted.find_where(|_, receive| receive.user.context == context) else { return false };
        let (matching, receive) = self.posted.remove(key);
        let failed = Err(Failure::Cancelled);
        let mut released = false;
        if let Some(multi) = receive.multi {
            self.multis[multi].retired = true;
            released = self.multis[multi].arriving == 0;
            if released {
                self.multis.remove(multi);
            }
        }
        let (tagged, tag, buffer) = (matching.tagged, matching.tag, Some(receive.buffer));
        let done =
            Completion { tagged, tag, buffer, released, result: failed, ..blank(OperationKind::Recv, receive.user) };
        self.completions.push_back(done);
        true
    }

    pub(crate) fn write(&mut self, op: WriteOp) -> Result<(), NotBegun> {
        let WriteOp { to, key, address, buffer, data, complete, user } = op;
        let total = buffer.len() as u64;
        let done = Sent::Complete { kind: OperationKind::Write, user, tagged: false, tag: 0, length: total };
        if self.checked(to)?.lost.is_some() {
            let failure = self.lost_failure(to);
            self.completions.push_back(completion_of(done, Err(failure)));
            return Ok(());
        }
        let delivered = complete == CompleteWhen::Delivered;
        let detach = complete == CompleteWhen::Buffered;
        let report = delivered.then_some(done);
        let id = self.transfers.insert(OwnTransfer::Write { to, report }) as TransferId;
        let head = Some(Message::Write { id, key, address, total, data });
        let sent = (complete == CompleteWhen::Sent).then_some(done);
        if detach {
            self.completions.push_back(completion_of(done, Ok(())));
        }
        let bytes = Bytes::Buffer(buffer);
        self.outbox.push_back((to, Outgoing { head, id, reply: false, at: 0, end: total, bytes, detach, sent }));
        Ok(())
    }

    pub(crate) fn read(&mut self, op: ReadOp) -> Result<(), NotBegun> {
        let ReadOp { from, key, address, buffer, user } = op;
        if self.checked(from)?.lost.is_some() {
            let failure = self.lost_failure(from);
            self.completions.push_back(Completion { result: Err(failure), ..blank(OperationKind::Read, user) });
            return Ok(());
        }
        let total = buffer.len() as u64;
        let id = self.transfers.insert(OwnTransfer::Read { from, user, buffer, received: 0 }) as TransferId;
        self.outbox.push_back((from, Outgoing::header(Message::Read { id, key, address, total })));
        Ok(())
    }

    pub(crate) fn atomic(&mut self, op: AtomicOp) -> Result<(), NotBegun> {
        let AtomicOp { to, key, address, datatype, operation, form, count, operands, result, user } = op;
        if operands.len() > MAX_ATOMIC {
            return Err(NotBegun::TooLong);
        }
        if self.checked(to)?.lost.is_some() {
            let failure = self.lost_failure(to);
            self.completions.push_back(Completion { result: Err(failure), ..blank(OperationKind::Atomic, user) });
            return Ok(());
        }
        let id = self.transfers.insert(OwnTransfer::Atomic { to, user, result }) as TransferId;
        let head = Some(Message::Atomic { id, key, address, datatype, operation, form, count });
        let (end, bytes) = (operands.len() as u64, Bytes::Buffer(Buffer::owned(operands)));
        self.outbox.push_back((to, Outgoing { head, id, reply: false, at: 0, end, bytes, detach: false, sent: None }));
        Ok(())
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

    fn complete_failed(&mut self, user: UserData, tagged: bool, tag: u64, failure: Failure, buffer: Option<Buffer>) {
        let failed = Completion { tagged, tag, buffer, result: Err(failure), ..blank(OperationKind::Recv, user) };
        self.completions.push_back(failed);
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
