//! Reads, writes and atomic operations: on peers' memory, and peers' on ours.

use memory::Buffer;
use wire::Message;
use wire::message::{AtomicForm, Status, TransferId};

use super::{Incoming, OwnTransfer, Protocol, blank, completion_of};
use crate::link::{Bytes, Outgoing, Sent, status_of};
use crate::operation::{
    AtomicOp, CompleteWhen, Completion, Failure, MAX_ATOMIC, NotBegun, OperationKind, PeerId, ReadOp, UserData, WriteOp,
};

impl Protocol {
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

    pub(super) fn serve_read(&mut self, from: PeerId, id: TransferId, key: u64, address: u64, total: u64) {
        let status = self.regions.check(key, address, total, false).map_or_else(status_of, |()| Status::Ok);
        let item = if status != Status::Ok || total == 0 {
            Outgoing::header(Message::Fetched { id, status })
        } else {
            let bytes = Bytes::Region { key, address };
            Outgoing { head: None, id, reply: true, at: 0, end: total, bytes, detach: false, sent: None }
        };
        self.outbox.push_back((from, item));
    }

    pub(super) fn end_write(&mut self, from: PeerId, id: TransferId, count: u64) {
        let Some(Incoming::Write { key, address, total, received, data, status }) = self.incoming.get_mut(&(from, id))
        else {
            return;
        };
        *received += count;
        if *received < *total {
            return;
        }
        // The region may have been closed while bytes arrived.
        if *status == Status::Ok {
            *status = self.regions.check(*key, *address, *total, true).map_or_else(status_of, |()| Status::Ok);
        }
        let (status, data, length) = (*status, *data, *total);
        self.incoming.remove(&(from, id));
        if data.is_some() && status == Status::Ok {
            let event = blank(OperationKind::RemoteWrite, UserData::default());
            self.completions.push_back(Completion { length, data, from: Some(from), ..event });
        }
        self.outbox.push_back((from, Outgoing::header(Message::Done { id, status })));
    }

    pub(super) fn apply_atomic(&mut self, from: PeerId, id: TransferId) {
        let Some(Incoming::Atomic { message, bytes, .. }) = self.incoming.remove(&(from, id)) else { return };
        let Message::Atomic { key, address, datatype, operation, form, count, .. } = message else { return };
        let mut old = Vec::new();
        let status = match memory::atomic::size(datatype) {
            None => Status::Unsupported,
            Some(size) => {
                let length = size.saturating_mul(count as usize);
                let (operands, compares) = bytes.split_at(bytes.len().min(length));
                let apply = |target: &mut [u8]| {
                    memory::atomic::apply(datatype, operation, target, operands, compares, &mut old)
                };
                match self.regions.with_mut(key, address, length, apply) {
                    Ok(Ok(())) => Status::Ok,
                    Ok(Err(_)) => Status::Unsupported,
                    Err(error) => status_of(error),
                }
            }
        };
        let item = if form == AtomicForm::Write {
            Outgoing::header(Message::Done { id, status })
        } else {
            if status != Status::Ok {
                old.clear();
            }
            let head = Some(Message::Fetched { id, status });
            let (end, bytes) = (old.len() as u64, Bytes::Buffer(memory::Buffer::owned(old)));
            Outgoing { head, id, reply: true, at: 0, end, bytes, detach: false, sent: None }
        };
        self.outbox.push_back((from, item));
    }

    /// Ends a frame with bytes of a read, or with the answer to an atomic.
    pub(super) fn end_result(&mut self, id: TransferId, count: u64, status: Option<Status>) {
        let Some(transfer) = self.transfers.get_mut(id as usize) else { return };
        let finished = match transfer {
            OwnTransfer::Read { buffer, received, .. } => {
                *received += count;
                status.is_some() || *received >= buffer.len() as u64
            }
            _ => true,
        };
        if !finished {
            return;
        }
        let status = status.unwrap_or(Status::Ok);
        let result = if status == Status::Ok { Ok(()) } else { Err(Failure::Refused(status)) };
        let completion = match self.transfers.remove(id as usize) {
            OwnTransfer::Read { user, buffer, .. } => Completion {
                length: buffer.len() as u64,
                buffer: Some(buffer),
                result,
                ..blank(OperationKind::Read, user)
            },
            OwnTransfer::Atomic { user, result: buffer, .. } => Completion {
                length: buffer.len() as u64,
                buffer: Some(buffer),
                result,
                ..blank(OperationKind::Atomic, user)
            },
            OwnTransfer::Send { .. } | OwnTransfer::Write { .. } => return,
        };
        self.completions.push_back(completion);
    }
}
