//! `MPI_Scatter` and `MPI_Scatterv`: the reverse of `gather`, with the same messages.

use std::ffi::c_int;

use crate::blocks::{Blocks, in_place, place};
use crate::bundle::{Bundle, travels_alone};
use crate::calls::{ALONE, Elements, IN_ORDER};
use crate::communicator::{Plan, with_plan};
use crate::door::{BufferArguments, Sides};
use crate::gather::{rank_in, receive};
use crate::leaders::Leaders;
use crate::mpi::{Fault, Mpi};
use crate::payload::{Payload, TypedBuffer};
use crate::requests::Requests;
use crate::state::{CollectivesState, running};

/// `MPI_Scatter` for the layer.
pub(crate) unsafe extern "C" fn scatter(from: BufferArguments, to: BufferArguments, root: c_int, comm: usize) -> c_int {
    // SAFETY: the program's promise to MPI_Scatter.
    unsafe { scattered(|state, _| Blocks::equal(state, from), to, root, comm) }
}

/// `MPI_Scatterv` for the layer.
pub(crate) unsafe extern "C" fn scatterv(from: Sides, to: BufferArguments, root: c_int, comm: usize) -> c_int {
    // SAFETY: the program's promise to MPI_Scatterv: at the root, the lists have an entry for each rank.
    unsafe { scattered(|state, ranks| Blocks::listed(state, from, ranks), to, root, comm) }
}

/// # Safety
/// The arguments are as MPI demands. `from` returns the root's blocks.
unsafe fn scattered(
    from: impl FnOnce(&CollectivesState, usize) -> Result<Option<Blocks>, Fault>,
    to: BufferArguments,
    root: c_int,
    comm: usize,
) -> c_int {
    let kept = running().is_some_and(|state| in_place(state, to.buffer));
    with_plan(comm, 0, |state, plan| {
        let (mpi, ranks) = (&state.mpi, plan.layout.sites.len());
        let Some(root) = rank_in(plan, root) else { return Ok(None) };
        if plan.rank != root {
            let Some(own) = place(state, to)? else { return Ok(None) };
            // SAFETY: the caller's promise.
            return unsafe { take(mpi, plan, own, root) }.map(Some);
        }
        let own = if kept { None } else { place(state, to)? };
        let Some(from) = from(state, ranks)?.filter(|_| kept || own.is_some()) else { return Ok(None) };
        // SAFETY: the caller's promise.
        unsafe { distribute(mpi, plan, &from, own) }.map(Some)
    })
}

/// The part of the root. Without `own`, its block stays in its place.
///
/// # Safety
/// All arguments are as MPI demands.
unsafe fn distribute(mpi: &Mpi, plan: &Plan, from: &Blocks, own: Option<TypedBuffer>) -> Result<(), Fault> {
    let (home, leaders) =
        (usize::from(plan.layout.sites[plan.rank as usize]), Leaders::new(mpi, plan, Some(plan.rank)));
    let mut bundles: Vec<(u32, Bundle)> = Vec::new();
    let far = plan.layout.members.iter().enumerate().filter(|(site, _)| *site != home);
    for (site, members) in far {
        // SAFETY: the caller's promise.
        bundles.push((leaders.of_site(site), unsafe { bundle_of(mpi, plan, from, members) }?));
    }
    for member in plan.layout.members[home].chunks(1).filter(|member| *member != [plan.rank]) {
        // SAFETY: as above.
        bundles.push((member[0], unsafe { bundle_of(mpi, plan, from, member) }?));
    }
    let ranks = 0..plan.layout.sites.len() as u32;
    let mut requests = Requests::new(mpi, bundles.len() + ranks.len());
    for (to, bundle) in &mut bundles {
        let elements = Elements::bytes(mpi, bundle.memory());
        // SAFETY: the bundles outlive the requests.
        unsafe { requests.send(elements, (*to, IN_ORDER), plan.private) }?;
    }
    for rank in ranks.filter(|rank| *rank != plan.rank) {
        if travels_alone(from.of(rank).bytes()?) {
            // SAFETY: the program's block, which nobody changes meanwhile.
            unsafe { requests.send(from.elements(rank), (rank, ALONE), plan.private) }?;
        }
    }
    let mut result = Ok(());
    if let Some(own) = own {
        // SAFETY: the caller's promise.
        result = unsafe { mpi.copy(from.elements(plan.rank), own.elements(), plan.rank, plan.private) };
    }
    requests.finish().and(result)
}

/// # Safety
/// The blocks are as MPI demands.
unsafe fn bundle_of(mpi: &Mpi, plan: &Plan, from: &Blocks, members: &[u32]) -> Result<Bundle, Fault> {
    let mut payloads: Vec<(u64, Option<Payload>)> = Vec::new();
    for member in members {
        let (place, length) = (from.of(*member), from.of(*member).bytes()?);
        // SAFETY: the caller's promise.
        let full = || unsafe { Payload::of(mpi, place, true, plan.private) };
        payloads.push((length, if travels_alone(length) { None } else { Some(full()?) }));
    }
    let blocks: Vec<(u64, &[u8])> = payloads
        .iter_mut()
        // SAFETY: as above.
        .map(|(length, payload)| (*length, payload.as_mut().map_or(&[][..], |payload| unsafe { payload.bytes() })))
        .collect();
    Bundle::new(blocks.iter().copied())
}

/// The part of every rank except the root.
///
/// # Safety
/// `own` is as MPI demands.
unsafe fn take(mpi: &Mpi, plan: &Plan, own: TypedBuffer, root: u32) -> Result<(), Fault> {
    let leaders = Leaders::new(mpi, plan, Some(root));
    let members = leaders.members();
    let leads = leaders.leads();
    let mut room = Bundle::room(if leads { members.len() } else { 1 })?;
    let mut requests = Requests::new(mpi, 1);
    // SAFETY: our own memory, which outlives the request.
    unsafe { receive(mpi, plan, &mut room, if leads { root } else { leaders.own_leader() }, &mut requests) }?;
    requests.finish()?;
    let mut passed: Vec<(u32, Bundle)> = Vec::new();
    let mut mine = room.blocks().next().unwrap_or_default();
    for (member, block) in members.iter().zip(room.blocks()).filter(|_| leads) {
        if *member == plan.rank {
            mine = block;
        } else {
            passed.push((*member, Bundle::new([block].into_iter())?));
        }
    }
    let mut requests = Requests::new(mpi, passed.len() + 1);
    for (member, bundle) in &mut passed {
        let elements = Elements::bytes(mpi, bundle.memory());
        // SAFETY: the bundles outlive the requests.
        unsafe { requests.send(elements, (*member, IN_ORDER), plan.private) }?;
    }
    let (length, bytes) = mine;
    let mut result = Ok(());
    if travels_alone(length) {
        // SAFETY: the caller's promise.
        unsafe { requests.receive(own.elements(), (root, ALONE), plan.private) }?;
    } else {
        // SAFETY: the caller's promise.
        result = unsafe { Payload::fill(mpi, own, bytes, plan.private) };
    }
    requests.finish().and(result)
}
