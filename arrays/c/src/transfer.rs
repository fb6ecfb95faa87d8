//! Redistributions: the destinations of elements, and the rank of each process: `lb_transfer`.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use couple::beside::Beside;
use couple::pieces::Buffers;
use plan::redistribution::{Layout, Mapping, Pick, Transfer};
use serde::Serialize;
use twox_hash::XxHash3_64;

use crate::asked::{DirectoryTransfer, summary};
use crate::dtype::Dtype;
use crate::error::{Problem, at_border};
use crate::layout::LayoutOf;
use crate::pointers::{free, given, hand_out, natural, natural32, slice, text};

/// `lb_slice`. A negative count selects one index, and the selection does not have the axis.
#[repr(C)]
pub(crate) struct SliceOf {
    start: i64,
    step: i64,
    count: i64,
}

/// `lb_select`.
#[repr(C)]
pub(crate) struct SelectOf {
    source: *const SliceOf,
    target: *const SliceOf,
    axes: *const i32,
    shift: *const i64,
}

/// `LB_ADDRESS`.
const _: () = assert!(couple::beside::ADDRESS == 48);

/// The destinations of elements, known to all or asked for.
pub(crate) enum Moves {
    Known(Transfer),
    Asked(DirectoryTransfer),
}

/// `lb_transfer`.
pub(crate) struct Bound {
    pub(crate) moves: Moves,
    pub(crate) dtype: Dtype,
    /// Ranks of the processes of the source, and of the target.
    pub(crate) ranks: [Vec<u32>; 2],
    /// Number of ranks.
    pub(crate) size: u32,
    pub(crate) buffers: Arc<Buffers>,
    beside: Arc<Beside>,
    hash: u64,
}

impl Bound {
    /// The rank's process number in the source (`sends`) or in the target, if it has one.
    pub(crate) fn process(&self, sends: bool, rank: u32) -> Option<u32> {
        let ranks = &self.ranks[usize::from(!sends)];
        ranks.iter().position(|of| *of == rank).map(|at| at as u32)
    }
}

/// A hash that is the same for the same values on all ranks.
pub(crate) fn hash(of: &impl Serialize) -> u64 {
    // Serializing numbers and texts to memory cannot fail.
    postcard::to_stdvec(of).map_or(0, |bytes| XxHash3_64::oneshot(&bytes))
}

/// # Safety
/// The pointer is null, or points to one slice per axis of the array.
unsafe fn picks(slices: *const SliceOf, shape: &[u64], name: &str) -> Result<Vec<Pick>, Problem> {
    if slices.is_null() {
        return Ok(shape.iter().map(|extent| Pick::all(*extent)).collect());
    }
    // SAFETY: the caller's promise.
    let slices = unsafe { slice(slices, shape.len(), name) }?;
    let pick = |(axis, slice): (usize, &SliceOf)| {
        let start = natural(slice.start, format_args!("{name}, axis {axis}: start"))?;
        Ok(match u64::try_from(slice.count) {
            Ok(count) => Pick::Slice { start, step: slice.step, count },
            Err(_) => Pick::Index(start),
        })
    };
    slices.iter().enumerate().map(pick).collect()
}

/// # Safety
/// Its pointers are null or valid.
pub(crate) unsafe fn mapping(select: Option<&SelectOf>, source: &Layout, target: &Layout) -> Result<Mapping, Problem> {
    let all = SelectOf {
        source: std::ptr::null(),
        target: std::ptr::null(),
        axes: std::ptr::null(),
        shift: std::ptr::null(),
    };
    let select = select.unwrap_or(&all);
    // SAFETY: the caller's promise.
    let (from, to) =
        unsafe { (picks(select.source, source.shape(), "source")?, picks(select.target, target.shape(), "target")?) };
    let counts: Vec<u64> =
        from.iter().filter_map(|pick| if let Pick::Slice { count, .. } = pick { Some(*count) } else { None }).collect();
    let order = match select.axes.is_null() {
        true => (0..counts.len()).collect(),
        false => {
            // SAFETY: the caller's promise.
            let axes = unsafe { slice(select.axes, counts.len(), "axes") }?;
            let axis = |(at, axis): (usize, &i32)| Ok(natural32(*axis, format_args!("axes[{at}]"))? as usize);
            axes.iter().enumerate().map(axis).collect::<Result<_, Problem>>()?
        }
    };
    let shifts = match select.shift.is_null() {
        true => vec![0; counts.len()],
        false => {
            // SAFETY: the caller's promise.
            let shift = unsafe { slice(select.shift, counts.len(), "shift") }?;
            let modulo = |(by, count): (&i64, &u64)| i128::from(*by).rem_euclid(i128::from((*count).max(1))) as u64;
            shift.iter().zip(&counts).map(modulo).collect()
        }
    };
    Ok(Mapping { from, to, order, shifts })
}

