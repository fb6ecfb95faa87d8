//! Frames from peers.

use std::io;

use memory::Regions;
use types::Address;
use wire::Message;
use wire::message::{Status, TransferId};

use super::{
    ENVELOPE, FramePlace, FrameTarget, Incoming, Into, MessageStart, OwnTransfer, Protocol, Receive, SCRATCH, blank,
    completion_of,
};
use crate::link::{Misbehaved, Outgoing, Sent, Sink, status_of};
use crate::matching::Envelope;
use crate::operation::{CompleteWhen, Completion, MAX_ATOMIC, OperationKind, PeerId};

impl Sink for Protocol {
    fn begin(&mut self, from: PeerId, message: Message, following: u32) -> Result<FramePlace, Misbehaved> {
        let target = match message {
            Message::Start { id, tagged, tag, total, promised, data, wants_done } => {
                let envelope = Envelope { from, tagged, tag: if tagged { tag } else { 0 } };
                self.arrive(&MessageStart { envelope, id, total, promised, data, wants_done }, following)?
            }
            Message::More { id, offset, reply } => return self.more(from, id, offset, reply, following),
            Message::Write { id, key, address, total, data } => {
                let bounds = self.regions.check(key, address, total, true);
                let status = bounds.map_or_else(status_of, |()| Status::Ok);
                if u64::from(following) > total {
                    return Err(Misbehaved::Protocol("a write with more bytes than it announced"));
                }
                self.incoming.insert((from, id), Incoming::Write { key, address, total, received: 0, data, status });
                FrameTarget::Write(id)
            }
            Message::Atomic { id, .. } => {
                let expected = following as usize;
                if expected > MAX_ATOMIC {
                    return Err(Misbehaved::Protocol("an atomic operation with too many operands"));
                }
                self.incoming.insert((from, id), Incoming::Atomic { message, expected, bytes: Vec::new() });
                FrameTarget::Atomic(id)
            }
            Message::Fetched { id, status } => {
                self.transfer_with(from, id)?;
                FrameTarget::Result(id, Some(status))
            }
            Message::Share { key, offset, total } => {
                let peer = &self.peers[from.0 as usize];
                let left = self.credit_window.saturating_sub(peer.held + peer.freed);
                let cost = self.sharing.piece(from, (key, offset, total), following, left)?;
                self.hold(from, cost)?;
                return Ok(FramePlace { from, target: FrameTarget::Share(key), at: offset, start: offset });
            }
            _ if following > 0 => {
                return Err(Misbehaved::Protocol("a message of a kind that carries no bytes, with bytes"));
            }
            Message::Go { id, limit } => {
                self.go(from, id, limit)?;
                FrameTarget::Discard
            }
            Message::Done { id, status } => {
                self.done(from, id, status)?;
                FrameTarget::Discard
            }
            Message::Read { id, key, address, total } => {
                self.serve_read(from, id, key, address, total);
                FrameTarget::Discard
            }
            Message::Ready { key, .. } => {
                let back = self.sharing.is_ready(from, key)?;
                if back > 0 {
                    self.peers[from.0 as usize].credit += back;
                    self.start_waiting(from);
                }
                FrameTarget::Discard
            }
            Message::Credit { bytes } => {
                let window = self.credit_window;
                let peer = &mut self.peers[from.0 as usize];
                peer.credit = peer
                    .credit
                    .checked_add(bytes)
                    .filter(|credit| *credit <= window)
                    .ok_or(Misbehaved::Protocol("more credit than the window"))?;
                self.start_waiting(from);
                FrameTarget::Discard
            }
            _ => return Err(Misbehaved::Protocol("a message of a later version")),
        };
        Ok(FramePlace { from, target, at: 0, start: 0 })
    }

