//! State of this process from its first covered call to its last.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::abi::Handle;
use crate::communicator::{copy_nothing, forget};
use crate::door::{LibraryLookup, Transport};
use crate::mpi::{Fault, Mpi};
use crate::world::World;

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

/// Prepares this process's state for the MPI library behind `source`. Returns false if nothing is covered in this
/// process. The first call decides.
///
/// # Safety
/// `source` finds functions and objects of one MPI library, which stays loaded.
pub(crate) unsafe fn prepare(source: &LibraryLookup, transport: &'static dyn Transport) -> bool {
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
    state.is_some()
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

    /// Frees everything we made, before `MPI_Finalize`.
    pub(crate) fn end(&self) {
        let Some(key) = self.key.get() else { return };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.into_iter().for_each(|comm| self.mpi.delete_attribute(comm, *key));
        self.ended.store(true, Ordering::Release);
    }
}

/// Removes one entry of this communicator.
fn remove(comms: &Mutex<Vec<Handle>>, comm: Handle) {
    let mut comms = comms.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = comms.iter().rposition(|other| *other == comm) {
        comms.swap_remove(at);
    }
}
