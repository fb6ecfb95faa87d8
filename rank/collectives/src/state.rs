//! State of this process from its first covered call to its last.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::abi::Handle;
use crate::bcast;
use crate::communicator::{self, copy_nothing, forget};
use crate::door::{FunctionTable, INTERFACE, LibraryLookup, Transport};
use crate::mpi::{Fault, Mpi};
use crate::world::World;
use crate::{allgather, alltoall, barrier, gather, reduce, scatter};

/// Maximum number of communicators that have a plan at one time. Each plan holds a communicator of its own, and MPICH
/// has 2048 in all.
const MOST_PLANS: usize = 128;

pub(crate) struct CollectivesState {
    pub mpi: Mpi,
    pub world: World,
    pub transport: &'static dyn Transport,
    /// If true, this rank leaves reductions to the MPI library, whose result does not depend on sites.
    pub exact: bool,
    /// Algorithm that builds one tree of sites for each broadcast of this rank, instead of the best trees.
    pub algorithm: Option<plan::Algorithm>,
    key: OnceLock<c_int>,
    /// Ensures that only one thread makes the key.
    making: Mutex<()>,
    plans: AtomicUsize,
    /// Communicators that hold our state, which must be released before MPI ends.
    known: Mutex<Vec<Handle>>,
    /// Communicators that the program is freeing; its callbacks may still use them.
    freed: Mutex<Vec<Handle>>,
    ended: AtomicBool,
}

static STATE: OnceLock<Option<CollectivesState>> = OnceLock::new();
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
    if interface != INTERFACE {
        return None;
    }
    let state = STATE.get_or_init(|| {
        let world = World::from_env(|name| std::env::var(name).ok())?;
        // SAFETY: the caller's promise.
        let mpi = unsafe { Mpi::find(source) }?;
        Some(CollectivesState {
            mpi,
            world,
            transport,
            exact: std::env::var("LANDBRIDGE_COLLECTIVES").is_ok_and(|way| way == "exact"),
            // The launcher has checked the name.
            algorithm: std::env::var("LANDBRIDGE_TREES").ok().and_then(|name| plan::Algorithm::by_name(&name).ok()),
            key: OnceLock::new(),
            making: Mutex::new(()),
            plans: AtomicUsize::new(0),
            known: Mutex::new(Vec::new()),
            freed: Mutex::new(Vec::new()),
            ended: AtomicBool::new(false),
        })
    });
    state.as_ref().map(|_| &TABLE)
}

/// The state, while MPI runs.
pub(crate) fn running() -> Option<&'static CollectivesState> {
    let state = STATE.get()?.as_ref()?;
    (!state.ended.load(Ordering::Acquire)).then_some(state)
}

impl CollectivesState {
    /// The key of our attribute.
    pub(crate) fn key(&self) -> Result<c_int, Fault> {
        if let Some(key) = self.key.get() {
            return Ok(*key);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = self.key.get() {
            return Ok(*key);
        }
        let key = self.mpi.make_key(copy_nothing, forget)?;
        Ok(*self.key.get_or_init(|| key))
    }

    /// Returns true if another communicator can have a plan.
    pub(crate) fn has_room(&self) -> bool {
        self.plans.load(Ordering::Relaxed) < MOST_PLANS
    }

    pub(crate) fn plan_made(&self) {
        self.plans.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn plan_freed(&self) {
        self.plans.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn remember(&self, comm: Handle) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).push(comm);
    }

    pub(crate) fn forget(&self, comm: Handle) {
        remove(&self.known, comm);
    }

    /// Runs `free`, which frees a communicator.
    pub(crate) fn freeing<T>(&self, comm: Handle, free: impl FnOnce() -> T) -> T {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner).push(comm);
        let result = free();
        remove(&self.freed, comm);
        result
    }

    pub(crate) fn is_freeing(&self, comm: Handle) -> bool {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner).contains(&comm)
    }
}

/// Removes one entry of this communicator.
fn remove(comms: &Mutex<Vec<Handle>>, comm: Handle) {
    let mut comms = comms.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = comms.iter().rposition(|other| *other == comm) {
        comms.swap_remove(at);
    }
}

/// Frees everything we made, before `MPI_Finalize`.
unsafe extern "C" fn finalize() {
    let Some(state) = running() else { return };
    let Some(key) = state.key.get() else { return };
    let known = state.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
    known.into_iter().for_each(|comm| state.mpi.delete_attribute(comm, *key));
    state.ended.store(true, Ordering::Release);
}
