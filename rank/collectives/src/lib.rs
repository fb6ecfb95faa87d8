//! Collective operations for communicators that reach several sites: each trunk is crossed as seldom as possible.
//!
//! This crate runs inside a rank, in the provider's shared object. The preloaded layer passes covered MPI calls to it
//! through a [`FunctionTable`], and makes the MPI library's own call when a function returns [`PASS`]. The crate calls
//! the rank's own MPI library through function pointers (`mpi`) and knows each library's constants (`abi`). Data for
//! gateways to copy goes through the rank's endpoint (`shares`), along trees of sites planned from measured links
//! (`trees`). The crate knows nothing of frames or libfabric.
//!
//! Every decision here must be the same on all ranks of a communicator, or they wait for each other forever. So
//! decisions rest on data that all ranks share: the group, the job's roster, the number of calls so far, and byte
//! counts. Data that only one rank knows is first agreed on (`communicator`). Start reading at `bcast`.

#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod abi;
mod allgather;
mod alltoall;
mod barrier;
mod bcast;
mod blocks;
mod bundle;
mod calls;
mod chunks;
mod communicator;
mod datatype;
mod door;
mod gather;
mod group;
mod leaders;
mod mpi;
mod nodes;
mod payload;
mod reduce;
mod requests;
mod route;
mod scatter;
mod shares;
mod span;
mod state;
mod strips;
mod trees;
mod world;

pub use door::{BufferArguments, LibraryLookup, PASS, Sides, Transport};

use std::ffi::{c_int, c_void};

use state::{prepare, running};

/// Version of the interface between the layer and this crate, to be raised with each change of [`FunctionTable`] and of
/// the types in its functions. Both of one release have the same.
pub const INTERFACE: u32 = 4;

/// Covered functions, with 64-bit counts. A handle is passed as the register that holds it: a pointer, or an `int`
/// whose upper half is undefined.
#[repr(C)]
pub struct FunctionTable {
    /// `MPI_Bcast`.
    pub bcast:
        unsafe extern "C" fn(buffer: *mut c_void, count: i64, datatype: usize, root: c_int, comm: usize) -> c_int,
    /// `MPI_Barrier`.
    pub barrier: unsafe extern "C" fn(comm: usize) -> c_int,
    /// `MPI_Reduce`.
    pub reduce: unsafe extern "C" fn(
        from: *mut c_void,
        to: *mut c_void,
        count: i64,
        datatype: usize,
        operation: usize,
        root: c_int,
        comm: usize,
    ) -> c_int,
    /// `MPI_Allreduce`.
    pub allreduce: unsafe extern "C" fn(
        from: *mut c_void,
        to: *mut c_void,
        count: i64,
        datatype: usize,
        operation: usize,
        comm: usize,
    ) -> c_int,
    /// `MPI_Allgather`.
    pub allgather: unsafe extern "C" fn(from: BufferArguments, to: BufferArguments, comm: usize) -> c_int,
    /// `MPI_Allgatherv`.
    pub allgatherv: unsafe extern "C" fn(from: BufferArguments, to: Sides, comm: usize) -> c_int,
    /// `MPI_Gather`.
    pub gather: unsafe extern "C" fn(from: BufferArguments, to: BufferArguments, root: c_int, comm: usize) -> c_int,
    /// `MPI_Gatherv`.
    pub gatherv: unsafe extern "C" fn(from: BufferArguments, to: Sides, root: c_int, comm: usize) -> c_int,
    /// `MPI_Scatter`.
    pub scatter: unsafe extern "C" fn(from: BufferArguments, to: BufferArguments, root: c_int, comm: usize) -> c_int,
    /// `MPI_Scatterv`.
    pub scatterv: unsafe extern "C" fn(from: Sides, to: BufferArguments, root: c_int, comm: usize) -> c_int,
    /// `MPI_Alltoall`.
    pub alltoall: unsafe extern "C" fn(from: BufferArguments, to: BufferArguments, comm: usize) -> c_int,
    /// `MPI_Alltoallv`.
    pub alltoallv: unsafe extern "C" fn(from: Sides, to: Sides, comm: usize) -> c_int,
    /// `MPI_Comm_free` of the communicator whose handle is at this place.
    pub comm_free: unsafe extern "C" fn(comm: *mut c_void) -> c_int,
    /// `MPI_Comm_disconnect`, likewise.
    pub comm_disconnect: unsafe extern "C" fn(comm: *mut c_void) -> c_int,
    /// Called before `MPI_Finalize`.
    pub finalize: unsafe extern "C" fn(),
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_table_raises_the_version() {
        let words = |bytes: usize| bytes / size_of::<usize>();
        let sizes = [size_of::<FunctionTable>(), size_of::<LibraryLookup>(), size_of::<Sides>()].map(words);
        assert_eq!((INTERFACE, sizes), (4, [15, 3, 5]), "raise INTERFACE, and write the new sizes here");
    }
}
