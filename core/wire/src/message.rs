//! Messages between endpoints: the payload of a `Data` frame is one message header and, for some, bytes.
//!
//! A transfer starts with `Start`, which carries the envelope (tag, length) and the first bytes. The sender states the
//! number of bytes that it sends eagerly. It sends any remaining bytes once the receiver has a buffer for them and
//! sends `Go` (rendezvous). So a short message is one frame, and a long message to a waiting receiver is never
//! interrupted. A long unexpected message costs the receiver only its envelope and the promised bytes, which count
//! against `Credit`. RMA and atomics need no matching and no `Go`.

use crate::error::WireError;
use crate::reader::FieldReader;

/// The longest message header in bytes.
pub const MAX_HEADER: usize = 48;

/// The number of a transfer among those that its initiator has in flight to the same peer.
pub type TransferId = u32;

/// A message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// A tagged or untagged message starts. Bytes from offset 0 follow.
    Start {
        id: TransferId,
        /// Tagged; otherwise it matches untagged receives.
        tagged: bool,
        /// The tag; 0 if untagged.
        tag: u64,
        /// Length of the whole message in bytes.
        total: u64,
        /// Number of bytes, from the first, that are sent without a `Go`.
        promised: u64,
        /// Remote completion data.
        data: Option<u64>,
        /// Answer with `Done` when the message is in the receiver's buffer.
        wants_done: bool,
    },
    /// More bytes of a transfer that this side initiated (or of a read it answers).
    More {
        id: TransferId,
        /// Offset of the bytes from the start of the transfer.
        offset: u64,
        /// The transfer was initiated by the receiver of this message: a reply to `Read`.
        reply: bool,
    },
    /// The receiver has a buffer for this transfer: send the bytes beyond the promised ones, up to `limit` bytes in
    /// total.
    Go {
        id: TransferId,
        /// Number of bytes of the message that the receiver wants, from the first.
        limit: u64,
    },
    /// A transfer is complete at its destination.
    Done {
        id: TransferId,
        /// The outcome.
        status: Status,
    },
    /// Write the bytes that follow (and the `More` after them) into a region.
    Write {
        id: TransferId,
        /// The region's key.
        key: u64,
        /// Offset in the region, or virtual address if the region was registered for that.
        address: u64,
        /// Length in bytes.
        total: u64,
        /// Remote completion data.
        data: Option<u64>,
    },
    /// Send back this part of a region as `More { reply: true }`.
    Read {
        id: TransferId,
        /// The region's key.
        key: u64,
        /// Offset in the region, or virtual address.
        address: u64,
        /// Length in bytes.
        total: u64,
    },
    /// Apply an atomic operation; operands, then compare operands, follow.
    Atomic {
        id: TransferId,
        /// The region's key.
        key: u64,
        /// Offset in the region, or virtual address.
        address: u64,
        /// `enum fi_datatype`.
        datatype: u8,
        /// `enum fi_op`.
        operation: u8,
        /// The operands that follow, and whether old values are requested.
        form: AtomicForm,
        /// Number of elements.
        count: u32,
    },
    /// The old values of an atomic operation follow.
    Fetched {
        id: TransferId,
        /// The outcome.
        status: Status,
    },
    /// The receiver has freed this much room for promised bytes.
    Credit { bytes: u64 },
    /// The sender of this message has a buffer for the receiver's share with this key. If the share began earlier, the
    /// credit that it has used is returned.
    Ready {
        key: u64,
        /// Length of the buffer.
        bytes: u64,
    },
    /// A piece of a share follows.
    Share {
        key: u64,
        /// Offset of the piece.
        offset: u64,
        /// Length of the whole share.
        total: u64,
    },
}

/// The operands of an atomic operation, and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AtomicForm {
    /// Operand in, no reply.
    Write = 0,
    /// Operand in (none for `FI_ATOMIC_READ`), old value back.
    Fetch = 1,
    /// Operand and compare operand in, old value back.
    Compare = 2,
}

