//! One neighbour: the ring to it, the ring from it, and its queued items.

use std::collections::VecDeque;
use std::io;

use pool::{Consumer, Corrupt, Permission, Producer, Record, RecordKind, Seat, read_process};
use wire::Message;
use wire::message::MAX_HEADER;

use super::doorbell::ProcessWatch;
use super::pace::Pace;
use super::{from_region, refusal};
use crate::link::{Misbehaved, Outgoing, Sink};
use crate::operation::PeerId;

/// Maximum number of bytes in one single copy, so that a reader can serve others in between, and a writer's buffer is
/// freed part by part.
const COPY: u32 = 4 << 20;
/// Maximum number of pieces of memory in one such frame.
const PIECES: usize = memory::buffer::MAX_PIECES;
/// The longest record of a single copy: length, number of pieces, pieces, message header.
const COPY_RECORD: usize = 16 + 16 * PIECES + MAX_HEADER;

/// Reasons to stop reading from a neighbour.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("it has closed its endpoint")]
    Goodbye,
    #[error("{0}")]
    Corrupt(#[from] Corrupt),
    #[error("protocol error: {0}")]
    Misbehaved(#[from] Misbehaved),
    #[error("its memory cannot be read: {0}")]
    Copy(io::Error),
}

/// Reasons why nothing can be written to a neighbour.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unwritable {
    #[error("it has not joined the shared memory")]
    Absent,
    /// The reason given when it was lost.
    #[error("{0}")]
    Lost(String),
    /// There is no room for a ring, which is a problem of this node too.
    #[error("{0}")]
    NoRing(String),
}

pub(super) struct Neighbour {
    pub peer: PeerId,
    pub place: u32,
    pub seat: Seat,
    /// We have announced to it that we write to it.
    pub knocked: bool,
    /// The nap in which we last rang its doorbell.
    pub rung: u64,
    pub watched: ProcessWatch,
    /// It shares our process id namespace.
    shares: bool,
    out: Option<Producer>,
    pace: Pace,
    input: Option<Consumer>,
    queue: VecDeque<Outgoing>,
    /// The queue's first item goes by single copy, to its end.
    copies: bool,
    /// Items that the neighbour has not copied completely. Each is copied once the neighbour has consumed up to the
    /// position.
    uncopied: VecDeque<(u64, Outgoing)>,
    lost: Option<String>,
}

impl Neighbour {
    pub(super) fn new(peer: PeerId, place: u32, seat: Seat, shares: bool, single_copy: Option<u64>) -> Neighbour {
        Neighbour {
            peer,
            place,
            seat,
            knocked: false,
            rung: 0,
            watched: ProcessWatch::No,
            shares,
            out: None,
            pace: Pace::new(single_copy),
            input: None,
            queue: VecDeque::new(),
            copies: false,
            uncopied: VecDeque::new(),
            lost: None,
        }
    }

    pub(super) fn is_read(&self) -> bool {
        self.input.is_some() || self.lost.is_some()
    }

