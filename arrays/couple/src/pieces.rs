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
//! sends the elements instead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pool::lending::{Borrower, Lender, Lent};

use crate::beside::{Beside, LEAST};
use crate::pack::Cursor;
use crate::pack::Packing;

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

/// Memory for pieces, reused by later runs.
#[derive(Debug)]
pub struct Buffers {
    /// Bytes of each.
    piece: usize,
    /// Minimum bytes of a lent piece.
    least: usize,
    spare: Mutex<Spare>,
    beside: Arc<Beside>,
}

#[derive(Debug, Default)]
struct Spare {
    buffers: Vec<Vec<u8>>,
    /// Maximum number of buffers kept.
    most: usize,
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
            true => (&mut self.sends, self.array.map(<*const u8>::cast_mut)),
            false => (&mut self.receives, self.into),
        };
        let number = *end.left.front()?;
        let slot = *end.free.last()?;
        let flow = &mut end.flows[number];
        let bytes = flow.piece.min(flow.length - flow.begun);
        let mut lent = None;
        if let Some(lender) = self.lender.as_ref().filter(|_| sends) {
            self.lent.retain(|lent| lender.is_lent(*lent));
            if self.most.is_some_and(|most| self.lent.len() + end.in_flight >= most) {
                return None;
            }
            let may_be_lent = matches!(flow.way, Way::Lent) && local.is_some();
            if may_be_lent && (self.buffers.least..=lender.bytes()).contains(&bytes) {
                lent = lender.take().map(|lent| (lent, lender.place(lent)));
                if lent.is_none() && self.most.is_some() && !self.lent.is_empty() {
                    return None;
                }
            }
        }
        end.free.pop();
        let at = flow.begun;
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
            return Some(NextPiece { slot, sends, rank: flow.flow.rank, at: held.at, bytes: held.bytes });
        }
        // SAFETY: the caller's promise: all elements of the message are in the array.
        let straight = |array: *mut u8, offset: i64| unsafe { array.offset(offset as isize).add(at) };
        let moving = match (local, flow.straight, lent) {
            (Some(array), offset, Some((lent, room))) => {
                self.lent.push(lent);
                // SAFETY: the caller's promise; the slot has room for the piece.
                unsafe {
                    match offset {
                        Some(offset) => std::ptr::copy_nonoverlapping(straight(array, offset), room, bytes),
                        None => flow.flow.packing.pack_next(&mut flow.cursor, array, room, bytes),
                    }
                }
                let mut told = Vec::from(lent.to_bytes());
                let place = told.as_mut_ptr();
                Moving { flow: number, buffer: Some(told), at: place, bytes: Lent::BYTES, arrived: None }
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
        let next = NextPiece { slot, sends, rank: flow.flow.rank, at: moving.at, bytes: moving.bytes };
        self.slots[slot] = Some(moving);
        Some(next)
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

    /// Returns true once everything has been sent, received and copied.
    pub fn is_over(&self) -> bool {
        let over = |end: &FlowQueue| end.left.is_empty() && end.in_flight == 0;
        over(&self.sends) && over(&self.receives) && self.own.is_none()
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

impl Buffers {
    /// Buffers for runs whose ranks lend each other memory through `beside`.
    pub fn new(beside: Arc<Beside>) -> Buffers {
        Buffers { piece: PIECE, least: LEAST, spare: Mutex::default(), beside }
    }

    /// Raises the limit of kept buffers to at least this many bytes.
    fn keep(&self, bytes: usize) {
        let mut spare = self.lock();
        spare.most = spare.most.max(bytes / self.piece + 1);
    }

    /// A buffer with room for at least this many bytes.
    fn take(&self, bytes: usize) -> Vec<u8> {
        match bytes <= self.piece {
            true => self.lock().buffers.pop().unwrap_or_else(|| Vec::with_capacity(self.piece)),
            false => Vec::with_capacity(bytes),
        }
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.lock();
        if buffer.capacity() == self.piece && spare.buffers.len() < spare.most {
            spare.buffers.push(buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pieces(flows: &[Moved]) -> usize {
    flows.iter().map(|flow| flow.length.div_ceil(flow.piece.max(1))).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use plan::redistribution::testing::{Case, Chance};
    use plan::redistribution::{Steps, Transfer, TransferMessage};

    use super::*;

    const ELEMENT: usize = 4;

    /// A process with its dense arrays.
    struct Process {
        _array: Vec<u8>,
        into: Vec<u8>,
        pieces: Pieces,
    }

    fn dense(shape: &[u64]) -> (Vec<i64>, usize) {
        let mut size = ELEMENT as i64;
        let mut strides = vec![0; shape.len()];
        for (stride, extent) in strides.iter_mut().zip(shape).rev() {
            *stride = size;
            size *= *extent as i64;
        }
        (strides, size.max(0) as usize)
    }

    /// The messages of a process with their packings, in the order of the steps.
    fn messages(transfer: &Transfer, process: u32, sends: bool) -> Vec<(TransferMessage, Arc<Packing>)> {
        let steps = Steps::new(transfer);
        let layout = if sends { transfer.source() } else { transfer.target() };
        if process >= layout.processes() {
            return Vec::new();
        }
        let mut messages = if sends { transfer.sends(process) } else { transfer.receives(process) };
        messages.sort_by_cached_key(|message| steps.of(process, message));
        let (strides, _) = dense(&layout.local_shape(process));
        let packed = |message: TransferMessage| {
            let packing = Packing::new(&message, &strides, ELEMENT).unwrap();
            (message, Arc::new(packing))
        };
        messages.into_iter().map(packed).collect()
    }

    /// The expected array of each process, from copying messages whole.
    fn expected(transfer: &Transfer, arrays: &[Vec<u8>], intos: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut on_the_way = HashMap::new();
        for process in 0..transfer.source().processes() {
            for (message, packing) in messages(transfer, process, true) {
                let mut bytes = vec![0; packing.bytes()];
                // SAFETY: the array has the shape that the message is for.
                unsafe { packing.pack(arrays[process as usize].as_ptr(), bytes.as_mut_ptr()) };
                on_the_way.insert((process, message.peer), bytes);
            }
        }
        let mut intos = intos.to_vec();
        for process in 0..transfer.target().processes() {
            for (message, packing) in messages(transfer, process, false) {
                let bytes = &on_the_way[&(message.peer, process)];
                // SAFETY: as above.
                unsafe { packing.unpack(bytes.as_ptr(), intos[process as usize].as_mut_ptr()) };
            }
        }
        intos
    }

    #[test]
    fn a_run_goes_on_with_room_for_one_piece() {
        for seed in 0..3000 {
            let mut chance = Chance::new(seed);
            let transfer = Case::new(&mut chance).transfer;
            let (sources, targets) = (transfer.source().processes(), transfer.target().processes());
            let shape = |layout: &plan::redistribution::Layout, process| match process < layout.processes() {
                true => dense(&layout.local_shape(process)).1,
                false => 0,
            };
            let mut bytes = |length: usize| -> Vec<u8> { (0..length).map(|_| chance.below(256) as u8).collect() };
            let all = sources.max(targets);
            let arrays: Vec<Vec<u8>> = (0..all).map(|process| bytes(shape(transfer.source(), process))).collect();
            let intos: Vec<Vec<u8>> = (0..all).map(|process| bytes(shape(transfer.target(), process))).collect();
            let wanted = expected(&transfer, &arrays, &intos);
            let hold = chance.below(4) == 0;
            let budget = (chance.below(8) > 0).then_some(20 * chance.below(8) as usize);
            let piece = 10 + 15 * chance.below(3) as usize;
            let besides: Vec<Arc<Beside>> = (0..all).map(|_| Arc::new(Beside::of(1 + chance.below(3), 40))).collect();
            for (from, to) in (0..all).flat_map(|from| (0..all).map(move |to| (from, to))) {
                if seed % 8 == 0
                    && chance.below(2) == 0
                    && besides[to as usize].open(from, &besides[from as usize].address())
                {
                    besides[from as usize].allow(to);
                }
            }
            let process = |(own, (array, mut into)): (u32, (Vec<u8>, Vec<u8>))| {
                let flow = |of: &(TransferMessage, Arc<Packing>)| MessageFlow {
                    rank: of.0.peer,
                    packing: of.1.clone(),
                    elements: (ELEMENT, ELEMENT),
                    converts: false,
                };
                let keeps = |messages: &[(TransferMessage, Arc<Packing>)]| {
                    let kept = messages.iter().find(|(message, _)| message.peer == own && !hold);
                    kept.map(|(_, packing)| packing.clone())
                };
                let (out, come) = (messages(&transfer, own, true), messages(&transfer, own, false));
                let kept = keeps(&out).zip(keeps(&come));
                let goes = |(message, _): &&(TransferMessage, Arc<Packing>)| kept.is_none() || message.peer != own;
                let flows = (out.iter().filter(goes).map(flow).collect(), come.iter().filter(goes).map(flow).collect());
                let spare = Mutex::default();
                let buffers = Arc::new(Buffers { piece, least: 20, spare, beside: besides[own as usize].clone() });
                let places = (Some(array.as_ptr()), Some(into.as_mut_ptr()));
                // SAFETY: the arrays have the shapes of their layouts, and live as long.
                let pieces = unsafe { Pieces::new(places, flows, kept, hold, budget, buffers) };
                Process { _array: array, into, pieces }
            };
            let mut processes: Vec<Process> = (0..).zip(arrays.into_iter().zip(intos)).map(process).collect();
            run(&mut processes, &mut chance, seed);
            let got: Vec<&Vec<u8>> = processes.iter().map(|process| &process.into).collect();
            assert_eq!(got, wanted.iter().collect::<Vec<_>>(), "seed {seed}");
        }
    }

    /// Matches sends and receives of two processes in order, as MPI does; they complete in any order.
    fn run(processes: &mut [Process], chance: &mut Chance, seed: u64) {
        let mut begun: HashMap<(u32, u32), [VecDeque<NextPiece>; 2]> = HashMap::new();
        let mut ends: Vec<(usize, usize, usize)> = Vec::new();
        // Chance may leave all processes idle, but rarely many times in a row.
        let mut idle = 0;
        loop {
            let mut moved = false;
            for own in chance.shuffled(processes.len()) {
                let pieces = &mut processes[own].pieces;
                while chance.below(5) > 0
                    && let Some(next) = pieces.begin()
                {
                    let pair = if next.sends { (own as u32, next.rank) } else { (next.rank, own as u32) };
                    begun.entry(pair).or_default()[usize::from(!next.sends)].push_back(next);
                    moved = true;
                }
                moved |= chance.below(2) == 0 && pieces.copy_own();
                while let Some(Ripe { slot, at, .. }) = pieces.ripe() {
                    // SAFETY: the pointer is the place of the piece.
                    unsafe { pieces.unpack(slot, at) };
                    moved = true;
                }
            }
            for ((from, to), [sends, receives]) in &mut begun {
                while let (Some(send), Some(receive)) = (sends.front(), receives.front()) {
                    let told = send.bytes == Lent::BYTES && receive.bytes >= 20;
                    assert!(told || send.bytes == receive.bytes, "seed {seed}");
                    // SAFETY: `Pieces::begin` has returned both addresses for as many bytes.
                    unsafe { std::ptr::copy_nonoverlapping(send.at, receive.at, send.bytes) };
                    let ended = |of: u32, slot| (of as usize, slot, send.bytes);
                    ends.extend([ended(*from, send.slot), ended(*to, receive.slot)]);
                    sends.pop_front();
                    receives.pop_front();
                }
            }
            for _ in 0..chance.below(4) {
                if !ends.is_empty() {
                    let (own, slot, bytes) = ends.swap_remove(chance.below(ends.len() as u64) as usize);
                    processes[own].pieces.over(slot, bytes);
                    moved = true;
                }
            }
            if processes.iter().all(|process| process.pieces.is_over()) {
                return;
            }
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < 200, "seed {seed}: nothing moves");
        }
    }
}