/// The outcome of an operation at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// No region has this key.
    UnknownKey = 1,
    /// Outside the region.
    OutOfBounds = 2,
    /// The region does not allow this access.
    NotPermitted = 3,
    /// The target cannot do this operation on this datatype.
    Unsupported = 4,
    /// The receive that matched was cancelled or its endpoint closed.
    Gone = 5,
}

impl Status {
    fn from_code(code: u8) -> Result<Status, WireError> {
        Ok(match code {
            0 => Status::Ok,
            1 => Status::UnknownKey,
            2 => Status::OutOfBounds,
            3 => Status::NotPermitted,
            4 => Status::Unsupported,
            5 => Status::Gone,
            code => return Err(WireError::Unknown { what: "status", code }),
        })
    }
}

mod code {
    pub(super) const START: u8 = 1;
    pub(super) const MORE: u8 = 2;
    pub(super) const GO: u8 = 3;
    pub(super) const DONE: u8 = 4;
    pub(super) const WRITE: u8 = 5;
    pub(super) const READ: u8 = 6;
    pub(super) const ATOMIC: u8 = 7;
    pub(super) const FETCHED: u8 = 8;
    pub(super) const CREDIT: u8 = 9;
    pub(super) const READY: u8 = 10;
    pub(super) const SHARE: u8 = 11;
}

mod flag {
    pub(super) const TAGGED: u8 = 1;
    pub(super) const DATA: u8 = 2;
    pub(super) const WANTS_DONE: u8 = 4;
    /// `total` and `promised` both equal the number of bytes in this frame, so there are no length fields: the common
    /// case of a short message.
    pub(super) const WHOLE: u8 = 8;
    pub(super) const REPLY: u8 = 16;
}

/// A message header's bytes, on the stack.
#[derive(Clone, Copy)]
pub struct Encoded {
    bytes: [u8; MAX_HEADER],
    length: u8,
}

impl std::fmt::Debug for Encoded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.as_slice())
    }
}

impl Encoded {
    fn new(code: u8, flags: u8) -> Encoded {
        let mut bytes = [0; MAX_HEADER];
        bytes[0] = code;
        bytes[1] = flags;
        Encoded { bytes, length: 4 }
    }

    fn put<const N: usize>(mut self, field: [u8; N]) -> Encoded {
        let at = usize::from(self.length);
        self.bytes[at..at + N].copy_from_slice(&field);
        self.length += N as u8;
        self
    }

