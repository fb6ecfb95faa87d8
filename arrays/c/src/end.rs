//! The messages that one process sends, or receives: `lb_end`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use couple::Packing;
use couple::beside::WORTH;
use couple::datatype::{DatatypeStep, StridedElements};
use plan::redistribution::{Steps, Transfer};

use crate::error::{Code, Problem, at_border};
use crate::overlap::check_apart;
use crate::pointers::{free, given, hand_out, natural32, slice, text};
use crate::transfer::{Bound, Moves};

/// `lb_step`.
#[repr(C)]
pub(crate) struct StepOf {
    kind: i32,
    count: i64,
    length: i64,
    stride: i64,
    places: *const i64,
    lengths: *const i64,
}

/// `lb_message`.
#[repr(C)]
pub(crate) struct MessageOf {
    rank: i32,
    kind: i32,
    bytes: i64,
    offset: i64,
    block: i64,
    steps: *const StepOf,
    step_count: i64,
}

/// The ways in which a message may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferMode {
    /// MPI moves its elements.
    Straight = 0,
    /// Packed and sent in pieces.
    Pieces = 1,
    /// Packed whole here, because this array has too many gaps; at the other end the message is straight.
    Whole = 2,
}

/// `lb_end`.
pub(crate) struct TransferEnd {
    messages: Vec<MessageOf>,
    packings: Vec<Arc<Packing>>,
    /// The lowest and the highest offset of the process's part, in bytes.
    low: i64,
    high: i64,
    /// The steps and lists that `messages` point to.
    _steps: Vec<Vec<StepOf>>,
    _lists: Vec<Vec<i64>>,
}

impl TransferEnd {
    /// `strides`: the array's strides; `None` if it is dense.
    fn new(
        bound: &Bound,
        sends: bool,
        process: u32,
        strides: Option<&[i64]>,
        library: &str,
    ) -> Result<TransferEnd, Problem> {
        match &bound.moves {
            Moves::Known(transfer) => {
                let layout = if sends { transfer.source() } else { transfer.target() };
                let strides = strides.map_or_else(|| layout.strides(process, bound.dtype.size), <[i64]>::to_vec);
                TransferEnd::of_transfer((bound, transfer), sends, process, &strides, library)
            }
            Moves::Asked(asked) => {
                let element = bound.dtype.size;
                let (messages, shape, strides) =
                    asked.messages(sends, process, strides, element).ok_or_else(too_long)?;
                if !sends {
                    check_apart(&shape, &strides, element)?;
                }
                let (low, high) = bounds(&shape, &strides, element as i64);
                let ranks = &bound.ranks[usize::from(sends)];
                let found = messages.iter().map(|(peer, packing)| message(ranks[*peer as usize], packing));
                let messages_of = found.collect();
                let packings = messages.into_iter().map(|(_, packing)| Arc::new(packing)).collect();
                Ok(TransferEnd { messages: messages_of, packings, low, high, _steps: Vec::new(), _lists: Vec::new() })
            }
        }
    }

    fn of_transfer(
        (bound, transfer): (&Bound, &Transfer),
        sends: bool,
        process: u32,
        strides: &[i64],
        library: &str,
    ) -> Result<TransferEnd, Problem> {
        let element = bound.dtype.size;
        let layout = if sends { transfer.source() } else { transfer.target() };
        let steps = Steps::new(transfer);
        let mut messages = if sends { transfer.sends(process) } else { transfer.receives(process) };
        messages.sort_by_cached_key(|message| steps.of(process, message));
        let ranks = &bound.ranks[usize::from(sends)];
        let shape = layout.local_shape(process);
        if !sends {
            check_apart(&shape, strides, element)?;
        }
        let (low, high) = bounds(&shape, strides, element as i64);
        let mut end = TransferEnd {
            messages: Vec::new(),
            packings: Vec::new(),
            low,
            high,
            _steps: Vec::new(),
            _lists: Vec::new(),
        };
        for message in &messages {
            let packing = Packing::new(message, strides, element).ok_or_else(too_long)?;
            let mut found = self::message(ranks[message.peer as usize], &packing);
            if StridedElements::is_straight(transfer, process, message, element, library) {
                found.kind = TransferMode::Whole as i32;
                if let Some(place) = StridedElements::of(message, strides, element, library) {
                    let steps: Vec<StepOf> = place.steps.into_iter().map(|step| end.step(step)).collect();
                    (found.kind, found.offset) = (TransferMode::Straight as i32, place.offset);
                    found.block = place.block as i64;
                    (found.steps, found.step_count) = (steps.as_ptr(), steps.len() as i64);
                    end._steps.push(steps);
                }
            }
            end.messages.push(found);
            end.packings.push(Arc::new(packing));
        }
        Ok(end)
    }

