//! A process's packed messages of a run, in pieces, so that few of their bytes are in memory at a time, and those are
//! in the cache. The caller sends and receives the pieces: this module does no I/O.
//!
//! A process begins the first piece of each message, in the order of their steps ([`plan::redistribution::Steps`]),
//! then the second pieces, and so on: pieces of the same number are from the same part of the array, which stays in the
//! cache. In each step, a process sends at most one message and receives at most one. So the lowest-numbered unfinished
//! piece is always in flight at both ends, and a run makes progress however little memory each process gives it.
//!
//! A piece for a rank that can read this process's memory ([`Beside`]) need not be sent: it is packed into a slot where
//! that rank unpacks it, and the message names the slot. If no slot is free while other ranks hold lent pieces of this
//! run, the run waits: those pieces have lower numbers and steps than the remaining ones. A run that must not wait
//! sends the elements instead. So does one that has waited for long, one piece at a time: a rank that has begun this
//! run and now waits for something else gives nothing back.
//!
//! [`Beside`]: crate::beside::Beside

mod buffers;

use std::collections::VecDeque;
use std::sync::Arc;

use pool::lending::{Borrower, Lender, Lent};

use crate::pack::Cursor;
use crate::pack::Packing;
pub use buffers::Buffers;

/// Bytes of a piece, before rounding to whole elements: few enough to stay in a core's own cache. All processes of a
/// run must cut messages alike.
pub(crate) const PIECE: usize = 256 << 10;
/// Default limit of the bytes of pieces that a process has in memory.
pub const BUDGET: usize = 16 << 20;

/// Bytes of a piece of whole elements, of at most `bytes` unless one element is larger.
pub(crate) fn of_elements(bytes: usize, element: usize) -> usize {
    (bytes - bytes % element.max(1)).max(element)
}

/// A message, at one of its ends.
#[derive(Clone, Debug)]
pub struct MessageFlow {
    /// The rank at the other end.
    pub rank: u32,
    pub packing: Arc<Packing>,
    /// Bytes of an element in this process's array, and in transit.
    pub elements: (usize, usize),
    /// True if elements have another type in transit.
    pub converts: bool,
}

/// A piece to be sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextPiece {
    /// Number of its slot, to be passed to [`Pieces::over`] when the piece is over. Slots of sends come first.
    pub slot: usize,
    pub sends: bool,
    pub rank: u32,
    pub at: *mut u8,
    pub bytes: usize,
}

/// A piece that has arrived and is to be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ripe {
    pub slot: usize,
    pub at: *mut u8,
    pub bytes: usize,
    /// False if the message was empty.
    pub came: bool,
}

/// See the module docs.
#[derive(Debug)]
pub struct Pieces {
    /// `None`: this process sends empty messages.
    array: Option<*const u8>,
    /// `None`: this process discards the received elements.
    into: Option<*mut u8>,
    sends: FlowQueue,
    receives: FlowQueue,
    own: Option<OwnElements>,
    /// All pieces to be sent are packed into their slots at the beginning.
    hold: bool,
    /// Maximum number of sent or lent pieces in memory; `None`: any number, so that the process never waits for other
    /// ranks to give lent pieces back.
    most: Option<usize>,
    lender: Option<Arc<Lender>>,
    lent: Vec<Lent>,
    /// See [`Pieces::expect_nothing_back`].
    expects_nothing_back: bool,
    /// Slots of receives follow those of sends.
    slots: Vec<Option<Moving>>,
    first_receive: usize,
    /// Receiving flows whose next piece has arrived.
    ripe: VecDeque<usize>,
    buffers: Arc<Buffers>,
}

#[derive(Debug)]
struct FlowQueue {
    flows: Vec<Moved>,
    /// Flows with pieces that have not begun, the next one first.
    left: VecDeque<usize>,
    /// Slots in which a piece can begin.
    free: Vec<usize>,
    in_flight: usize,
}

/// A message that is being moved.
#[derive(Debug)]
struct Moved {
    flow: MessageFlow,
    /// Bytes in transit, and bytes of each piece.
    length: usize,
    piece: usize,
    /// Bytes in transit of the pieces that have begun.
    begun: usize,
    /// Offset of the first element, if the message's elements are contiguous in the array.
    straight: Option<i64>,
    way: Way,
    cursor: Cursor,
    /// Slots of its pieces, in order.
    slots: VecDeque<usize>,
}

/// The ways in which pieces of a message may go.
#[derive(Debug)]
enum Way {
    Sent,
    Lent,
    Borrowed(Arc<Borrower>),
}

