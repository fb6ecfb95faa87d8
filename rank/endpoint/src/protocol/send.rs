//! Messages to peers: the sending half of the protocol, and its credit.

use std::sync::Arc;

use wire::Message;
use wire::message::{Status, TransferId};

use super::{ENVELOPE, MAX_WAITING, OwnTransfer, Protocol, WHOLE, blank, completion_of};
use crate::link::{Bytes, Misbehaved, Outgoing, Sent};
use crate::operation::{CompleteWhen, Completion, Failure, NotBegun, OperationKind, PeerId, SendOp};

impl Protocol {
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
    pub(super) fn start_waiting(&mut self, to: PeerId) {
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
    pub(super) fn start(&mut self, op: SendOp) {
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
    pub(super) fn number(&mut self) -> TransferId {
        self.next_number = self.next_number % 0x7FFF_FFFE + 1;
        self.next_number | WHOLE
    }

    pub(super) fn unsent_op(&mut self, op: &SendOp) {
        let (tagged, tag) = (op.tag.is_some(), op.tag.unwrap_or(0));
        let done = Sent::Complete { kind: OperationKind::Send, user: op.user, tagged, tag, length: 0 };
        let failure = self.lost_failure(op.to);
        if op.complete != CompleteWhen::Buffered || op.user.context != 0 {
            self.completions.push_back(completion_of(done, Err(failure)));
        }
    }

    pub(super) fn go(&mut self, from: PeerId, id: TransferId, limit: u64) -> Result<(), Misbehaved> {
        self.transfer_with(from, id)?;
        let Some(OwnTransfer::Send { rest, promised, queued, .. }) = self.transfers.get_mut(id as usize) else {
            return Err(Misbehaved::Protocol("a go for something other than a send"));
        };
        let rest = rest.take().ok_or(Misbehaved::Protocol("a second go"))?;
        let (at, end) = (*promised, limit.min(rest.len() as u64));
        if end <= at {
            // The receive is too short even for the promised bytes, some of which may not have been sent yet.
            self.end_send(id);
            return Ok(());
        }
        *queued += 1;
        let (bytes, sent) = (Bytes::Shared(rest), Some(Sent::Transfer(id)));
        self.outbox.push_back((from, Outgoing { head: None, id, reply: false, at, end, bytes, detach: false, sent }));
        Ok(())
    }

    /// Ends a send that has nothing left to send and whose remaining bytes will not be requested. A send that waits for
    /// delivery ends when its peer confirms it.
    pub(super) fn end_send(&mut self, id: TransferId) {
        let Some(OwnTransfer::Send { rest: None, queued: 0, complete, done, .. }) = self.transfers.get(id as usize)
        else {
            return;
        };
        let (complete, done) = (*complete, *done);
        if complete != CompleteWhen::Delivered {
            self.transfers.remove(id as usize);
        }
        if complete == CompleteWhen::Sent {
            self.completions.push_back(completion_of(done, Ok(())));
        }
    }

    pub(super) fn done(&mut self, from: PeerId, id: TransferId, status: Status) -> Result<(), Misbehaved> {
        self.transfer_with(from, id)?;
        let result = if status == Status::Ok { Ok(()) } else { Err(Failure::Refused(status)) };
        let completion = match self.transfers.get_mut(id as usize) {
            Some(OwnTransfer::Send { rest: None, complete: complete @ CompleteWhen::Delivered, .. })
                if result.is_ok() =>
            {
                // Everything has arrived, but a link may not know yet that it can release the memory.
                *complete = CompleteWhen::Sent;
                self.end_send(id);
                return Ok(());
            }
            Some(OwnTransfer::Write { report, .. }) => report.map(|done| completion_of(done, result)),
            Some(OwnTransfer::Atomic { user, .. }) => {
                Some(Completion { result, ..blank(OperationKind::Atomic, *user) })
            }
            _ => return Err(Misbehaved::Protocol("a done that was not requested")),
        };
        self.transfers.remove(id as usize);
        self.completions.extend(completion);
        Ok(())
    }
}