    pub(super) fn is_written(&self) -> bool {
        self.out.is_some()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// # Errors
    /// The reason why it can no longer be reached.
    pub(super) fn check(&self) -> Result<(), Unwritable> {
        self.lost.clone().map_or(Ok(()), |reason| Err(Unwritable::Lost(reason)))
    }

    pub(super) fn write_to(&mut self, ring: Producer) {
        self.out = Some(ring);
    }

    /// Starts to read from it. Tests whether its memory can be read, with a word whose address is in its seat.
    pub(super) fn read_from(&mut self, ring: Consumer) {
        let mut word = [0; 8];
        let read = self.shares
            && read_process(self.seat.pid, &[(self.seat.probe.0, 8)], 0, &mut word).is_ok_and(|count| count == 8);
        ring.permit(read && u64::from_ne_bytes(word) == self.seat.probe.1);
        self.input = Some(ring);
    }

    /// True if this many bytes may stay in place for the neighbour to copy.
    pub(super) fn may_want_single_copy(&self, bytes: u64) -> bool {
        self.pace.may_want_single_copy(bytes)
    }

    /// True if items are queued, or still have to be copied.
    pub(super) fn has_pending(&self) -> bool {
        !self.queue.is_empty() || !self.uncopied.is_empty()
    }

    /// True if the ring has no room for a long record, or items wait for room.
    pub(super) fn is_full(&mut self) -> bool {
        let full = |ring: &mut Producer| matches!(ring.reserve(ring.longest()), Ok(None));
        !self.queue.is_empty() || self.out.as_mut().is_some_and(full)
    }

    /// True if there is nothing to read and nothing that could continue.
    pub(super) fn is_quiet(&mut self) -> bool {
        if self.lost.is_some() {
            return true;
        }
        let unread = self.input.as_mut().is_some_and(|ring| !matches!(ring.oldest(), Ok(None)));
        !unread && !self.can_go_on()
    }

    fn can_go_on(&mut self) -> bool {
        if !self.has_pending() {
            return false;
        }
        let Some(ring) = &mut self.out else { return false };
        let Ok(consumed) = ring.consumed() else { return true };
        let copied = self.uncopied.front().is_some_and(|(position, _)| *position <= consumed);
        copied || !self.queue.is_empty() && !matches!(ring.reserve(ring.longest()), Ok(None))
    }

    /// Writes a short message, if nothing is queued before it and the ring has room.
    pub(super) fn write_whole(&mut self, message: &Message, bytes: &[u8]) -> bool {
        let count = bytes.len() as u64;
        if !self.queue.is_empty() || count >= self.pace.single_copy_from() {
            return false;
        }
        let Some(ring) = &mut self.out else { return false };
        let header = message.encode(count);
        let header = header.as_slice();
        let length = header.len() + bytes.len();
        if length > ring.longest() as usize {
            return false;
        }
        // The next caller notices a damaged ring too, and reports it.
        let Ok(Some(mut space)) = ring.reserve(length as u32) else { return false };
        space.write(0, header);
        self.pace.time(count, || space.write(header.len(), bytes));
        space.publish(RecordKind::Frame);
        true
    }

    /// Queues an item. If nothing is queued before it, writes as much of it as the ring takes. Returns true if anything
    /// was written.
    pub(super) fn send(
        &mut self,
        item: Outgoing,
        buffered: &mut u64,
        scratch: &mut Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Result<bool, Corrupt> {
        let first = self.queue.is_empty();
        self.queue.push_back(item);
        if first { self.flush(buffered, scratch, sink) } else { Ok(false) }
    }

    /// Makes the item queued last independent of the user's memory.
    pub(super) fn detach_last(&mut self) {
        if let Some(item) = self.queue.back_mut() {
            item.detach_now();
        }
    }

    /// Reports copied items, and writes as much as the ring takes. Returns true if anything was written or reported.
    pub(super) fn flush(
        &mut self,
        buffered: &mut u64,
        scratch: &mut Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Result<bool, Corrupt> {
        let mut moved = self.report_copied(buffered, sink)?;
        let Some(ring) = &mut self.out else { return Ok(false) };
        while let Some(item) = self.queue.front_mut() {
            if !self.copies && !item.is_region() && self.pace.wants_single_copy(item.left()) {
                self.copies = ring.permission() == Permission::Yes;
            }
            let done = match self.copies {
                true => write_copy(ring, item)?,
                false => write_frame(ring, &mut self.pace, item, scratch, sink)?,
            };
            let Some(done) = done else { break };
            moved = true;
            if !done {
                continue;
            }
            let copied = std::mem::take(&mut self.copies);
            let Some(item) = self.queue.pop_front() else { break };
            if copied {
                self.uncopied.push_back((ring.written(), item));
            } else {
                finish(item, buffered, sink);
            }
        }
        Ok(moved)
    }

    /// Reports the items that the neighbour has copied completely. Returns true if there were any.
    pub(super) fn report_copied(&mut self, buffered: &mut u64, sink: &mut dyn Sink) -> Result<bool, Corrupt> {
        let Some(ring) = self.out.as_mut().filter(|_| !self.uncopied.is_empty()) else { return Ok(false) };
        let consumed = ring.consumed()?;
        let mut moved = false;
        while self.uncopied.front().is_some_and(|(position, _)| *position <= consumed) {
            let Some((_, item)) = self.uncopied.pop_front() else { break };
            finish(item, buffered, sink);
            moved = true;
        }
        Ok(moved)
    }

    /// Takes the oldest record; `None`: there is none. The flag is true if the room that this frees was published to
    /// the neighbour.
    pub(super) fn take(&mut self, sink: &mut dyn Sink) -> Result<Option<bool>, Trouble> {
        let Some(ring) = &mut self.input else { return Ok(None) };
        let Some(record) = ring.oldest()? else { return Ok(None) };
        match record.kind {
            RecordKind::Frame => read_frame(ring, &record, self.peer, sink)?,
            RecordKind::Copy if self.shares => read_copy(ring, &record, self.seat.pid, self.peer, sink)?,
            RecordKind::Copy => return Err(Misbehaved::Protocol("a single copy from another node").into()),
            RecordKind::Bye => return Err(Trouble::Goodbye),
        }
        Ok(Some(ring.done(record, record.kind == RecordKind::Copy)))
    }

    /// Sends a goodbye. Returns true if it was written, so that the neighbour must be woken.
    pub(super) fn say_goodbye(&mut self) -> bool {
        let Some(ring) = self.out.as_mut().filter(|_| self.lost.is_none() && self.queue.is_empty()) else {
            return false;
        };
        // If the ring is full, the neighbour notices that we have left our seat, or that our process has ended.
        let Ok(Some(space)) = ring.reserve(0) else { return false };
        space.publish(RecordKind::Bye);
        true
    }

    /// Gives up both rings. Returns the items that will never be sent.
    pub(super) fn lose(&mut self, reason: Option<String>) -> Vec<Outgoing> {
        self.lost = Some(reason.unwrap_or_else(|| Trouble::Goodbye.to_string()));
        (self.out, self.input, self.watched) = (None, None, ProcessWatch::No);
        let copying = std::mem::take(&mut self.uncopied).into_iter().map(|(_, item)| item);
        copying.chain(std::mem::take(&mut self.queue)).collect()
    }
}

fn finish(item: Outgoing, buffered: &mut u64, sink: &mut dyn Sink) {
    if item.detach {
        *buffered -= item.end;
    }
    item.sent.into_iter().for_each(|sent| sink.sent(sent));
}

/// Writes the next frame. Returns true if it was the item's last; `None`: the ring is full.
fn write_frame(
    ring: &mut Producer,
    pace: &mut Pace,
    item: &mut Outgoing,
    scratch: &mut Vec<u8>,
    sink: &dyn Sink,
) -> Result<Option<bool>, Corrupt> {
    let (header, count) = item.next_frame(ring.longest());
    let header = header.as_slice();
    let Some(mut space) = ring.reserve(header.len() as u32 + count as u32)? else { return Ok(None) };
    if item.is_region() {
        if let Err(status) = from_region(item, count, sink.regions(), scratch) {
            // The region was closed while it was being read: send a refusal instead.
            let Some(mut space) = ring.reserve(refusal(item, status).as_slice().len() as u32)? else { return Ok(None) };
            space.write(0, refusal(item, status).as_slice());
            space.publish(RecordKind::Frame);
            item.at = item.end;
            return Ok(Some(true));
        }
        space.write(header.len(), scratch);
    } else {
        pace.time(count, || {
            let mut at = header.len();
            for slice in item.slices(count) {
                space.write(at, slice);
                at += slice.len();
            }
        });
    }
    space.write(0, header);
    space.publish(RecordKind::Frame);
    Ok(Some(item.advance(count)))
}

/// Writes the addresses of the next frame's payload. Returns true if it was the item's last; `None`: the ring is full.
fn write_copy(ring: &mut Producer, item: &mut Outgoing) -> Result<Option<bool>, Corrupt> {
    let (header, count) = item.next_frame(COPY + MAX_HEADER as u32);
    let mut record = [0; COPY_RECORD];
    let mut at = 16;
    let mut pieces = 0u64;
    for slice in item.slices(count) {
        record[at..at + 8].copy_from_slice(&(slice.as_ptr().expose_provenance() as u64).to_ne_bytes());
        record[at + 8..at + 16].copy_from_slice(&(slice.len() as u64).to_ne_bytes());
        at += 16;
        pieces += 1;
    }
    record[..8].copy_from_slice(&count.to_ne_bytes());
    record[8..16].copy_from_slice(&pieces.to_ne_bytes());
    let header = header.as_slice();
    record[at..at + header.len()].copy_from_slice(header);
    let record = &record[..at + header.len()];
    let Some(mut space) = ring.reserve(record.len() as u32)? else { return Ok(None) };
    space.write(0, record);
    space.publish(RecordKind::Copy);
    Ok(Some(item.advance(count)))
}

fn read_frame(ring: &Consumer, record: &Record, peer: PeerId, sink: &mut dyn Sink) -> Result<(), Trouble> {
    let mut head = [0; MAX_HEADER];
    let known = head.len().min(record.length as usize);
    ring.read(record, 0, &mut head[..known]);
    let (message, used) = Message::decode(&head[..known], record.length).map_err(Misbehaved::from)?;
    let following = record.length - used as u32;
    if sink.take_whole(peer, &message, following, &mut |into| ring.read(record, used, into))? {
        return Ok(());
    }
    let mut place = sink.begin(peer, message, following)?;
    sink.put(&mut place, &head[used..known]);
    let (mut at, length) = (known, record.length as usize);
    while at < length {
        let mut read = |into: &mut [u8]| {
            ring.read(record, at, into);
            Ok(into.len())
        };
        at += sink.fill(&mut place, length - at, &mut read).map_err(Trouble::Copy)?;
    }
    sink.end(place);
    Ok(())
}

fn read_copy(ring: &Consumer, record: &Record, pid: u32, peer: PeerId, sink: &mut dyn Sink) -> Result<(), Trouble> {
    let wrong = Misbehaved::Protocol("an invalid single copy");
    let mut body = [0; COPY_RECORD];
    let body = body.get_mut(..record.length as usize).ok_or(wrong.clone())?;
    ring.read(record, 0, body);
    let word = |at: usize| body.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
    let count = word(0).filter(|count| (1..=u64::from(COPY)).contains(count)).ok_or(wrong.clone())?;
    let pieces = word(8).filter(|pieces| (1..=PIECES as u64).contains(pieces)).ok_or(wrong.clone())? as usize;
    let mut places = [(0, 0); PIECES];
    for (number, place) in places[..pieces].iter_mut().enumerate() {
        let at = 16 + 16 * number;
        *place = word(at).zip(word(at + 8)).ok_or(wrong.clone())?;
    }
    let places = &places[..pieces];
    let header = body.get(16 + 16 * pieces..).ok_or(wrong.clone())?;
    let sum = places.iter().try_fold(0u64, |sum, (_, length)| sum.checked_add(*length));
    if sum != Some(count) {
        return Err(wrong.into());
    }
    let (message, used) = Message::decode(header, header.len() as u32 + count as u32).map_err(Misbehaved::from)?;
    if used != header.len() {
        return Err(wrong.into());
    }
    let mut place = sink.begin(peer, message, count as u32)?;
    let mut at = 0;
    while at < count {
        let mut read = |into: &mut [u8]| match read_process(pid, places, at, into)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => Ok(read),
        };
        at += sink.fill(&mut place, (count - at) as usize, &mut read).map_err(Trouble::Copy)? as u64;
    }
    sink.end(place);
    Ok(())
}
