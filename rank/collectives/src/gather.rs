//! `MPI_Gather` and `MPI_Gatherv`: a site's short blocks cross a trunk together, long blocks one by one.
//!
//! A rank knows the length of its own block, and only the root knows all lengths. So no lengths are agreed on: each
//! message states its own content (`bundle`), and a block that is longer than the root expects is an error at the root.

use std::ffi::c_int;

use crate::blocks::{Blocks, in_place, place};
use crate::bundle::{Bundle, travels_alone};
use crate::calls::{ALONE, Elements, IN_ORDER};
use crate::communicator::{Plan, with_plan};
use crate::door::{BufferArguments, Sides};
use crate::leaders::Leaders;
use crate::mpi::{Fault, Mpi};
use crate::payload::{Payload, TypedBuffer};
use crate::requests::Requests;
use crate::state::{CollectivesState, running};

/// `MPI_Gather` for the layer.
pub(crate) unsafe extern "C" fn gather(from: BufferArguments, to: BufferArguments, root: c_int, comm: usize) -> c_int {
    // SAFETY: the program's promise to MPI_Gather.
    unsafe { gathered(from, |state, _| Blocks::equal(state, to), root, comm) }
}

/// `MPI_Gatherv` for the layer.
pub(crate) unsafe extern "C" fn gatherv(from: BufferArguments, to: Sides, root: c_int, comm: usize) -> c_int {
    // SAFETY: the program's promise to MPI_Gatherv: at the root, the lists have an entry for each rank.
    unsafe { gathered(from, |state, ranks| Blocks::listed(state, to, ranks), root, comm) }
}

/// # Safety
/// The arguments are as MPI demands. `to` returns the root's blocks.
unsafe fn gathered(
    from: BufferArguments,
    to: impl FnOnce(&CollectivesState, usize) -> Result<Option<Blocks>, Fault>,
    root: c_int,
    comm: usize,
) -> c_int {
    let kept = running().is_some_and(|state| in_place(state, from.buffer));
    with_plan(comm, 0, |state, plan| {
        let (mpi, ranks) = (&state.mpi, plan.layout.sites.len());
        let Some(root) = rank_in(plan, root) else { return Ok(None) };
        if plan.rank != root {
            let Some(own) = place(state, from)? else { return Ok(None) };
            // SAFETY: the caller's promise.
            return unsafe { contribute(mpi, plan, own, root) }.map(Some);
        }
        let own = if kept { None } else { place(state, from)? };
        let Some(to) = to(state, ranks)?.filter(|_| kept || own.is_some()) else { return Ok(None) };
        // SAFETY: the caller's promise.
        unsafe { collect(mpi, plan, own, &to) }.map(Some)
    })
}

/// The root as a rank number; `None` if the communicator has no such rank.
pub(crate) fn rank_in(plan: &Plan, root: c_int) -> Option<u32> {
    u32::try_from(root).ok().filter(|root| (*root as usize) < plan.layout.sites.len())
}

