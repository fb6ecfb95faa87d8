//! Shares: bytes of one rank for several ranks at other sites. This file has the state of both sides, without I/O.
//!
//! A receiver with a buffer announces it ([`Message::Ready`]). A share begins once each of its receivers is ready or
//! has room for all of it. A share that is not awaited costs credit, as unexpected messages do: its length and an
//! envelope, of the credit that the root has at the receiver. The receiver keeps it until it is awaited, and `Ready`
//! returns that credit. Shares leave half of the credit to messages, because a receiver may need a message before it
//! awaits a share. Pieces beyond the credit are misbehaviour.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use memory::Buffer;
use rustc_hash::FxHashMap;
use types::{Identity, SiteId};
use wire::Message;
use wire::frame::HEADER_LEN;
use wire::message::MAX_HEADER;

use crate::link::Misbehaved;
use crate::operation::{Completion, Failure, NotBegun, OperationKind, PeerId, ShareOp, UserData};
use crate::protocol::{ENVELOPE, blank};

/// Maximum number of shares for which a peer may be ready before their root begins them, and of shares awaited from a
/// peer.
const MOST_READY: usize = 1024;

/// Cost of a share of this many bytes, in the root's credit at a receiver that is not ready.
pub(crate) fn cost(bytes: u64) -> u64 {
    ENVELOPE.saturating_add(bytes)
}

/// The remainder of a share, from which frames are cut.
#[derive(Debug)]
pub(crate) struct SharePieces {
    /// The share's number at this endpoint.
    pub number: usize,
    pub key: u64,
    pub buffer: Arc<Buffer>,
    pub at: u64,
    pub begun: bool,
}

impl SharePieces {
    /// Length of the share in bytes.
    pub(crate) fn total(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Bytes of the next piece, in a payload of at most `most` bytes.
    pub(crate) fn next_count(&self, most: u32) -> u64 {
        u64::from(most).saturating_sub(MAX_HEADER as u64).max(1).min(self.total() - self.at)
    }
}

impl member::ShareSource for SharePieces {
    fn is_done(&self) -> bool {
        self.begun && self.at == self.total()
    }

    fn next_len(&self, max_payload: u32) -> u32 {
        let count = self.next_count(max_payload);
        let header = Message::Share { key: self.key, offset: self.at, total: self.total() }.encode(count);
        (HEADER_LEN + header.as_slice().len()) as u32 + count as u32
    }
}

/// A share of ours.
struct Root {
    op: Option<ShareOp>,
    to: Vec<PeerId>,
    /// Receivers that are not ready.
    waits: Vec<PeerId>,
    /// Number of senders that still read the buffer.
    open: usize,
    length: u64,
    user: UserData,
    failure: Option<Failure>,
}

/// A share of a peer.
struct ArrivingShare {
    buffer: Buffer,
    /// `None`: nobody awaits the share yet, and `buffer` is ours and has room for all its bytes.
    user: Option<UserData>,
    received: u64,
    total: Option<u64>,
}

impl ArrivingShare {
    fn is_complete(&self) -> bool {
        Some(self.received) == self.total
    }
}

#[derive(Default)]
pub(crate) struct Sharing {
    roots: slab::Slab<Root>,
    arriving: FxHashMap<(PeerId, u64), ArrivingShare>,
    /// Number of the awaited ones, by peer; never zero.
    awaited: FxHashMap<PeerId, usize>,
    ready: FxHashMap<(PeerId, u64), u64>,
    /// Costs of the shares that began before these peers were ready for them.
    early: FxHashMap<(PeerId, u64), u64>,
    /// Shares that may begin, by number.
    pub begin: Vec<(usize, ShareOp)>,
    pub completions: std::collections::VecDeque<Completion>,
}

impl Sharing {
    /// True if no share of ours is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.roots.is_empty()
    }

    pub(crate) fn is_awaited(&self) -> bool {
        !self.roots.is_empty() || !self.awaited.is_empty()
    }

    /// Starts a share. `lost`: the reason why a receiver cannot be reached, if it cannot. Returns the receivers that
    /// are not ready and must be charged for the share; there are none unless each of them `has_credit`.
    pub(crate) fn share(
        &mut self,
        op: ShareOp,
        lost: impl Fn(PeerId) -> Option<Failure>,
        has_credit: impl Fn(PeerId) -> bool,
    ) -> Vec<PeerId> {
        let failure = op.to.iter().find_map(|peer| lost(*peer));
        let to: Vec<PeerId> = op.to.iter().copied().filter(|peer| lost(*peer).is_none()).collect();
        let is_ready = |peer: &PeerId| self.ready.contains_key(&(*peer, op.key));
        let mut waits: Vec<PeerId> = to.iter().copied().filter(|peer| !is_ready(peer)).collect();
        for peer in &to {
            if let Some(count) = self.ready.get_mut(&(*peer, op.key)) {
                *count -= 1;
                if *count == 0 {
                    self.ready.remove(&(*peer, op.key));
                }
            }
        }
        let (length, user) = (op.buffer.len() as u64, op.user);
        let is_early = |peer: &PeerId| self.early.contains_key(&(*peer, op.key));
        let mut charged = Vec::new();
        if waits.iter().all(|peer| has_credit(*peer) && !is_early(peer)) {
            charged = std::mem::take(&mut waits);
            self.early.extend(charged.iter().map(|peer| ((*peer, op.key), cost(length))));
        }
        let number = self.roots.insert(Root { op: Some(op), to, waits, open: 1, length, user, failure });
        self.advance(number);
        charged
    }