    fn u32(self, value: u32) -> Encoded {
        self.put(value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Encoded {
        self.put(value.to_le_bytes())
    }

    fn optional(self, value: Option<u64>) -> Encoded {
        match value {
            Some(value) => self.u64(value),
            None => self,
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Message {
    /// The header's bytes. `following`: number of bytes after it in the same frame (lets a `Start` omit its lengths).
    pub fn encode(&self, following: u64) -> Encoded {
        let data_flag = |data: &Option<u64>| if data.is_some() { flag::DATA } else { 0 };
        match self {
            Message::Start { id, tagged, tag, total, promised, data, wants_done } => {
                let whole = *total == following && *promised == following;
                let flags = data_flag(data)
                    | if *tagged { flag::TAGGED } else { 0 }
                    | if *wants_done { flag::WANTS_DONE } else { 0 }
                    | if whole { flag::WHOLE } else { 0 };
                let header = Encoded::new(code::START, flags).u32(*id).u64(*tag).optional(*data);
                if whole { header } else { header.u64(*total).u64(*promised) }
            }
            Message::More { id, offset, reply } => {
                Encoded::new(code::MORE, if *reply { flag::REPLY } else { 0 }).u32(*id).u64(*offset)
            }
            Message::Go { id, limit } => Encoded::new(code::GO, 0).u32(*id).u64(*limit),
            Message::Done { id, status } => Encoded::new(code::DONE, 0).u32(*id).put([*status as u8]),
            Message::Write { id, key, address, total, data } => {
                Encoded::new(code::WRITE, data_flag(data)).u32(*id).u64(*key).u64(*address).u64(*total).optional(*data)
            }
            Message::Read { id, key, address, total } => {
                Encoded::new(code::READ, 0).u32(*id).u64(*key).u64(*address).u64(*total)
            }
            Message::Atomic { id, key, address, datatype, operation, form, count } => Encoded::new(code::ATOMIC, 0)
                .u32(*id)
                .u64(*key)
                .u64(*address)
                .u32(*count)
                .put([*datatype, *operation, *form as u8]),
            Message::Fetched { id, status } => Encoded::new(code::FETCHED, 0).u32(*id).put([*status as u8]),
            Message::Credit { bytes } => Encoded::new(code::CREDIT, 0).u64(*bytes),
            Message::Ready { key, bytes } => Encoded::new(code::READY, 0).u64(*key).u64(*bytes),
            Message::Share { key, offset, total } => Encoded::new(code::SHARE, 0).u64(*key).u64(*offset).u64(*total),
        }
    }

    /// Reads the header at the start of a frame's payload of `frame_length` bytes, of which `bytes` are available (at
    /// least [`MAX_HEADER`], or all). Returns the header and its length.
    ///
    /// # Errors
    /// [`WireError`]: truncated, an unknown code, or lengths that contradict each other.
    pub fn decode(bytes: &[u8], frame_length: u32) -> Result<(Message, usize), WireError> {
        let mut reader = FieldReader::new("message", bytes);
        let code = reader.u8()?;
        let flags = reader.u8()?;
        reader.u16()?;
        let optional = |reader: &mut FieldReader<'_>| {
            if flags & flag::DATA != 0 { reader.u64().map(Some) } else { Ok(None) }
        };
        let message = match code {
            code::START => {
                let (id, tag) = (reader.u32()?, reader.u64()?);
                let data = optional(&mut reader)?;
                let whole = flags & flag::WHOLE != 0;
                let lengths = if whole { None } else { Some((reader.u64()?, reader.u64()?)) };
                let following = u64::from(frame_length).saturating_sub(reader.used() as u64);
                let (total, promised) = lengths.unwrap_or((following, following));
                if promised > total || following > promised {
                    let problem = format!("{following} bytes here, {promised} promised, {total} in total");
                    return Err(WireError::Invalid { what: "start of a message", problem });
                }
                let wants_done = flags & flag::WANTS_DONE != 0;
                Message::Start { id, tagged: flags & flag::TAGGED != 0, tag, total, promised, data, wants_done }
            }
            code::MORE => Message::More { id: reader.u32()?, offset: reader.u64()?, reply: flags & flag::REPLY != 0 },
            code::GO => Message::Go { id: reader.u32()?, limit: reader.u64()? },
            code::DONE => Message::Done { id: reader.u32()?, status: Status::from_code(reader.u8()?)? },
            code::WRITE => Message::Write {
                id: reader.u32()?,
                key: reader.u64()?,
                address: reader.u64()?,
                total: reader.u64()?,
                data: optional(&mut reader)?,
            },
            code::READ => {
                Message::Read { id: reader.u32()?, key: reader.u64()?, address: reader.u64()?, total: reader.u64()? }
            }
            code::ATOMIC => {
                let (id, key, address, count) = (reader.u32()?, reader.u64()?, reader.u64()?, reader.u32()?);
                let (datatype, operation) = (reader.u8()?, reader.u8()?);
                let form = match reader.u8()? {
                    0 => AtomicForm::Write,
                    1 => AtomicForm::Fetch,
                    2 => AtomicForm::Compare,
                    code => return Err(WireError::Unknown { what: "atomic form", code }),
                };
                Message::Atomic { id, key, address, datatype, operation, form, count }
            }
            code::FETCHED => Message::Fetched { id: reader.u32()?, status: Status::from_code(reader.u8()?)? },
            code::CREDIT => Message::Credit { bytes: reader.u64()? },
            code::READY => Message::Ready { key: reader.u64()?, bytes: reader.u64()? },
            code::SHARE => Message::Share { key: reader.u64()?, offset: reader.u64()?, total: reader.u64()? },
            code => return Err(WireError::Unknown { what: "message", code }),
        };
        Ok((message, reader.used()))
    }
}

#[cfg(test)]
mod tests;