    fn take_whole(
        &mut self,
        from: PeerId,
        message: &Message,
        following: u32,
        read: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, Misbehaved> {
        let Message::Start { tagged, tag, total, promised, data, wants_done: false, .. } = *message else {
            return Ok(false);
        };
        let envelope = Envelope { from, tagged, tag: if tagged { tag } else { 0 } };
        let Some(key) = self.posted.find(&envelope).filter(|_| promised == total && u64::from(following) == total)
        else {
            return Ok(false);
        };
        let receive = self.posted.get_mut(key);
        if receive.multi.is_some() || (receive.buffer.contiguous_mut(0).len() as u64) < total {
            return Ok(false);
        }
        let cost = ENVELOPE + total;
        self.hold(from, cost)?;
        self.free(from, cost);
        let (_, Receive { mut buffer, user, .. }) = self.posted.remove(key);
        read(&mut buffer.contiguous_mut(0)[..total as usize]);
        let done = blank(OperationKind::Recv, user);
        let done = Completion {
            tagged,
            tag: envelope.tag,
            length: total,
            data,
            from: Some(from),
            buffer: Some(buffer),
            ..done
        };
        self.completions.push_back(done);
        Ok(true)
    }

    fn put(&mut self, place: &mut FramePlace, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let copy = &mut |into: &mut [u8]| {
                into.copy_from_slice(&bytes[..into.len()]);
                Ok(into.len())
            };
            match self.fill(place, bytes.len(), copy) {
                Ok(count) if count > 0 => bytes = &bytes[count..],
                _ => return,
            }
        }
    }

    fn fill(
        &mut self,
        place: &mut FramePlace,
        limit: usize,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let at = place.at as usize;
        let mut into = |slice: &mut [u8]| {
            let count = slice.len().min(limit);
            read(&mut slice[..count])
        };
        let mut count = None;
        match place.target {
            FrameTarget::Active(key) => {
                let slice = match &mut self.active[key].into {
                    Into::Own(buffer) => buffer.contiguous_mut(at),
                    Into::Multi { multi, offset, room } => {
                        let left = room.saturating_sub(at);
                        let slice = self.multis[*multi].buffer.contiguous_mut(*offset + at);
                        let end = left.min(slice.len());
                        &mut slice[..end]
                    }
                };
                if !slice.is_empty() {
                    count = Some(into(slice)?);
                }
            }
            FrameTarget::Unexpected(key) => {
                let store = &mut self.unexpected.get_mut(key).store;
                count = store.get_mut(at..).filter(|slice| !slice.is_empty()).map(&mut into).transpose()?;
            }
            FrameTarget::Write(id) => {
                if let Some(Incoming::Write { key, address, status: Status::Ok, .. }) =
                    self.incoming.get(&(place.from, id))
                {
                    let result = self.regions.with_mut(*key, *address + place.at, limit, &mut into);
                    count = result.ok().transpose()?;
                }
            }
            FrameTarget::Atomic(id) => {
                if let Some(Incoming::Atomic { bytes, expected, .. }) = self.incoming.get_mut(&(place.from, id)) {
                    bytes.resize(*expected, 0);
                    count = bytes.get_mut(at..).filter(|slice| !slice.is_empty()).map(&mut into).transpose()?;
                }
            }
            FrameTarget::Result(id, _) => {
                if let Some(OwnTransfer::Read { buffer, .. } | OwnTransfer::Atomic { result: buffer, .. }) =
                    self.transfers.get_mut(id as usize)
                {
                    let slice = buffer.contiguous_mut(at);
                    if !slice.is_empty() {
                        count = Some(into(slice)?);
                    }
                }
            }
            FrameTarget::Share(key) => {
                let slice = self.sharing.memory(place.from, key, at);
                if !slice.is_empty() {
                    count = Some(into(slice)?);
                }
            }
            FrameTarget::Discard => {}
        }
        let count = match count {
            Some(count) => count,
            None => {
                // Bytes to discard: beyond a truncated receive, or of a refused write.
                self.scratch.resize(SCRATCH, 0);
                into(&mut self.scratch)?
            }
        };
        place.at += count as u64;
        Ok(count)
    }