    /// The ranks and packings of messages of this kind, in the order of their steps.
    pub(crate) fn messages_of(&self, kind: TransferMode) -> impl Iterator<Item = (u32, &Arc<Packing>)> {
        let all = self.messages.iter().zip(&self.packings);
        let of = all.filter(move |(message, _)| message.kind == kind as i32);
        of.map(|(message, packing)| (message.rank as u32, packing))
    }

    fn step(&mut self, step: DatatypeStep) -> StepOf {
        // A list's elements stay in place when the list itself moves.
        let mut keep = |list: Vec<i64>| {
            self._lists.push(list);
            self._lists.last().map_or(std::ptr::null(), |list| list.as_ptr())
        };
        let none = std::ptr::null();
        match step {
            DatatypeStep::Vector { count, length, stride } => {
                StepOf { kind: 0, count: count as i64, length: length as i64, stride, places: none, lengths: none }
            }
            DatatypeStep::IndexedBlock { length, places } => {
                let count = places.len() as i64;
                StepOf { kind: 1, count, length: length as i64, stride: 0, places: keep(places), lengths: none }
            }
            DatatypeStep::Indexed { lengths, places } => {
                let (count, lengths) = (places.len() as i64, lengths.into_iter().map(|length| length as i64).collect());
                StepOf { kind: 2, count, length: 0, stride: 0, places: keep(places), lengths: keep(lengths) }
            }
        }
    }
}

fn too_long() -> Problem {
    Problem { code: Code::Memory, text: "a message has more bytes than memory can".to_owned() }
}

/// A message that goes in pieces.
fn message(rank: u32, packing: &Packing) -> MessageOf {
    MessageOf {
        rank: rank as i32,
        kind: TransferMode::Pieces as i32,
        bytes: packing.bytes() as i64,
        offset: 0,
        block: 0,
        steps: std::ptr::null(),
        step_count: 0,
    }
}

fn bounds(shape: &[u64], strides: &[i64], element: i64) -> (i64, i64) {
    if shape.contains(&0) {
        return (0, 0);
    }
    let far = shape.iter().zip(strides).map(|(extent, stride)| (*extent as i64 - 1).saturating_mul(*stride));
    let add = |(low, high): (i64, i64), far: i64| (low + far.min(0), high.saturating_add(far.max(0)));
    far.fold((0, element), add)
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_end_create(
    transfer: *const Bound,
    sends: i32,
    rank: i32,
    strides: *const i64,
    library: *const c_char,
    made: *mut *mut TransferEnd,
) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let (bound, library) = unsafe { (given(transfer, "transfer")?, text(library, "library")?) };
        let (sends, rank) = (sends != 0, natural32(rank, "rank")?);
        let Some(process) = bound.process(sends, rank) else {
            if !made.is_null() {
                // SAFETY: the caller's promise.
                unsafe { made.write(std::ptr::null_mut()) };
            }
            return Ok(());
        };
        let axes = match &bound.moves {
            Moves::Known(transfer) => if sends { transfer.source() } else { transfer.target() }.axes(),
            Moves::Asked(asked) => asked.axes(sends),
        };
        let strides = match strides.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { slice(strides, axes, "strides") }?),
        };
        let end = TransferEnd::new(bound, sends, process, strides, library)?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, end, "end") }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_end_messages(end: *const TransferEnd, messages: *mut *const MessageOf) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(end) = end.as_ref() else { return 0 };
        if !messages.is_null() {
            messages.write(end.messages.as_ptr());
        }
        end.messages.len() as i64
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_end_may_lend(end: *const TransferEnd, message: i64) -> i32 {
    // SAFETY: the caller's promise.
    let message = unsafe { end.as_ref() }.and_then(|end| end.messages.get(message as usize));
    let worth = |message: &MessageOf| message.kind == TransferMode::Pieces as i32 && message.bytes >= WORTH as i64;
    i32::from(message.is_some_and(worth))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_end_bounds(end: *const TransferEnd, low: *mut i64, high: *mut i64) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(end) = end.as_ref() {
            low.write(end.low);
            high.write(end.high);
        }
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_end_pack(
    end: *const TransferEnd,
    message: i64,
    array: *const c_void,
    buffer: *mut c_void,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(packing) = end.as_ref().and_then(|end| end.packings.get(message as usize)) {
            packing.pack(array.cast(), buffer.cast());
        }
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_end_unpack(
    end: *const TransferEnd,
    message: i64,
    buffer: *const c_void,
    array: *mut c_void,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(packing) = end.as_ref().and_then(|end| end.packings.get(message as usize)) {
            packing.unpack(buffer.cast(), array.cast());
        }
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_end_free(end: *mut *mut TransferEnd) {
    // SAFETY: the caller's promise.
    unsafe { free(end) }
}
