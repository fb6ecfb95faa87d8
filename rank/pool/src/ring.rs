//! A ring of bytes with one writer and one reader, in two processes.
//!
//! A record is a header word and a body, aligned to 8 bytes and never split: if it does not fit before the ring's end,
//! the writer skips the rest. The writer stores the header word last. Before that it zeroes the word behind the record,
//! the place of the next header. So the reader polls a single word, in the line that then carries the data, and a short
//! message costs the transfer of one cache line. There is no shared head index: the reader publishes its position in a
//! line of its own, once per quarter of the ring or when the writer waits for it (a record of [`RecordKind::Copy`]).
//!
//! Neither side trusts the other: an invalid header or position is [`Corrupt`].

use std::sync::atomic::Ordering;

use thiserror::Error;

use crate::layout::LINE;
use crate::mapping::Mapping;

const HEADER: u64 = 8;
/// Offsets of the words in the reader's line.
const CONSUMED: u64 = 0;
const PERMISSION: u64 = 8;
/// Kind in a header that skips the rest of the ring.
const SKIP: u64 = 0xFF;

/// The other side violated the ring's rules, or another program wrote into the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ring in shared memory is damaged: {what} {value:#x}")]
pub struct Corrupt {
    what: &'static str,
    value: u64,
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    Frame = 1,
    /// A frame whose payload is still in the writer's memory, with the payload's addresses there.
    Copy = 2,
    /// The writer closes.
    Bye = 3,
}

/// The reader's ability to read the writer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The reader has not tested it yet.
    Unknown,
    /// The reader can.
    Yes,
    /// The reader cannot.
    No,
}

/// The writing end.
pub struct Producer {
    map: Mapping,
    capacity: u64,
    /// Offset of the next header.
    at: u64,
    /// Bytes written since the start, and the part of them that the reader has reported as consumed.
    written: u64,
    consumed: u64,
}

/// Room for one record.
pub struct Space<'a> {
    producer: &'a mut Producer,
    length: u64,
}

/// The reading end.
pub struct Consumer {
    map: Mapping,
    capacity: u64,
    at: u64,
    consumed: u64,
    /// Value of `consumed` last published to the writer.
    told: u64,
}

/// A record that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub kind: RecordKind,
    /// Bytes of its body.
    pub length: u32,
}

fn size_of(length: u64) -> u64 {
    HEADER + length.next_multiple_of(8)
}

impl Producer {
    pub(crate) fn new(map: Mapping, ring: u64) -> Producer {
        Producer { map, capacity: ring - LINE, at: 0, written: 0, consumed: 0 }
    }

    /// The longest body. A few such records fit into the ring at once, so writer and reader work in parallel.
    pub fn longest(&self) -> u32 {
        (self.capacity / 4 - 2 * HEADER) as u32
    }

    /// Reserves room for a body of `length` bytes, at most [`Producer::longest`]. `None`: the reader has to free some
    /// first.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn reserve(&mut self, length: u32) -> Result<Option<Space<'_>>, Corrupt> {
        let length = u64::from(length);
        assert!(length <= u64::from(self.longest()), "a record longer than a quarter of its ring");
        let size = size_of(length);
        let skipped = if self.at + size > self.capacity { self.capacity - self.at } else { 0 };
        // `publish` zeroes the word behind the record, so that word must be free as well.
        let needed = skipped + size + HEADER;
        if self.written + needed > self.consumed + self.capacity {
            self.look()?;
            if self.written + needed > self.consumed + self.capacity {
                return Ok(None);
            }
        }
        if skipped > 0 {
            self.header(0).store(0, Ordering::Relaxed);
            self.header(self.at).store(SKIP << 32, Ordering::Release);
            self.at = 0;
            self.written += skipped;
        }
        Ok(Some(Space { producer: self, length }))
    }

    /// The position after the last record. Compare it with [`Producer::consumed`].
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The reader's position, loaded again.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn consumed(&mut self) -> Result<u64, Corrupt> {
        self.look()?;
        Ok(self.consumed)
    }

    /// The reader's ability to read our memory.
    pub fn permission(&self) -> Permission {
        match self.map.word(PERMISSION).load(Ordering::Relaxed) {
            0 => Permission::Unknown,
            1 => Permission::Yes,
            _ => Permission::No,
        }
    }

    fn look(&mut self) -> Result<(), Corrupt> {
        let consumed = self.map.word(CONSUMED).load(Ordering::Acquire);
        if consumed < self.consumed || consumed > self.written {
            return Err(Corrupt { what: "its reader's position is", value: consumed });
        }
        self.consumed = consumed;
        Ok(())
    }

    fn header(&self, at: u64) -> &std::sync::atomic::AtomicU64 {
        self.map.word(LINE + at)
    }
}