    fn advance(&mut self, number: usize) {
        let Some(root) = self.roots.get_mut(number).filter(|root| root.waits.is_empty()) else { return };
        let Some(mut op) = root.op.take() else { return };
        op.to = root.to.clone();
        if op.to.is_empty() {
            return self.sent(number);
        }
        self.begin.push((number, op));
    }

    /// Counts one more sender that reads the buffer of a share.
    pub(crate) fn alone(&mut self, number: usize) {
        if let Some(root) = self.roots.get_mut(number) {
            root.open += 1;
        }
    }

    /// Counts one sender less. The share completes after the last one.
    pub(crate) fn sent(&mut self, number: usize) {
        let Some(root) = self.roots.get_mut(number) else { return };
        root.open -= 1;
        if root.open == 0 {
            let Root { length, user, failure, .. } = self.roots.remove(number);
            let result = failure.map_or(Ok(()), Err);
            self.completions.push_back(Completion { length, result, ..blank(OperationKind::Share, user) });
        }
    }

    /// Handles a peer's announcement of a buffer for our share. Returns the credit that comes back with it.
    pub(crate) fn is_ready(&mut self, from: PeerId, key: u64) -> Result<u64, Misbehaved> {
        if let Some(cost) = self.early.remove(&(from, key)) {
            return Ok(cost);
        }
        let waiting = self
            .roots
            .iter()
            .find(|(_, root)| root.op.as_ref().is_some_and(|op| op.key == key) && root.waits.contains(&from));
        if let Some((number, _)) = waiting {
            self.roots[number].waits.retain(|peer| *peer != from);
            self.advance(number);
            return Ok(0);
        }
        let theirs: u64 = self.ready.iter().filter(|((peer, _), _)| *peer == from).map(|(_, count)| *count).sum();
        if theirs >= MOST_READY as u64 {
            return Err(Misbehaved::Protocol("ready for more shares than it may be"));
        }
        *self.ready.entry((from, key)).or_default() += 1;
        Ok(0)
    }

    /// Awaits a share of a peer, which may have begun to arrive. Returns the cost that was charged for it.
    pub(crate) fn receive(
        &mut self,
        from: PeerId,
        key: u64,
        mut buffer: Buffer,
        user: UserData,
    ) -> Result<u64, NotBegun> {
        if self.awaited.get(&from).is_some_and(|count| *count >= MOST_READY) {
            return Err(NotBegun::Again);
        }
        let unknown = || ArrivingShare { buffer: Buffer::empty(), user: None, received: 0, total: None };
        let share = self.arriving.entry((from, key)).or_insert_with(unknown);
        if share.user.is_some() {
            return Err(NotBegun::Again);
        }
        *self.awaited.entry(from).or_default() += 1;
        let kept = share.buffer.len().min(buffer.len());
        buffer.copy_in(0, &share.buffer.to_vec(0..kept));
        (share.buffer, share.user) = (buffer, Some(user));
        let cost = share.total.map_or(0, cost);
        if share.is_complete() {
            self.complete(from, key);
        }
        Ok(cost)
    }

    /// Number of bytes at the start of an awaited share that are in its buffer.
    pub(crate) fn arrived(&self, user: UserData) -> Option<u64> {
        let mut all = self.arriving.values();
        all.find(|share| share.user == Some(user)).map(|share| share.received.min(share.buffer.len() as u64))
    }

    /// Gives up an awaited share, whose bytes are then discarded, or one of ours that has not begun. Returns false if
    /// there is neither.
    pub(crate) fn forget(&mut self, user: UserData) -> bool {
        if let Some(share) = self.arriving.values_mut().find(|share| share.user == Some(user)) {
            (share.buffer, share.user) = (Buffer::empty(), Some(UserData::default()));
            return true;
        }
        let not_begun = self.roots.iter().find(|(_, root)| root.user == user && root.op.is_some());
        if let Some((number, _)) = not_begun {
            self.roots.remove(number);
            return true;
        }
        false
    }