    fn end(&mut self, place: FramePlace) {
        let from = place.from;
        let count = place.at - place.start;
        match place.target {
            FrameTarget::Discard => {}
            FrameTarget::Active(key) => {
                let active = &mut self.active[key];
                active.received += count;
                if active.received == active.expected {
                    self.finish_receive(key);
                }
            }
            FrameTarget::Unexpected(key) => {
                let waiting = self.unexpected.get_mut(key);
                waiting.received += count;
                if waiting.received == waiting.promised
                    && let Some(active) = waiting.active
                {
                    self.settle(key, active);
                }
            }
            FrameTarget::Write(id) => self.end_write(from, id, count),
            FrameTarget::Atomic(id) => self.apply_atomic(from, id),
            FrameTarget::Result(id, status) => self.end_result(id, count, status),
            FrameTarget::Share(key) => self.sharing.end(from, key, count),
        }
    }

    fn sent(&mut self, sent: Sent) {
        if let Sent::Share(number) = sent {
            return self.sharing.sent(number);
        }
        let Sent::Transfer(id) = sent else {
            self.completions.push_back(completion_of(sent, Ok(())));
            return;
        };
        if let Some(OwnTransfer::Send { queued, .. }) = self.transfers.get_mut(id as usize) {
            *queued -= 1;
            self.end_send(id);
        }
    }

    fn alone(&mut self, share: usize) {
        self.sharing.alone(share);
    }

    fn unsent(&mut self, to: PeerId, sent: Sent) {
        if let Sent::Share(number) = sent {
            return self.sharing.sent(number);
        }
        if let Sent::Complete { .. } = sent {
            let failure = self.lost_failure(to);
            self.completions.push_back(completion_of(sent, Err(failure)));
        }
    }

    fn lost(&mut self, peer: PeerId, reason: Option<String>) {
        let failed = reason.is_some();
        let state = &mut self.peers[peer.0 as usize];
        if state.lost.is_none() {
            state.lost = Some(reason.unwrap_or_else(|| "it has closed its endpoint".into()));
        }
        for op in std::mem::take(&mut state.waiting) {
            self.unsent_op(&op);
        }
        self.outbox.retain(|(to, _)| *to != peer);
        let failure = self.lost_failure(peer);
        self.sharing.lost(peer, &failure);
        let of_peer = |transfer: &OwnTransfer| match transfer {
            OwnTransfer::Send { to, .. } | OwnTransfer::Write { to, .. } | OwnTransfer::Atomic { to, .. } => {
                *to == peer
            }
            OwnTransfer::Read { from, .. } => *from == peer,
        };
        let keys: Vec<usize> = self.transfers.iter().filter(|(_, t)| of_peer(t)).map(|(key, _)| key).collect();
        for key in keys {
            let failed = |kind, user| Completion { result: Err(failure.clone()), ..blank(kind, user) };
            let completion = match self.transfers.remove(key) {
                OwnTransfer::Send { complete: CompleteWhen::Buffered, .. }
                | OwnTransfer::Write { report: None, .. } => {
                    continue;
                }
                OwnTransfer::Send { done, .. } => completion_of(done, Err(failure.clone())),
                OwnTransfer::Write { report: Some(done), .. } => completion_of(done, Err(failure.clone())),
                OwnTransfer::Read { user, buffer, .. } => {
                    Completion { buffer: Some(buffer), ..failed(OperationKind::Read, user) }
                }
                OwnTransfer::Atomic { user, .. } => failed(OperationKind::Atomic, user),
            };
            self.completions.push_back(completion);
        }
        self.incoming.retain(|(from, _), _| *from != peer);
        let keys: Vec<usize> = self.active.iter().filter(|(_, a)| a.from == peer).map(|(key, _)| key).collect();
        for key in keys {
            self.fail_receive(key, failure.clone());
        }
        while failed
            && let Some(key) =
                self.posted.find_where(|matching, receive| matching.from == Some(peer) && receive.multi.is_none())
        {
            let (matching, receive) = self.posted.remove(key);
            let (user, buffer) = (receive.user, Some(receive.buffer));
            self.complete_failed(user, matching.tagged, matching.tag, failure.clone(), buffer);
        }
    }

