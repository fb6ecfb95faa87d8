//! `MPI_Bcast`: one copy to each other site, pipelined in chunks, and a chain of nodes or a tree inside each site.

use std::ffi::{c_int, c_void};

use types::SiteId;

use crate::abi::Handle;
use crate::chunks::{Chunks, From, RelayPart, pass_on};
use crate::communicator::{Plan, plan_for};
use crate::door::PASS;
use crate::mpi::{Fault, Mpi};
use crate::payload::{Payload, TypedBuffer};
use crate::route::{Crossing, inside};
use crate::shares::Trees;
use crate::state::running;

/// Minimum message length with two sites, in bytes: the MPI library sends shorter messages in as few steps.
const LEAST: u64 = 4 << 10;

/// `MPI_Bcast` for the layer.
pub(crate) unsafe extern "C" fn bcast(
    buffer: *mut c_void,
    count: i64,
    datatype: usize,
    root: c_int,
    comm: usize,
) -> c_int {
    let Some(state) = running() else { return PASS };
    let abi = &state.mpi.abi;
    let (datatype, comm) = (abi.handle(datatype), abi.handle(comm));
    // The MPI library reports invalid arguments.
    if comm == abi.comm_null || datatype == abi.datatype_null || count < 0 || root < 0 {
        return PASS;
    }
    let work = || {
        let size = state.mpi.type_size(datatype)?;
        let bytes = count.checked_mul(size).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(u64::MAX);
        if bytes == 0 {
            return nothing(&state.mpi, comm, root);
        }
        let Some(planned) = plan_for(state, comm, bytes)? else { return Ok(PASS) };
        let Some(plan) = planned.plan() else { return Ok(PASS) };
        let is_short = bytes < LEAST && plan.layout.members.len() == 2;
        if is_short || root as usize >= plan.layout.sites.len() {
            return Ok(PASS);
        }
        let place = TypedBuffer { buffer, count, datatype, size };
        // SAFETY: the program's promise to MPI_Bcast.
        unsafe { spread(&state.mpi, plan, place, root as u32) }?;
        Ok(0)
    };
    work().unwrap_or_else(|fault| state.mpi.raise(comm, fault))
}

/// A broadcast of no bytes is over at once. Ranks agree on the number of bytes, not on the number of elements: with no
/// elements at the root and empty elements elsewhere, MPICH divides by zero, and ranks of Open MPI wait for each other.
fn nothing(mpi: &Mpi, comm: Handle, root: c_int) -> Result<c_int, Fault> {
    // The MPI library reports an invalid root.
    let is_ours = !mpi.is_inter(comm)? && root < mpi.size(comm)?;
    Ok(if is_ours { 0 } else { PASS })
}

/// # Safety
/// `place` is a buffer as MPI demands.
unsafe fn spread(mpi: &Mpi, plan: &Plan, place: TypedBuffer, root: u32) -> Result<(), Fault> {
    let is_root = plan.rank == root;
    // SAFETY: the caller's promise.
    let mut payload = unsafe { Payload::of(mpi, place, is_root, plan.private) }?;
    let (start, length) = (payload.start(), payload.length());
    // SAFETY: the payload's bytes, which outlive the call.
    unsafe { send_along(mpi, plan, start, length, root) }?;
    if is_root {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { payload.deliver(mpi, plan.private) }
}

/// Moves `length` bytes from the root's `start` to the `start` of all other ranks.
///
/// # Safety
/// `start` points to `length` bytes, which nobody else uses meanwhile.
unsafe fn send_along(mpi: &Mpi, plan: &Plan, start: *mut u8, length: usize, root: u32) -> Result<(), Fault> {
    let (chunks, layout) = (Chunks::new(start, length), &plan.layout);
    let crossing = Crossing::new(layout, root, chunks.count());
    let entry = crossing.entry(layout, root, layout.sites[plan.rank as usize]);
    let own = inside(layout, entry, plan.rank, chunks.count());
    let shares = plan.shares.as_ref();
    let first = shares.map_or(0, |shares| shares.reserve(chunks.count()));
    let name = |rank: u32| layout.names[usize::from(layout.sites[rank as usize])];
    let others: Vec<SiteId> = crossing.entries.iter().map(|rank| name(*rank)).collect();
    let from = own.parent.map_or(From::Own, From::Rank);
    let mut part = RelayPart { from, far: Vec::new(), near: own.children, export: None };
    if plan.rank == entry && entry != root {
        part.from = if shares.is_some() { From::Share(crossing.exporter) } else { From::Rank(crossing.exporter) };
    }
    if plan.rank == crossing.exporter {
        match shares {
            Some(_) => {
                let trees = Trees { own: name(root), others: &others, bytes: length as u64 };
                part.export = Some((&crossing.entries, trees));
            }
            None => part.far.clone_from(&crossing.entries),
        }
    }
    // SAFETY: the caller's promise.
    unsafe { pass_on(mpi, plan, chunks, &part, first) }
}
