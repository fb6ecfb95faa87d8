//! Moves a message chunk by chunk: a rank forwards each chunk as soon as it has it.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_int;

use crate::communicator::Plan;
use crate::mpi::{Fault, Mpi};
use crate::requests::Requests;
use crate::shares::{PendingShare, Shares, Trees};

/// Limits of a chunk's length, in bytes. A chunk costs each rank some 10 µs, and a rank forwards it only once it is
/// complete, so a message is cut into about `CHUNKS` chunks within these limits.
const SHORTEST: usize = 16 << 10;
const LONGEST: usize = 512 << 10;
const CHUNKS: usize = 32;
/// Maximum number of messages that a rank has in flight, each way, per peer.
const IN_FLIGHT: usize = 64;
/// Maximum number of shares that a rank awaits.
const AWAITED: usize = 32;
/// MPI guarantees tags of at least 15 bits; the last tag is never used.
const TAGS: usize = (1 << 15) - 1;

/// Length of the chunks of a message of `length` bytes, in bytes; the last one may be shorter.
pub(crate) fn chunk(length: usize) -> usize {
    (length / CHUNKS).next_multiple_of(4096).clamp(SHORTEST, LONGEST)
}

/// A message in memory, in chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks {
    start: *mut u8,
    length: usize,
    each: usize,
}

impl Chunks {
    pub(crate) fn new(start: *mut u8, length: usize) -> Chunks {
        Chunks { start, length, each: chunk(length) }
    }

    pub(crate) fn count(&self) -> usize {
        self.length.div_ceil(self.each)
    }

    fn piece(&self, number: usize) -> (*mut u8, usize) {
        let at = number * self.each;
        (self.start.wrapping_add(at), self.each.min(self.length - at))
    }
}

/// Source of a rank's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// The rank has them all.
    Own,
    /// Another rank, by MPI messages.
    Rank(u32),
    /// A rank at another site, by shares.
    Share(u32),
}

/// A rank's part in moving a message.
pub(crate) struct RelayPart<'a> {
    pub from: From,
    /// Ranks at other sites to send each chunk to. Chunks that this rank has from the start go to them first.
    pub far: Vec<u32>,
    /// Ranks at its own site to send each chunk to.
    pub near: Vec<u32>,
    /// Ranks of other sites to share each chunk with, and the input for choosing trees.
    pub export: Option<(&'a [u32], Trees<'a>)>,
}

impl RelayPart<'_> {
    fn children(&self) -> usize {
        self.far.len() + self.near.len()
    }
}

/// Chunks that arrived in any order, to be taken in order of their numbers: receivers of shares await the first ones.
#[derive(Debug, Default)]
struct InOrder {
    next: usize,
    come: BTreeSet<usize>,
}

impl InOrder {
    /// The next chunk, if it is there.
    fn front(&self) -> Option<usize> {
        self.come.first().copied().filter(|first| *first == self.next)
    }

    fn pop_front(&mut self) {
        self.next += usize::from(self.come.remove(&self.next));
    }
}

/// Chunks in flight at one rank.
struct Movement<'a> {
    mpi: &'a Mpi,
    plan: &'a Plan,
    chunks: Chunks,
    part: &'a RelayPart<'a>,
    /// Requests with owners below the number of chunks are receives, the others sends.
    requests: Requests<'a>,
    receiving: usize,
    sending: usize,
    awaited: VecDeque<PendingShare<'a>>,
    exporting: Option<PendingShare<'a>>,
    /// Number of chunks whose receives have begun.
    asked: usize,
    arrived: usize,
    /// Chunks to send, each with its receiver.
    to_send: VecDeque<(usize, u32)>,
    to_export: InOrder,
    /// Number of finished sends to children and finished exports.
    done: usize,
}

/// Moves chunks from their source to all receivers. `first`: the number of the first one among the communicator's
/// shared chunks.
///
/// # Safety
/// Nobody else uses the chunks' memory meanwhile.
pub(crate) unsafe fn pass_on(
    mpi: &Mpi,
    plan: &Plan,
    chunks: Chunks,
    part: &RelayPart<'_>,
    first: u64,
) -> Result<(), Fault> {
    let count = chunks.count();
    let mut movement = Movement {
        mpi,
        plan,
        chunks,
        part,
        requests: Requests::new(mpi, IN_FLIGHT.min(count) * (1 + part.children())),
        receiving: 0,
        sending: 0,
        awaited: VecDeque::new(),
        exporting: None,
        asked: 0,
        arrived: 0,
        to_send: VecDeque::new(),
        to_export: InOrder::default(),
        done: 0,
    };
    if part.from == From::Own {
        movement.arrived = count;
        movement.to_export.come.extend((0..count).filter(|_| part.export.is_some()));
        for children in [&part.far, &part.near] {
            movement.to_send.extend((0..count).flat_map(|number| children.iter().map(move |child| (number, *child))));
        }
    }
    let shares = plan.shares.as_ref().filter(|_| part.export.is_some() || matches!(part.from, From::Share(_)));
    let copies = count * (part.children() + usize::from(part.export.is_some()));
    while movement.arrived < count || movement.done < copies {
        // SAFETY: the caller's promise.
        unsafe {
            movement.ask(shares, first)?;
            movement.export(shares, first)?;
            movement.send()?;
        }
        movement.wait(shares)?;
    }
    Ok(())
}