    /// Begins a piece. `left`: the credit that its sender has left. Returns the charge for a share that nobody awaits.
    pub(crate) fn piece(
        &mut self,
        from: PeerId,
        (key, offset, total): (u64, u64, u64),
        following: u32,
        left: u64,
    ) -> Result<u64, Misbehaved> {
        let (share, charge) = match self.arriving.entry((from, key)) {
            Entry::Occupied(known) => (known.into_mut(), 0),
            Entry::Vacant(free) => {
                if cost(total) > left {
                    return Err(Misbehaved::Protocol("a share that nobody awaits and that exceeds its credit"));
                }
                let buffer = Buffer::owned(vec![0; total as usize]);
                let share = ArrivingShare { buffer, user: None, received: 0, total: Some(total) };
                (free.insert(share), cost(total))
            }
        };
        if *share.total.get_or_insert(total) != total {
            return Err(Misbehaved::Protocol("a share that changes its length"));
        }
        let end = offset.checked_add(following.into());
        if offset != share.received || end.is_none_or(|end| end > total) {
            return Err(Misbehaved::Protocol("a piece of a share out of order, or beyond its end"));
        }
        Ok(charge)
    }

    /// The memory for bytes at an offset; empty beyond the buffer.
    pub(crate) fn memory(&mut self, from: PeerId, key: u64, at: usize) -> &mut [u8] {
        match self.arriving.get_mut(&(from, key)) {
            Some(share) if at < share.buffer.len() => share.buffer.contiguous_mut(at),
            _ => &mut [],
        }
    }

    /// Ends a piece of this many bytes.
    pub(crate) fn end(&mut self, from: PeerId, key: u64, count: u64) {
        let Some(share) = self.arriving.get_mut(&(from, key)) else { return };
        share.received += count;
        if share.is_complete() && share.user.is_some() {
            self.complete(from, key);
        }
    }

    /// Completes an awaited share that has arrived.
    fn complete(&mut self, from: PeerId, key: u64) {
        if let Some(ArrivingShare { buffer, user: Some(user), received, .. }) = self.arriving.remove(&(from, key)) {
            self.no_longer_awaited(from);
            let kept = buffer.len() as u64;
            let result = if received > kept { Err(Failure::Truncated { total: received, kept }) } else { Ok(()) };
            let done = blank(OperationKind::Share, user);
            let done = Completion { length: received, from: Some(from), buffer: Some(buffer), result, ..done };
            self.completions.push_back(done);
        }
    }

    /// Counts one awaited share of a peer less.
    fn no_longer_awaited(&mut self, from: PeerId) {
        if let Entry::Occupied(mut count) = self.awaited.entry(from) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Handles the loss of a peer: shares awaited from it fail, and our shares go on without it and fail at their end.
    pub(crate) fn lost(&mut self, peer: PeerId, failure: &Failure) {
        self.ready.retain(|(from, _), _| *from != peer);
        self.early.retain(|(to, _), _| *to != peer);
        self.awaited.remove(&peer);
        let keys: Vec<_> = self.arriving.keys().copied().filter(|(from, _)| *from == peer).collect();
        for key in keys {
            if let Some(share) = self.arriving.remove(&key)
                && let Some(user) = share.user
            {
                let done = blank(OperationKind::Share, user);
                let (length, buffer) = (share.received, Some(share.buffer));
                let done = Completion { length, from: Some(peer), buffer, result: Err(failure.clone()), ..done };
                self.completions.push_back(done);
            }
        }
        let numbers: Vec<usize> =
            self.roots.iter().filter(|(_, root)| root.to.contains(&peer)).map(|(number, _)| number).collect();
        for number in numbers {
            let root = &mut self.roots[number];
            root.failure.get_or_insert_with(|| failure.clone());
            root.to.retain(|other| *other != peer);
            root.waits.retain(|other| *other != peer);
            self.advance(number);
        }
    }
}

/// Checks that every receiver is named once, and that every tree begins at `own` and has every receiver's site, once.
///
/// # Errors
/// [`NotBegun::Tree`].
pub(crate) fn check(op: &ShareOp, own: SiteId, at: impl Fn(PeerId) -> Option<Identity>) -> Result<(), NotBegun> {
    let receivers: Option<Vec<Identity>> = op.to.iter().map(|peer| at(*peer)).collect();
    let receivers = receivers.ok_or(NotBegun::UnknownPeer)?;
    if receivers.is_empty() || receivers.len() > wire::many::MAX_RECEIVERS || op.trees.is_empty() {
        return Err(NotBegun::Tree("a share has 1 to 64 receivers and at least one tree"));
    }
    if (1..op.to.len()).any(|at| op.to[..at].contains(&op.to[at])) {
        return Err(NotBegun::Tree("a receiver of a share is named twice"));
    }
    for tree in &op.trees {
        let mut sites = vec![own];
        for (above, site) in &tree.edges {
            if !sites.contains(above) || sites.contains(site) {
                return Err(NotBegun::Tree("a tree of a share has a site twice, or a parent behind its child"));
            }
            sites.push(*site);
        }
        if receivers.iter().any(|receiver| receiver.site == own || !sites.contains(&receiver.site)) {
            return Err(NotBegun::Tree("a receiver of a share is at the root's site, or at a site of no edge"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
