//! `MPI_Alltoall` and `MPI_Alltoallv`: every rank sends each other rank its block directly. All sends begin at once,
//! those to other sites first.
//!
//! The data cross a trunk once in any case. MPI libraries take several rounds, each of which waits for the previous
//! one: Bruck's algorithm for short blocks (which also sends most bytes several times), pairwise exchange for long
//! ones.

use std::ffi::c_int;

use crate::blocks::{Blocks, in_place};
use crate::calls::IN_ORDER;
use crate::communicator::{Plan, with_plan};
use crate::door::{BufferArguments, PASS, Sides};
use crate::mpi::{Fault, Mpi};
use crate::requests::Requests;
use crate::state::{CollectivesState, running};

/// Maximum number of ranks in a communicator: each rank has a message in flight to and from every other at the same
/// time.
const MOST_RANKS: usize = 256;

/// `MPI_Alltoall` for the layer.
pub(crate) unsafe extern "C" fn alltoall(from: BufferArguments, to: BufferArguments, comm: usize) -> c_int {
    let find = |state: &CollectivesState, _| Ok((Blocks::equal(state, from)?, Blocks::equal(state, to)?));
    // SAFETY: the program's promise to MPI_Alltoall.
    unsafe { exchanged(running().is_some_and(|state| in_place(state, from.buffer)), find, comm) }
}

/// `MPI_Alltoallv` for the layer.
pub(crate) unsafe extern "C" fn alltoallv(from: Sides, to: Sides, comm: usize) -> c_int {
    let find = |state: &CollectivesState, ranks| {
        // SAFETY: the program's promise to MPI_Alltoallv: the lists have an entry for each rank.
        Ok(unsafe { (Blocks::listed(state, from, ranks)?, Blocks::listed(state, to, ranks)?) })
    };
    // SAFETY: as above.
    unsafe { exchanged(running().is_some_and(|state| in_place(state, from.buffer)), find, comm) }
}

/// # Safety
/// The arguments are as MPI demands. `find` returns the blocks to send and to receive.
unsafe fn exchanged(
    kept: bool,
    find: impl FnOnce(&CollectivesState, usize) -> Result<(Option<Blocks>, Option<Blocks>), Fault>,
    comm: usize,
) -> c_int {
    // MPI demands that either all ranks use `MPI_IN_PLACE`, or none.
    if kept {
        return PASS;
    }
    with_plan(comm, 0, |state, plan| {
        let ranks = plan.layout.sites.len();
        if ranks > MOST_RANKS {
            return Ok(None);
        }
        let (Some(from), Some(to)) = find(state, ranks)? else { return Ok(None) };
        // SAFETY: the caller's promise.
        unsafe { everyone(&state.mpi, plan, &from, &to) }.map(Some)
    })
}

/// # Safety
/// All blocks are as MPI demands.
unsafe fn everyone(mpi: &Mpi, plan: &Plan, from: &Blocks, to: &Blocks) -> Result<(), Fault> {
    let sites = &plan.layout.sites;
    let (ranks, own) = (sites.len() as u32, plan.rank);
    let mut requests = Requests::new(mpi, 2 * sites.len());
    for other in (0..ranks).filter(|rank| *rank != own) {
        // An empty block has no message, at either end.
        if to.of(other).bytes()? > 0 {
            // SAFETY: the program's room for this rank's block, which overlaps no other.
            unsafe { requests.receive(to.elements(other), (other, IN_ORDER), plan.private) }?;
        }
    }
    // Each rank begins with a different one, so that not all send to the same rank first.
    let in_turn = |step: u32| (own + step) % ranks;
    let is_near = |rank: &u32| sites[*rank as usize] == sites[own as usize];
    let (near, far): (Vec<u32>, Vec<u32>) = (1..ranks).map(in_turn).partition(is_near);
    for other in far.into_iter().chain(near) {
        if from.of(other).bytes()? > 0 {
            // SAFETY: the program's block for this rank.
            unsafe { requests.send(from.elements(other), (other, IN_ORDER), plan.private) }?;
        }
    }
    // SAFETY: the program's own block and the room for it.
    unsafe { mpi.copy(from.elements(own), to.elements(own), own, plan.private) }?;
    requests.finish()
}