impl Space<'_> {
    /// Writes a part of the body.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!((offset + bytes.len()) as u64 <= self.length, "more than was reserved");
        self.producer.map.copy_in(LINE + self.producer.at + HEADER + offset as u64, bytes);
    }

    /// Hands the record to the reader.
    pub fn publish(self, kind: RecordKind) {
        let Space { producer, length } = self;
        let size = size_of(length);
        let behind = if producer.at + size == producer.capacity { 0 } else { producer.at + size };
        producer.header(behind).store(0, Ordering::Relaxed);
        producer.header(producer.at).store((kind as u64) << 32 | length, Ordering::Release);
        producer.at = behind;
        producer.written += size;
    }
}

impl Consumer {
    pub(crate) fn new(map: Mapping, ring: u64) -> Consumer {
        Consumer { map, capacity: ring - LINE, at: 0, consumed: 0, told: 0 }
    }

    /// The oldest record. It stays in the ring until [`Consumer::done`].
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn oldest(&mut self) -> Result<Option<Record>, Corrupt> {
        let header = self.map.word(LINE + self.at).load(Ordering::Acquire);
        if header == 0 {
            return Ok(None);
        }
        self.parse(header)
    }

    fn parse(&mut self, mut header: u64) -> Result<Option<Record>, Corrupt> {
        if header >> 32 == SKIP && self.at > 0 {
            self.consumed += self.capacity - self.at;
            self.at = 0;
            header = self.map.word(LINE).load(Ordering::Acquire);
            if header == 0 {
                return Ok(None);
            }
        }
        let corrupt = Corrupt { what: "a header says", value: header };
        let kind = match header >> 32 {
            1 => RecordKind::Frame,
            2 => RecordKind::Copy,
            3 => RecordKind::Bye,
            _ => return Err(corrupt),
        };
        let length = header as u32;
        if self.at + size_of(length.into()) > self.capacity {
            return Err(corrupt);
        }
        Ok(Some(Record { kind, length }))
    }

    /// Copies a part of the oldest record's body out.
    pub fn read(&self, record: &Record, offset: usize, into: &mut [u8]) {
        assert!((offset + into.len()) as u64 <= record.length.into(), "more than the record has");
        self.map.copy_out(LINE + self.at + HEADER + offset as u64, into);
    }

    /// Frees the oldest record. Returns true if our position was published to the writer, which may be asleep waiting
    /// for it. With `tell` it always is.
    pub fn done(&mut self, record: Record, tell: bool) -> bool {
        let size = size_of(record.length.into());
        self.at += size;
        if self.at == self.capacity {
            self.at = 0;
        }
        self.consumed += size;
        let due = tell || self.consumed - self.told >= self.capacity / 4;
        if due {
            self.told = self.consumed;
            self.map.word(CONSUMED).store(self.consumed, Ordering::Release);
        }
        due
    }

    /// Publishes to the writer whether we can read its memory.
    pub fn permit(&self, permitted: bool) {
        self.map.word(PERMISSION).store(if permitted { 1 } else { 2 }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
