//! Receives: posting, matching with messages that have arrived, completions, and buffers for several messages.

use memory::Buffer;
use wire::Message;
use wire::message::{Status, TransferId};

use super::{
    Active, ENVELOPE, FrameTarget, Incoming, Into, MessageStart, Multi, Protocol, Receive, UnexpectedMessage, blank,
};
use crate::link::{Misbehaved, Outgoing};
use crate::matching::{Envelope, UnexpectedKey};
use crate::operation::{Completion, Failure, Match, NotBegun, OperationKind, PeekThen, PeerId, RecvOp, UserData};

impl Protocol {
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
    pub(super) fn reserve(&mut self, key: usize, total: u64) -> Option<Into> {
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
    pub(super) fn release_empty(&mut self, multi: usize, user: UserData) {
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

    pub(super) fn complete_failed(
        &mut self,
        user: UserData,
        tagged: bool,
        tag: u64,
        failure: Failure,
        buffer: Option<Buffer>,
    ) {
        let failed = Completion { tagged, tag, buffer, result: Err(failure), ..blank(OperationKind::Recv, user) };
        self.completions.push_back(failed);
    }

    pub(super) fn finish_receive(&mut self, key: usize) {
        let active = self.active.remove(key);
        if !self.incoming.is_empty() {
            self.incoming.remove(&(active.from, active.id));
        }
        if active.wants_done {
            self.outbox.push_back((active.from, Outgoing::header(Message::Done { id: active.id, status: Status::Ok })));
        }
        let room = match &active.into {
            Into::Own(buffer) => buffer.len(),
            Into::Multi { room, .. } => *room,
        } as u64;
        let truncated = active.total > room && !active.discard;
        let failure = Failure::Truncated { total: active.total, kept: room };
        self.complete_receive(active, if truncated { Err(failure) } else { Ok(()) });
    }

    pub(super) fn fail_receive(&mut self, key: usize, failure: Failure) {
        let active = self.active.remove(key);
        self.complete_receive(active, Err(failure));
    }

    fn complete_receive(&mut self, active: Active, result: Result<(), Failure>) {
        let Active { from, tagged, tag, data, total, user, into, .. } = active;
        let (buffer, offset, released) = match into {
            Into::Own(buffer) => (Some(buffer), 0, false),
            Into::Multi { multi: key, offset, .. } => {
                let multi = &mut self.multis[key];
                multi.arriving -= 1;
                let released = multi.retired && multi.arriving == 0;
                if released {
                    self.multis.remove(key);
                }
                (None, offset as u64, released)
            }
        };
        let done = blank(OperationKind::Recv, user);
        let done =
            Completion { tagged, tag, length: total, offset, data, from: Some(from), released, buffer, result, ..done };
        self.completions.push_back(done);
    }

    /// Starts a message that arrives: finds its receive, or stores it.
    pub(super) fn arrive(&mut self, message: &MessageStart, following: u32) -> Result<FrameTarget, Misbehaved> {
        let from = message.envelope.from;
        let cost = ENVELOPE + message.promised;
        self.hold(from, cost)?;
        let whole = u64::from(following) == message.promised;
        while let Some(key) = self.posted.find(&message.envelope) {
            let (user, multi) = (self.posted.get_mut(key).user, self.posted.get_mut(key).multi);
            let into = match multi {
                None => Some(Into::Own(self.posted.remove(key).1.buffer)),
                Some(multi) => {
                    let into = self.reserve(multi, message.total);
                    if self.multis[multi].retired {
                        self.posted.remove(key);
                    }
                    if into.is_none() {
                        self.release_empty(multi, user);
                    }
                    into
                }
            };
            let Some(into) = into else { continue };
            self.free(from, cost);
            let active = self.activate(message, user, false, into);
            if !(whole && message.promised == self.active[active].expected) {
                self.claim_id(from, message.id, Incoming::Active(active))?;
            }
            return Ok(FrameTarget::Active(active));
        }
        let key = self.unexpected.push(
            message.envelope,
            UnexpectedMessage {
                id: message.id,
                total: message.total,
                promised: message.promised,
                received: 0,
                data: message.data,
                wants_done: message.wants_done,
                store: vec![0; message.promised as usize],
                active: None,
            },
        );
        if !whole {
            self.claim_id(from, message.id, Incoming::Unexpected(key))?;
        }
        Ok(FrameTarget::Unexpected(key))
    }

    fn claim_id(&mut self, from: PeerId, id: TransferId, incoming: Incoming) -> Result<(), Misbehaved> {
        match self.incoming.insert((from, id), incoming) {
            None => Ok(()),
            Some(_) => Err(Misbehaved::Protocol("a transfer number that is in use")),
        }
    }

    /// Gives a message to its receive, and requests the bytes that were not promised.
    pub(super) fn activate(&mut self, message: &MessageStart, user: UserData, discard: bool, into: Into) -> usize {
        let room = match &into {
            Into::Own(buffer) => buffer.len(),
            Into::Multi { room, .. } => *room,
        } as u64;
        let MessageStart { envelope, id, total, promised, data, wants_done } = *message;
        let limit = total.min(room);
        let expected = if promised < total { promised.max(limit) } else { total };
        if promised < total {
            self.outbox.push_back((envelope.from, Outgoing::header(Message::Go { id, limit })));
        }
        let Envelope { from, tagged, tag } = envelope;
        self.active.insert(Active {
            from,
            id,
            tagged,
            tag,
            data,
            total,
            expected,
            received: 0,
            wants_done,
            discard,
            user,
            into,
        })
    }

    /// Moves an unexpected message to its receive, once all its promised bytes have arrived.
    pub(super) fn settle(&mut self, key: UnexpectedKey, active_key: usize) {
        let (envelope, waiting) = self.unexpected.remove(key);
        let active = &mut self.active[active_key];
        match &mut active.into {
            Into::Own(buffer) => {
                buffer.copy_in(0, &waiting.store);
            }
            Into::Multi { multi, offset, room } => {
                let count = waiting.store.len().min(*room);
                self.multis[*multi].buffer.copy_in(*offset, &waiting.store[..count]);
            }
        }
        active.received += waiting.promised;
        let (received, expected) = (active.received, active.expected);
        self.free(envelope.from, ENVELOPE + waiting.promised);
        if received == expected {
            self.finish_receive(active_key);
        } else {
            self.incoming.insert((envelope.from, waiting.id), Incoming::Active(active_key));
        }
    }
}