    fn peer(&mut self, address: Address) -> PeerId {
        self.intern(address)
    }

    fn known(&self, address: Address) -> Option<PeerId> {
        self.by_address.get(&address.key()).copied()
    }

    fn address(&self, peer: PeerId) -> Option<Address> {
        self.peers.get(peer.0 as usize).map(|peer| peer.address)
    }

    fn regions(&self) -> &Regions {
        &self.regions
    }
}

impl Protocol {
    /// Charges a message to its sender's credit.
    pub(super) fn hold(&mut self, from: PeerId, cost: u64) -> Result<(), Misbehaved> {
        let peer = &mut self.peers[from.0 as usize];
        peer.held += cost;
        if peer.held + peer.freed > self.credit_window {
            return Err(Misbehaved::Protocol("messages that exceed its credit"));
        }
        Ok(())
    }

    /// Returns credit, in batches.
    pub(super) fn free(&mut self, from: PeerId, cost: u64) {
        let peer = &mut self.peers[from.0 as usize];
        peer.held -= cost;
        peer.freed += cost;
        if peer.freed >= self.credit_window / 2 && peer.lost.is_none() {
            let bytes = std::mem::take(&mut peer.freed);
            self.outbox.push_back((from, Outgoing::header(Message::Credit { bytes })));
        }
    }

    fn more(
        &mut self,
        from: PeerId,
        id: TransferId,
        offset: u64,
        reply: bool,
        following: u32,
    ) -> Result<FramePlace, Misbehaved> {
        let end = offset.checked_add(following.into()).ok_or(Misbehaved::Protocol("an offset that overflows"))?;
        let (target, limit) = if reply {
            match self.transfer_with(from, id)? {
                OwnTransfer::Read { buffer, .. } => (FrameTarget::Result(id, None), buffer.len() as u64),
                _ => return Err(Misbehaved::Protocol("a reply to something other than a read")),
            }
        } else {
            match self.incoming.get(&(from, id)) {
                Some(Incoming::Active(key)) => (FrameTarget::Active(*key), self.active[*key].expected),
                Some(Incoming::Unexpected(key)) => {
                    let waiting = self.unexpected.get(*key);
                    match waiting.active {
                        Some(active) if offset >= waiting.promised => {
                            (FrameTarget::Active(active), self.active[active].expected)
                        }
                        _ => (FrameTarget::Unexpected(*key), waiting.promised),
                    }
                }
                Some(Incoming::Write { total, .. }) => (FrameTarget::Write(id), *total),
                _ => return Err(Misbehaved::Protocol("bytes of an unknown transfer")),
            }
        };
        if end > limit {
            return Err(Misbehaved::Protocol("bytes beyond the end of a transfer"));
        }
        Ok(FramePlace { from, target, at: offset, start: offset })
    }

    /// Our transfer to which this peer's answer belongs.
    pub(super) fn transfer_with(&self, from: PeerId, id: TransferId) -> Result<&OwnTransfer, Misbehaved> {
        let transfer = self.transfers.get(id as usize);
        let theirs = |transfer: &&OwnTransfer| match transfer {
            OwnTransfer::Send { to, .. } | OwnTransfer::Write { to, .. } | OwnTransfer::Atomic { to, .. } => {
                *to == from
            }
            OwnTransfer::Read { from: of, .. } => *of == from,
        };
        transfer.filter(theirs).ok_or(Misbehaved::Protocol("an answer to an unknown transfer"))
    }
}
