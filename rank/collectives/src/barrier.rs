//! `MPI_Barrier`: inside each site, then between all pairs of leaders, then inside each site.

use std::ffi::c_int;

use crate::calls::Elements;
use crate::communicator::{Plan, plan_for};
use crate::door::PASS;
use crate::leaders::Leaders;
use crate::mpi::{Fault, Mpi};
use crate::state::running;

/// `MPI_Barrier` for the layer.
pub(crate) unsafe extern "C" fn barrier(comm: usize) -> c_int {
    let Some(state) = running() else { return PASS };
    let comm = state.mpi.abi.handle(comm);
    if comm == state.mpi.abi.comm_null {
        return PASS;
    }
    let work = || {
        let Some(planned) = plan_for(state, comm, 0)? else { return Ok(PASS) };
        let Some(plan) = planned.plan() else { return Ok(PASS) };
        meet(&state.mpi, plan)?;
        Ok(0)
    };
    work().unwrap_or_else(|fault| state.mpi.raise(comm, fault))
}

/// Takes one trip between sites; a dissemination over all ranks takes several.
fn meet(mpi: &Mpi, plan: &Plan) -> Result<(), Fault> {
    let leaders = Leaders::new(mpi, plan, None);
    mpi.barrier(plan.site)?;
    if leaders.leads() {
        let (mut own, mut theirs) = ([0; 1], vec![[0; 1]; leaders.others().count()]);
        let theirs = leaders.others().zip(&mut theirs).map(|(site, byte)| (site, Elements::bytes(mpi, byte)));
        let theirs: Vec<(usize, Elements)> = theirs.collect();
        // SAFETY: our own memory.
        unsafe { leaders.tell(Elements::bytes(mpi, &mut own), &theirs) }?;
    }
    mpi.barrier(plan.site)
}
