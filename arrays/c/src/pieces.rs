//! Packed messages of a run, in pieces: `lb_pieces`.

use std::ffi::{c_int, c_void};

use couple::pieces::{BUDGET, MessageFlow, Pieces};

use crate::end::{TransferEnd, TransferMode};
use crate::error::at_border;
use crate::pointers::{free, given, hand_out, natural32};
use crate::transfer::Bound;

/// `lb_piece`.
#[repr(C)]
pub(crate) struct PieceOf {
    slot: i32,
    sends: i32,
    rank: i32,
    at: *mut c_void,
    bytes: i64,
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_pieces_create(
    transfer: *const Bound,
    sends: *const TransferEnd,
    receives: *const TransferEnd,
    rank: i32,
    a: *const c_void,
    into: *mut c_void,
    hold: i32,
    budget: i64,
    made: *mut *mut Pieces,
) -> c_int {
    at_border(|| {
        let (rank, hold) = (natural32(rank, "rank")?, hold != 0);
        let budget = match budget {
            0 => Some(BUDGET),
            budget => usize::try_from(budget).ok(),
        };
        // SAFETY: the caller's promise.
        let (bound, ends) = unsafe { (given(transfer, "transfer")?, [sends.as_ref(), receives.as_ref()]) };
        let element = bound.dtype.size;
        let flows = |end: Option<&TransferEnd>| {
            let cut = end.into_iter().flat_map(|end| end.messages_of(TransferMode::Pieces));
            cut.map(|(rank, packing)| MessageFlow {
                rank,
                packing: packing.clone(),
                elements: (element, element),
                converts: false,
            })
            .collect::<Vec<MessageFlow>>()
        };
        let mut flows = ends.map(flows);
        let own = match hold {
            true => None,
            false => {
                let mut own = flows.each_mut().map(|flows| flows.extract_if(.., |flow| flow.rank == rank).next());
                own[0].take().zip(own[1].take()).map(|(from, to)| (from.packing, to.packing))
            }
        };
        let [sends, receives] = flows;
        let arrays = ((!a.is_null()).then_some(a.cast()), (!into.is_null()).then_some(into.cast()));
        // SAFETY: the caller's promise.
        let pieces = unsafe { Pieces::new(arrays, (sends, receives), own, hold, budget, bound.buffers.clone()) };
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, pieces, "pieces") }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_pieces_slots(pieces: *const Pieces) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { pieces.as_ref() }.map_or(0, |pieces| pieces.slots() as i32)
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_pieces_next(pieces: *mut Pieces, piece: *mut PieceOf) -> i32 {
    // SAFETY: the caller's promise.
    let (Some(pieces), false) = (unsafe { pieces.as_mut() }, piece.is_null()) else { return 0 };
    let Some(next) = pieces.begin() else { return 0 };
    let next = PieceOf {
        slot: next.slot as i32,
        sends: i32::from(next.sends),
        rank: next.rank as i32,
        at: next.at.cast(),
        bytes: next.bytes as i64,
    };
    // SAFETY: the caller's promise.
    unsafe { piece.write(next) };
    1
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_pieces_over(pieces: *mut Pieces, slot: i32, bytes: i64) {
    // SAFETY: the caller's promise.
    if let (Some(pieces), Ok(slot)) = (unsafe { pieces.as_mut() }, usize::try_from(slot)) {
        pieces.over(slot, usize::try_from(bytes).unwrap_or(0));
        pieces.unpack_ripe();
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_pieces_copy_own(pieces: *mut Pieces) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { pieces.as_mut() }.map_or(0, |pieces| i32::from(pieces.copy_own()))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_pieces_expect_nothing_back(pieces: *mut Pieces) {
    // SAFETY: the caller's promise.
    if let Some(pieces) = unsafe { pieces.as_mut() } {
        pieces.expect_nothing_back();
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_pieces_are_over(pieces: *const Pieces) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { pieces.as_ref() }.map_or(1, |pieces| i32::from(pieces.is_over()))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_pieces_free(pieces: *mut *mut Pieces) {
    // SAFETY: the caller's promise.
    unsafe { free(pieces) }
}