impl<'a> Movement<'a> {
    /// Records that a chunk is complete.
    fn has(&mut self, number: usize) {
        self.arrived += 1;
        self.to_send.extend(self.part.far.iter().chain(&self.part.near).map(|child| (number, *child)));
        self.to_export.come.extend(self.part.export.is_some().then_some(number));
    }

    /// Begins as many receives as there is room for.
    ///
    /// # Safety
    /// Nobody else uses the chunks' memory.
    unsafe fn ask(&mut self, shares: Option<&'a Shares>, first: u64) -> Result<(), Fault> {
        while self.asked < self.chunks.count() {
            let (place, size) = self.chunks.piece(self.asked);
            match (self.part.from, shares) {
                (From::Rank(from), _) if self.receiving < IN_FLIGHT && self.requests.has_room() => {
                    let (from, tag) = (from as c_int, (self.asked % TAGS) as c_int);
                    let (mpi, private) = (self.mpi, self.plan.private);
                    self.requests.begin(self.asked, |request| {
                        // SAFETY: the chunk is part of the message, and only this request writes it.
                        unsafe { mpi.irecv(place, size as c_int, (from, tag), private, request) }
                    })?;
                    self.receiving += 1;
                }
                (From::Share(from), Some(shares)) if self.awaited.len() < AWAITED => {
                    // SAFETY: only this share writes the chunk.
                    let share = unsafe { shares.receive(from, first + self.asked as u64, (place, size)) }?;
                    let Some(share) = share else { return Ok(()) };
                    self.awaited.push_back(share);
                }
                _ => return Ok(()),
            }
            self.asked += 1;
        }
        Ok(())
    }

    /// Begins to share the next chunk. Shares in flight at the same time take turns, and each of them ends later. So
    /// the next one begins only when this one has been sent.
    ///
    /// # Safety
    /// As [`Movement::ask`].
    unsafe fn export(&mut self, shares: Option<&'a Shares>, first: u64) -> Result<(), Fault> {
        let (Some((to, trees)), Some(shares)) = (&self.part.export, shares) else { return Ok(()) };
        if self.exporting.is_none()
            && let Some(number) = self.to_export.front()
        {
            let piece = self.chunks.piece(number);
            // SAFETY: the chunk is complete, and nobody writes it any more.
            self.exporting = unsafe { shares.send(first + number as u64, piece, to, trees) }?;
            if self.exporting.is_some() {
                self.to_export.pop_front();
            }
        }
        Ok(())
    }

    /// Begins as many sends as there is room for.
    ///
    /// # Safety
    /// As [`Movement::ask`].
    unsafe fn send(&mut self) -> Result<(), Fault> {
        while self.sending < IN_FLIGHT * self.part.children()
            && self.requests.has_room()
            && let Some((number, child)) = self.to_send.pop_front()
        {
            let (place, size) = self.chunks.piece(number);
            let (mpi, private, tag) = (self.mpi, self.plan.private, (number % TAGS) as c_int);
            self.requests.begin(self.chunks.count() + number, |request| {
                // SAFETY: the chunk is part of the message, complete, and nobody writes it any more.
                unsafe { mpi.isend(place, size as c_int, (child as c_int, tag), private, request) }
            })?;
            self.sending += 1;
        }
        Ok(())
    }

    /// Waits for an event. With shares it polls, because MPI does not know about them.
    fn wait(&mut self, shares: Option<&Shares>) -> Result<(), Fault> {
        let Some(shares) = shares else {
            let number = self.requests.next()?.ok_or(Fault::NO_MEMORY)?;
            self.completed(number);
            return Ok(());
        };
        if let Some(number) = self.requests.test(self.plan.private)? {
            self.completed(number);
        }
        shares.collect();
        while let Some(share) = self.awaited.front_mut() {
            if !share.has_ended()? {
                break;
            }
            self.awaited.pop_front();
            // Shares end in the order of sending.
            self.has(self.arrived);
        }
        if let Some(share) = &mut self.exporting
            && share.has_ended()?
        {
            self.exporting = None;
            self.done += 1;
        }
        Ok(())
    }

    fn completed(&mut self, number: usize) {
        if number < self.chunks.count() {
            self.receiving -= 1;
            self.has(number);
        } else {
            self.sending -= 1;
            self.done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_any_order_is_exported_in_order() {
        let (mut chunks, mut taken) = (InOrder::default(), Vec::new());
        for number in [0, 64, 1, 3, 2, 65] {
            chunks.come.insert(number);
            while let Some(number) = chunks.front() {
                chunks.pop_front();
                taken.push(number);
            }
        }
        assert_eq!((taken, chunks.front()), (vec![0, 1, 2, 3], None));
    }

    #[test]
    fn chunks_keep_within_their_limits() {
        for (length, each) in [(1, 16 << 10), (1 << 20, 32 << 10), (8 << 20, 256 << 10), (1 << 30, 512 << 10)] {
            let chunks = Chunks::new(std::ptr::null_mut(), length);
            assert_eq!(chunks.each, each);
            let sizes = (0..chunks.count()).map(|number| chunks.piece(number).1);
            assert_eq!(sizes.sum::<usize>(), length);
        }
    }
}
