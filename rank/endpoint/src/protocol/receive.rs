//! The end of receives: completions, and memory for several messages that is given back.

use wire::Message;
use wire::message::Status;

use super::{Active, Into, Protocol, blank};
use crate::link::Outgoing;
use crate::operation::{Completion, Failure, OperationKind};

impl Protocol {
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
}
