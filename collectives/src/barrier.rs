//! `MPI_Barrier`: inside each site, then between the sites' leaders, each with each, then inside each site.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

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

/// Takes one trip between sites, where a dissemination over all ranks takes several.
fn meet(mpi: &Mpi, plan: &Plan) -> Result<(), Fault> {
    let leaders = Leaders::new(mpi, plan, None);
    mpi.barrier(plan.site)?;
    if leaders.leads() {
        let start: *mut c_void = null_mut();
        let nothing = Elements { start, count: 0, datatype: mpi.abi.byte };
        let empty = || leaders.others().map(|site| (site, nothing));
        // SAFETY: no bytes are sent.
        unsafe { leaders.exchange(empty(), empty()) }?;
    }
    mpi.barrier(plan.site)
}