#[derive(Debug)]
struct Moving {
    flow: usize,
    /// `None`: its place is in the array.
    buffer: Option<Vec<u8>>,
    at: *mut u8,
    bytes: usize,
    arrived: Option<PieceArrival>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceArrival {
    Empty,
    Elements,
    /// The elements are in this slot of the sending rank's memory.
    Borrowed(Lent),
}

/// Elements that stay in this process.
#[derive(Debug)]
struct OwnElements {
    from: Arc<Packing>,
    to: Arc<Packing>,
    cursors: (Cursor, Cursor),
    buffer: Vec<u8>,
}

impl Pieces {
    /// `sends`, `receives`: in the order of their steps. `own`: the elements that stay in this process, unless they are
    /// among `sends` and `receives`. `hold`: pack all messages now, as needed if the arrays share memory; `own` must be
    /// `None` then. `budget`: bytes of pieces in memory; `None`: all of them at once, so that nothing has to be done
    /// before they are over.
    ///
    /// # Safety
    /// Until this is dropped or over, the elements of all sent messages can be read from `array`, those of all received
    /// messages can be written to `into`, and nothing else writes there. The results of [`Pieces::begin`] are used as
    /// their fields state. Unless `hold`, the two arrays share no memory.
    pub unsafe fn new(
        (array, into): (Option<*const u8>, Option<*mut u8>),
        (sends, receives): (Vec<MessageFlow>, Vec<MessageFlow>),
        own: Option<(Arc<Packing>, Arc<Packing>)>,
        hold: bool,
        budget: Option<usize>,
        buffers: Arc<Buffers>,
    ) -> Pieces {
        let moved = |flows: Vec<MessageFlow>, sends: bool| -> Vec<Moved> {
            let moved = flows.into_iter().map(|flow| {
                let way = match sends {
                    true if !hold && buffers.beside.reads(flow.rank) => Way::Lent,
                    true => Way::Sent,
                    false => buffers.beside.borrower(flow.rank).map_or(Way::Sent, Way::Borrowed),
                };
                Moved::new(flow, hold, buffers.piece, way)
            });
            moved.filter(|moved| moved.length > 0).collect()
        };
        let (sends, receives) = (moved(sends, true), moved(receives, false));
        let (all_sends, all_receives) = (pieces(&sends), pieces(&receives));
        let most = budget.map_or(usize::MAX, |budget| (budget / 2 / buffers.piece).max(1));
        buffers.keep(budget.unwrap_or(usize::MAX / 2));
        let (s, r) = (if hold { all_sends } else { all_sends.min(most) }, all_receives.min(most));
        let own =
            own.filter(|_| array.is_some() && into.is_some()).map(|(from, to)| OwnElements::new(from, to, &buffers));
        let mut made = Pieces {
            array,
            into,
            sends: FlowQueue::new(sends, 0..s),
            receives: FlowQueue::new(receives, s..s + r),
            own,
            hold,
            most: budget.map(|_| s),
            lender: buffers.beside.lender(),
            lent: Vec::new(),
            expects_nothing_back: false,
            slots: (0..s + r).map(|_| None).collect(),
            first_receive: s,
            ripe: VecDeque::new(),
            buffers,
        };
        if hold {
            // Received elements may overwrite elements that have not been packed, so all are packed first.
            let held: Vec<NextPiece> = std::iter::from_fn(|| made.next_of(true)).collect();
            let mut flows = std::mem::take(&mut made.sends.flows);
            flows.iter_mut().for_each(|flow| flow.begun = 0);
            made.sends = FlowQueue::new(flows, 0..held.len());
        }
        made
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The next piece to be sent or received, packed if it is sent; `None`: no piece can begin before others are over.
    pub fn begin(&mut self) -> Option<NextPiece> {
        let next = self.next_of(false).or_else(|| self.next_of(true))?;
        // Each round of sends also copies one piece of the elements that stay.
        if next.sends && self.sends.left.front().is_none_or(|following| *following == 0) {
            self.copy_own();
        }
        Some(next)
    }

    fn next_of(&mut self, sends: bool) -> Option<NextPiece> {
        let (end, local) = match sends {
            true => (&self.sends, self.array.map(<*const u8>::cast_mut)),
            false => (&self.receives, self.into),
        };
        let (number, slot) = (*end.left.front()?, *end.free.last()?);
        let flow = &end.flows[number];
        let bytes = flow.piece.min(flow.length - flow.begun);
        let may_be_lent = matches!(flow.way, Way::Lent) && local.is_some();
        let lent = if sends { self.lend(bytes, may_be_lent)? } else { None };
        let end = if sends { &mut self.sends } else { &mut self.receives };
        let flow = &mut end.flows[number];
        end.free.pop();
        let (rank, at) = (flow.flow.rank, flow.begun);
        flow.begun += bytes;
        end.in_flight += 1;
        if !sends {
            flow.slots.push_back(slot);
        }
        end.left.pop_front();
        if flow.begun < flow.length {
            end.left.push_back(number);
        }
        if let Some(held) = &self.slots[slot] {
            return Some(NextPiece { slot, sends, rank, at: held.at, bytes: held.bytes });
        }
        // SAFETY: the caller's promise: all elements of the message are in the array.
        let straight = |array: *mut u8, offset: i64| unsafe { array.offset(offset as isize).add(at) };
        let moving = match (local, flow.straight, lent) {
            (Some(array), offset, Some((lent, room))) => {
                // SAFETY: the caller's promise; the slot has room for the piece.
                unsafe {
                    match offset {
                        Some(offset) => std::ptr::copy_nonoverlapping(straight(array, offset), room, bytes),
                        None => flow.flow.packing.pack_next(&mut flow.cursor, array, room, bytes),
                    }
                }
                let mut named = Vec::from(lent.to_bytes());
                Moving { flow: number, at: named.as_mut_ptr(), buffer: Some(named), bytes: Lent::BYTES, arrived: None }
            }
            (Some(array), Some(offset), None) => {
                Moving { flow: number, buffer: None, at: straight(array, offset), bytes, arrived: None }
            }
            (None, ..) if sends => {
                Moving { flow: number, buffer: None, at: std::ptr::dangling_mut(), bytes: 0, arrived: None }
            }
            _ => {
                let mut buffer = self.buffers.take(bytes);
                let place = buffer.as_mut_ptr();
                if let Some(array) = local.filter(|_| sends) {
                    // SAFETY: the caller's promise; the buffer has room for the piece.
                    unsafe { flow.flow.packing.pack_next(&mut flow.cursor, array, place, bytes) };
                }
                Moving { flow: number, buffer: Some(buffer), at: place, bytes, arrived: None }
            }
        };
        let next = NextPiece { slot, sends, rank, at: moving.at, bytes: moving.bytes };
        self.slots[slot] = Some(moving);
        Some(next)
    }

    /// The memory that is lent for the next piece to be sent, which has this many bytes, with its address.
    /// `Some(None)`: MPI sends the piece. `None`: it waits, because the budget has no room for it.
    fn lend(&mut self, bytes: usize, may_be_lent: bool) -> Option<Option<(Lent, *mut u8)>> {
        let Some(lender) = &self.lender else { return Some(None) };
        self.lent.retain(|lent| lender.is_lent(*lent));
        let in_flight = self.sends.in_flight;
        let mut has_room = self.most.is_none_or(|most| self.lent.len() + in_flight < most);
        let mut lent = None;
        if has_room && may_be_lent && (self.buffers.least..=lender.bytes()).contains(&bytes) {
            lent = lender.take().map(|lent| (lent, lender.place(lent)));
            has_room = lent.is_some() || self.most.is_none() || self.lent.is_empty();
        }
        let goes_on = has_room || (self.expects_nothing_back && in_flight == 0);
        self.lent.extend(lent.map(|(lent, _)| lent));
        goes_on.then_some(lent)
    }

    /// The piece in this slot has been sent, or has arrived with this many bytes: 0 from a process that cannot take
    /// part.
    pub fn over(&mut self, slot: usize, bytes: usize) {
        if slot < self.first_receive {
            return self.clear(slot, true);
        }
        let Some(moving) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        let flow = moving.flow;
        moving.arrived = Some(match bytes {
            0 => PieceArrival::Empty,
            Lent::BYTES if moving.bytes >= self.buffers.least => {
                // SAFETY: `Lent::BYTES` bytes have arrived there.
                PieceArrival::Borrowed(Lent::read(unsafe { moving.at.cast::<[u8; Lent::BYTES]>().read_unaligned() }))
            }
            _ => PieceArrival::Elements,
        });
        if self.receives.flows[flow].slots.front() == Some(&slot) {
            self.ripe.push_back(flow);
        }
    }

    /// The next piece that [`Pieces::unpack`] can take.
    pub fn ripe(&mut self) -> Option<Ripe> {
        let flow = &self.receives.flows[*self.ripe.front()?];
        let slot = *flow.slots.front()?;
        let moving = self.slots[slot].as_ref()?;
        let (at, came) = match (moving.arrived?, &flow.way) {
            (PieceArrival::Borrowed(lent), Way::Borrowed(other)) => (other.place(lent).cast_mut(), true),
            (arrived, _) => (moving.at, arrived != PieceArrival::Empty),
        };
        Some(Ripe { slot, at, bytes: moving.bytes, came })
    }

    /// Copies the piece that [`Pieces::ripe`] has returned to the places of its elements. `converted`: its elements in
    /// the array's type, if that differs from their type in transit, otherwise the piece's own place; null: the piece
    /// is discarded.
    ///
    /// # Safety
    /// `converted`, unless null or the place of the piece, has as many elements.
    pub unsafe fn unpack(&mut self, slot: usize, converted: *const u8) {
        let Some(moving) = self.slots.get(slot).and_then(Option::as_ref) else { return };
        let flow = &mut self.receives.flows[moving.flow];
        let (local, wire) = flow.flow.elements;
        if let Some(into) = self.into.filter(|_| !converted.is_null()) {
            let bytes = moving.bytes / wire.max(1) * local;
            // SAFETY: the promises of the callers of this and of `new`; a piece without a buffer has its place in the
            // array.
            unsafe {
                match moving.buffer {
                    Some(_) => flow.flow.packing.unpack_next(&mut flow.cursor, converted, into, bytes),
                    None => std::ptr::copy(converted, moving.at, bytes),
                }
            }
        }
        if let (Some(PieceArrival::Borrowed(lent)), Way::Borrowed(other)) = (moving.arrived, &flow.way) {
            other.give_back(lent);
        }
        flow.slots.pop_front();
        self.ripe.pop_front();
        let following = flow.slots.front().and_then(|slot| self.slots[*slot].as_ref());
        if let Some(following) = following.filter(|following| following.arrived.is_some()) {
            self.ripe.push_back(following.flow);
        }
        self.clear(slot, false);
    }

    /// Unpacks all arrived pieces without converting them.
    pub fn unpack_ripe(&mut self) {
        while let Some(Ripe { slot, at, came, .. }) = self.ripe() {
            // SAFETY: the pointer is the place of the piece, or null.
            unsafe { self.unpack(slot, if came { at } else { std::ptr::null_mut() }) };
        }
    }

    /// Copies a piece of the elements that stay in this process. Returns true if there were any.
    pub fn copy_own(&mut self) -> bool {
        let (Some(own), Some(array), Some(into)) = (&mut self.own, self.array, self.into) else { return false };
        let bytes = self.buffers.piece.min(own.from.bytes() - own.cursors.0.at());
        // SAFETY: the promise of the caller of `new`; the buffer has room for a piece.
        unsafe {
            own.from.pack_next(&mut own.cursors.0, array, own.buffer.as_mut_ptr(), bytes);
            own.to.unpack_next(&mut own.cursors.1, own.buffer.as_ptr(), into, bytes);
        }
        if own.cursors.0.at() == own.from.bytes() {
            self.buffers.give(std::mem::take(&mut own.buffer));
            self.own = None;
        }
        true
    }

    /// From now on, the run goes on without the pieces that other ranks have not given back: these may wait for
    /// something else first. MPI moves the others, one at a time while the budget has no room.
    pub fn expect_nothing_back(&mut self) {
        self.expects_nothing_back = true;
    }

    /// Returns true once everything has been sent, received and copied.
    pub fn is_over(&self) -> bool {
        let over = |end: &FlowQueue| end.left.is_empty() && end.in_flight == 0;
        over(&self.sends) && over(&self.receives) && self.own.is_none()
    }

    /// Returns true once each piece is in flight or over, and all own elements are copied.
    pub fn is_begun(&self) -> bool {
        self.sends.left.is_empty() && self.receives.left.is_empty() && self.own.is_none()
    }

    fn clear(&mut self, slot: usize, sends: bool) {
        if let Some(buffer) = self.slots[slot].take().and_then(|moving| moving.buffer) {
            self.buffers.give(buffer);
        }
        let end = if sends { &mut self.sends } else { &mut self.receives };
        end.in_flight -= 1;
        // With `hold`, pieces not yet begun are in slots of their own, so an emptied slot is not reused.
        if !(sends && self.hold) {
            end.free.push(slot);
        }
    }
}

// SAFETY: the caller guarantees the use of the arrays, as `new` requires; nothing here is bound to a thread.
unsafe impl Send for Pieces {}

impl FlowQueue {
    fn new(flows: Vec<Moved>, slots: std::ops::Range<usize>) -> FlowQueue {
        FlowQueue { left: (0..flows.len()).collect(), flows, free: slots.rev().collect(), in_flight: 0 }
    }
}

impl Moved {
    fn new(flow: MessageFlow, hold: bool, piece: usize, way: Way) -> Moved {
        let (local, wire) = flow.elements;
        let length = flow.packing.bytes() / local.max(1) * wire;
        let piece = of_elements(piece, wire);
        let straight = flow.packing.straight_all().filter(|_| !flow.converts && !hold);
        let cursor = flow.packing.begin();
        Moved { flow, length, piece, begun: 0, straight, way, cursor, slots: VecDeque::new() }
    }
}

impl OwnElements {
    fn new(from: Arc<Packing>, to: Arc<Packing>, buffers: &Buffers) -> OwnElements {
        let cursors = (from.begin(), to.begin());
        OwnElements { from, to, cursors, buffer: buffers.take(buffers.piece) }
    }
}

fn pieces(flows: &[Moved]) -> usize {
    flows.iter().map(|flow| flow.length.div_ceil(flow.piece.max(1))).sum()
}

#[cfg(test)]
mod tests;