/// # Safety
/// The pointer is null, or points to one rank per process of the layout.
unsafe fn ranks(ranks: *const i32, layout: &LayoutOf, size: u32, name: &str) -> Result<Vec<u32>, Problem> {
    let processes = layout.processes();
    if ranks.is_null() {
        if processes > size {
            let text = format_args!("{name}: the layout is for {processes} processes, but there are {size} ranks");
            return Err(Problem::invalid(text));
        }
        return Ok((0..processes).collect());
    }
    // SAFETY: the caller's promise.
    let given = unsafe { slice(ranks, processes as usize, name) }?;
    let mut seen = vec![false; size as usize];
    let rank = |(at, rank): (usize, &i32)| match usize::try_from(*rank).ok().and_then(|rank| seen.get_mut(rank)) {
        None => Err(Problem::invalid(format_args!("{name}[{at}] is {rank}, but there are {size} ranks"))),
        Some(true) => Err(Problem::invalid(format_args!("{name}[{at}] is {rank}, which is named twice"))),
        Some(seen) => {
            *seen = true;
            Ok(*rank as u32)
        }
    };
    given.iter().enumerate().map(rank).collect()
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_create(
    source: *const LayoutOf,
    target: *const LayoutOf,
    dtype: *const c_char,
    select: *const SelectOf,
    size: i32,
    source_ranks: *const i32,
    target_ranks: *const i32,
    made: *mut *mut Bound,
) -> c_int {
    at_border(|| {
        let size = natural32(size, "size")?;
        // SAFETY: the caller's promise.
        let (source, target, dtype) =
            unsafe { (given(source, "src")?, given(target, "dst")?, Dtype::read(text(dtype, "dtype")?)?) };
        // SAFETY: the caller's promise.
        let ranks = unsafe {
            [ranks(source_ranks, source, size, "src_ranks")?, ranks(target_ranks, target, size, "dst_ranks")?]
        };
        let all = (summary(source), summary(target), &dtype.text, &ranks);
        let (moves, hash) = match (source, target) {
            (LayoutOf::Known(source), LayoutOf::Known(target)) => {
                // SAFETY: the caller's promise.
                let mapping = unsafe { mapping(select.as_ref(), source, target) }?;
                let transfer = Transfer::new(source.clone(), target.clone(), &mapping).map_err(Problem::invalid)?;
                (Moves::Known(transfer), hash(&(all, mapping)))
            }
            _ if !select.is_null() => {
                return Err(Problem::invalid("select: both layouts must be known to all processes to select from"));
            }
            _ if source.shape() != target.shape() => {
                let text = format_args!("src has shape {:?}, dst has {:?}", source.shape(), target.shape());
                return Err(Problem::invalid(text));
            }
            _ => (Moves::Asked(DirectoryTransfer::new(source.clone(), target.clone())), hash(&all)),
        };
        let beside = Arc::new(Beside::default());
        let buffers = Arc::new(Buffers::new(beside.clone()));
        let bound = Bound { moves, dtype, ranks, size, buffers, beside, hash };
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, bound, "transfer") }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_address(transfer: *const Bound, address: *mut u8) -> i32 {
    // SAFETY: the caller's promise.
    let Some(transfer) = (unsafe { transfer.as_ref() }) else { return 0 };
    let own = transfer.beside.address();
    // SAFETY: the caller's promise: there is room for an address.
    unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), address, own.len()) };
    i32::from(!own.is_empty())
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_open(transfer: *const Bound, rank: i32, address: *const u8) -> i32 {
    // SAFETY: the caller's promise.
    let (transfer, address) =
        unsafe { (transfer.as_ref(), std::slice::from_raw_parts(address, couple::beside::ADDRESS)) };
    transfer.map_or(0, |transfer| i32::from(transfer.beside.open(rank as u32, address)))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_allow(transfer: *const Bound, rank: i32) {
    // SAFETY: the caller's promise.
    if let Some(transfer) = unsafe { transfer.as_ref() } {
        transfer.beside.allow(rank as u32);
    }
}

/// A hash that is the same for the same layouts, selection, dtype and ranks.
///
/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_hash(transfer: *const Bound) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { transfer.as_ref() }.map_or(0, |transfer| transfer.hash)
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_transfer_free(transfer: *mut *mut Bound) {
    // SAFETY: the caller's promise.
    unsafe { free(transfer) }
}