/// The part of every rank except the root.
///
/// # Safety
/// `own` is as MPI demands.
unsafe fn contribute(mpi: &Mpi, plan: &Plan, own: TypedBuffer, root: u32) -> Result<(), Fault> {
    let leaders = Leaders::new(mpi, plan, Some(root));
    let (mut alone, length) = (Requests::new(mpi, 1), own.bytes()?);
    let mut payload = None;
    if travels_alone(length) {
        // SAFETY: the caller's promise.
        unsafe { alone.send(own.elements(), (root, ALONE), plan.private) }?;
    } else {
        // SAFETY: the caller's promise.
        payload = Some(unsafe { Payload::of(mpi, own, true, plan.private) }?);
    }
    // SAFETY: the caller's promise.
    let bytes = payload.as_mut().map_or(&[][..], |payload| unsafe { payload.bytes() });
    if leaders.leads() {
        let members = leaders.members();
        let mut rooms = members.iter().map(|_| Bundle::room(1)).collect::<Result<Vec<Bundle>, Fault>>()?;
        let mut requests = Requests::new(mpi, members.len());
        for (member, room) in members.iter().zip(&mut rooms).filter(|(member, _)| **member != plan.rank) {
            // SAFETY: our own memory, which outlives the requests.
            unsafe { receive(mpi, plan, room, *member, &mut requests) }?;
        }
        requests.finish()?;
        let blocks = members.iter().zip(&rooms).map(|(member, room)| match *member == plan.rank {
            true => (length, bytes),
            false => room.blocks().next().unwrap_or_default(),
        });
        // SAFETY: our own memory.
        unsafe { send(mpi, plan, &mut Bundle::new(blocks)?, root) }?;
    } else {
        // SAFETY: our own memory.
        unsafe { send(mpi, plan, &mut Bundle::new([(length, bytes)].into_iter())?, leaders.own_leader()) }?;
    }
    alone.finish()
}

/// The part of the root. Without `own`, its block is already in its place.
///
/// # Safety
/// All arguments are as MPI demands.
unsafe fn collect(mpi: &Mpi, plan: &Plan, own: Option<TypedBuffer>, to: &Blocks) -> Result<(), Fault> {
    let mut expected: Vec<(u32, &[u32], Bundle)> = Vec::new();
    let (home, leaders) =
        (usize::from(plan.layout.sites[plan.rank as usize]), Leaders::new(mpi, plan, Some(plan.rank)));
    for (site, members) in plan.layout.members.iter().enumerate() {
        if site != home {
            expected.push((leaders.of_site(site), members, Bundle::room(members.len())?));
            continue;
        }
        for member in members.chunks(1).filter(|member| *member != [plan.rank]) {
            expected.push((member[0], member, Bundle::room(1)?));
        }
    }
    let mut requests = Requests::new(mpi, expected.len());
    for (from, _, room) in &mut expected {
        // SAFETY: our own memory, which outlives the requests.
        unsafe { receive(mpi, plan, room, *from, &mut requests) }?;
    }
    requests.finish()?;
    let mut alone = Requests::new(mpi, plan.layout.sites.len());
    let mut result = Ok(());
    for (_, members, room) in &expected {
        for (member, (length, bytes)) in members.iter().zip(room.blocks()) {
            if travels_alone(length) {
                // SAFETY: the program's room for this block, which overlaps no other.
                unsafe { alone.receive(to.elements(*member), (*member, ALONE), plan.private) }?;
            } else {
                // SAFETY: as above. The other blocks arrive even if this one does not fit.
                result = result.and(unsafe { Payload::fill(mpi, to.of(*member), bytes, plan.private) });
            }
        }
    }
    if let Some(own) = own {
        // SAFETY: the caller's promise.
        result = result.and(unsafe { mpi.copy(own.elements(), to.elements(plan.rank), plan.rank, plan.private) });
    }
    alone.finish().and(result)
}

/// # Safety
/// The room outlives the requests.
pub(crate) unsafe fn receive(
    mpi: &Mpi,
    plan: &Plan,
    room: &mut Bundle,
    from: u32,
    requests: &mut Requests<'_>,
) -> Result<(), Fault> {
    let into = Elements::bytes(mpi, room.memory());
    // SAFETY: the caller's promise.
    unsafe { requests.receive(into, (from, IN_ORDER), plan.private) }
}

/// # Safety
/// None beyond MPI's own requirements.
unsafe fn send(mpi: &Mpi, plan: &Plan, bundle: &mut Bundle, to: u32) -> Result<(), Fault> {
    let (mut requests, from) = (Requests::new(mpi, 1), Elements::bytes(mpi, bundle.memory()));
    // SAFETY: the bundle outlives the request.
    unsafe { requests.send(from, (to, IN_ORDER), plan.private) }?;
    requests.finish()
}
