//! The table of covered functions, through which the preloaded layer calls this crate.

use crate::door::{FunctionTable, INTERFACE, LibraryLookup, Transport};
use crate::state::{prepare, running};
use crate::{allgather, alltoall, barrier, bcast, communicator, gather, reduce, scatter};

static TABLE: FunctionTable = FunctionTable {
    bcast: bcast::bcast,
    barrier: barrier::barrier,
    reduce: reduce::reduce,
    allreduce: reduce::allreduce,
    allgather: allgather::allgather,
    allgatherv: allgather::allgatherv,
    gather: gather::gather,
    gatherv: gather::gatherv,
    scatter: scatter::scatter,
    scatterv: scatter::scatterv,
    alltoall: alltoall::alltoall,
    alltoallv: alltoall::alltoallv,
    comm_free: communicator::comm_free,
    comm_disconnect: communicator::comm_disconnect,
    finalize,
};

/// Returns the table of covered functions for the MPI library behind `source`. They use `transport`. `None` if no
/// function is covered in this process. The first call decides.
///
/// # Safety
/// `source` finds functions and objects of one MPI library, which stays loaded.
pub unsafe fn table(
    interface: u32,
    source: &LibraryLookup,
    transport: &'static dyn Transport,
) -> Option<&'static FunctionTable> {
    // SAFETY: the caller's promise.
    (interface == INTERFACE && unsafe { prepare(source, transport) }).then_some(&TABLE)
}

/// Frees everything this crate made, before `MPI_Finalize`.
unsafe extern "C" fn finalize() {
    if let Some(state) = running() {
        state.end();
    }
}
