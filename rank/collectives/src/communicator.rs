//! Our state of a communicator, kept in an attribute of it: whether it reaches several sites, and the plan for its
//! ranks.
//!
//! Most communicators are within one site: all their ranks see that from the group alone, and every later call costs
//! one lookup. The others get a plan once they have been used enough to repay its cost. MPI requires all ranks of a
//! communicator to make the same collective calls in the same order, so they all reach that moment in the same call.

use std::cell::OnceCell;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::Handle;
use crate::door::PASS;
use crate::mpi::{Fault, Mpi};
use crate::route::CommunicatorLayout;
use crate::shares::{MOST_RECEIVERS, Shares};
use crate::state::{CollectivesState, running};
use crate::world::Location;

/// A communicator that has moved this many bytes in covered calls gets a plan...
const WORTH_BYTES: u64 = 32 << 10;
/// ...as does one with this many covered calls before.
const WORTH_CALLS: u32 = 1;

/// Value of the attribute.
pub(crate) struct Known(Mutex<CommunicatorMode>);

enum CommunicatorMode {
    /// The MPI library does everything itself.
    Native,
    /// It reaches several sites, and has made this many covered calls so far.
    Unplanned {
        locations: Vec<Location>,
        calls: u32,
    },
    Planned(Box<Plan>),
}

/// Plan for the cooperation of a communicator's ranks.
pub(crate) struct Plan {
    /// A communicator of the same ranks, for our own messages.
    pub private: Handle,
    /// A communicator of this site's ranks alone.
    pub site: Handle,
    pub rank: u32,
    /// True if at least one rank wants the MPI library's own reductions.
    pub exact: bool,
    pub layout: CommunicatorLayout,
    /// State for having gateways copy messages; `None` if they cannot, or if there is only one other site.
    pub shares: Option<Shares>,
    /// A communicator of this node's ranks alone, made when first needed.
    node: OnceCell<Handle>,
}

impl Plan {
    /// A communicator of this rank's node alone. The first call is collective over the node's site.
    pub(crate) fn node(&self, mpi: &Mpi) -> Result<Handle, Fault> {
        if let Some(made) = self.node.get() {
            return Ok(*made);
        }
        let made = mpi.split(self.site, self.layout.nodes.own(self.rank) as u16)?;
        Ok(*self.node.get_or_init(|| made))
    }
}

/// A communicator's plan, locked for one call.
pub(crate) struct Planned<'a>(MutexGuard<'a, CommunicatorMode>);

impl Planned<'_> {
    pub(crate) fn plan(&self) -> Option<&Plan> {
        match &*self.0 {
            CommunicatorMode::Planned(plan) => Some(plan),
            _ => None,
        }
    }
}

/// The plan of a communicator for a call that moves `bytes` to each rank; `None` if the MPI library is to make the
/// call. Collective.
///
/// # Errors
/// MPI's error.
pub(crate) fn plan_for(
    state: &'static CollectivesState,
    comm: Handle,
    bytes: u64,
) -> Result<Option<Planned<'static>>, Fault> {
    // Without MPI_COMM_WORLD, in a program that uses only sessions, nobody knows the locations of a group's ranks.
    // While a communicator is being freed, callbacks of the program's attributes may use it after ours is gone, and
    // they need not run in the same order on all ranks.
    if !state.mpi.initialized() || state.is_freeing(comm) {
        return Ok(None);
    }
    let key = state.key()?;
    let known = match state.mpi.attribute(comm, key)? {
        Some(value) => value.cast::<Known>(),
        None => {
            let known = Box::into_raw(Box::new(Known(Mutex::new(look(state, comm)?))));
            if let Err(fault) = state.mpi.set_attribute(comm, key, known.cast()) {
                // SAFETY: made above, and nobody else has it.
                drop(unsafe { Box::from_raw(known) });
                return Err(fault);
            }
            state.remember(comm);
            known
        }
    };
    // SAFETY: the attribute is ours, and lives until MPI deletes it, which a program must not cause while a call on the
    // communicator is running.
    let known = unsafe { &*known };
    let mut mode = known.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let CommunicatorMode::Unplanned { locations, calls } = &mut *mode {
        if bytes < WORTH_BYTES && *calls < WORTH_CALLS {
            *calls += 1;
            return Ok(None);
        }
        let locations = std::mem::take(locations);
        *mode = agree(state, comm, &locations)?;
    }
    Ok(matches!(*mode, CommunicatorMode::Planned(_)).then_some(Planned(mode)))
}

/// Runs `work` with the plan of `comm`, for a call that moves `bytes` to each rank; `work` may also leave the call to
/// the MPI library (`None`), on all ranks alike. Returns the layer's return code. Collective.
pub(crate) fn with_plan(
    comm: usize,
    bytes: u64,
    work: impl FnOnce(&CollectivesState, &Plan) -> Result<Option<()>, Fault>,
) -> c_int {
    let Some(state) = running() else { return PASS };
    let comm = state.mpi.abi.handle(comm);
    if comm == state.mpi.abi.comm_null {
        return PASS;
    }
    let run = || {
        let Some(planned) = plan_for(state, comm, bytes)? else { return Ok(PASS) };
        let Some(plan) = planned.plan() else { return Ok(PASS) };
        Ok(work(state, plan)?.map_or(PASS, |()| 0))
    };
    run().unwrap_or_else(|fault| state.mpi.raise(comm, fault))
}

/// Derives the mode from the group of a communicator: the result is the same on all of its ranks.
fn look(state: &CollectivesState, comm: Handle) -> Result<CommunicatorMode, Fault> {
    let mpi = &state.mpi;
    if mpi.is_inter(comm)? {
        return Ok(CommunicatorMode::Native);
    }
    let size = mpi.size(comm)?;
    let world = mpi.abi.comm_world;
    if size < 2 || usize::try_from(mpi.size(world)?) != Ok(state.world.locations.len()) {
        return Ok(CommunicatorMode::Native);
    }
    let (own, all) = (mpi.group(comm)?, mpi.group(world)?);
    let ranks = mpi.translate(own, size, all);
    mpi.free_group(own);
    mpi.free_group(all);
    // Ranks of another MPI_COMM_WORLD have no number in ours, and ours have none in theirs.
    let location = |rank: c_int| state.world.locations.get(usize::try_from(rank).ok()?).copied();
    let locations: Option<Vec<Location>> = ranks?.into_iter().map(location).collect();
    let reach_several = |locations: &Vec<Location>| locations.iter().any(|other| other.site != locations[0].site);
    Ok(locations
        .filter(reach_several)
        .map_or(CommunicatorMode::Native, |locations| CommunicatorMode::Unplanned { locations, calls: 0 }))
}

/// Makes the plan, if all ranks have room for one.
fn agree(state: &CollectivesState, comm: Handle, locations: &[Location]) -> Result<CommunicatorMode, Fault> {
    let mpi = &state.mpi;
    let [room, reorders] = mpi.least(comm, [c_int::from(state.has_room()), c_int::from(!state.exact)])?;
    if room == 0 {
        return Ok(CommunicatorMode::Native);
    }
    let group = mpi.group(comm)?;
    let private = mpi.create(comm, group);
    mpi.free_group(group);
    let private = private?;
    let (layout, rank) = (CommunicatorLayout::new(locations), mpi.rank(comm)? as u32);
    let site = mpi.split(private, layout.sites[rank as usize])?;
    let others = layout.members.len() - 1;
    let shares = match (2..=MOST_RECEIVERS).contains(&others) {
        true => Shares::agree(mpi, state, private, layout.sites.len())?,
        false => None,
    };
    state.plan_made();
    Ok(CommunicatorMode::Planned(Box::new(Plan {
        private,
        site,
        rank,
        exact: reorders == 0,
        layout,
        shares,
        node: OnceCell::new(),
    })))
}

/// `MPI_Comm_free` for the layer.
pub(crate) unsafe extern "C" fn comm_free(place: *mut c_void) -> c_int {
    // SAFETY: the program's promise to MPI_Comm_free.
    unsafe { freed(place, |state| state.mpi.functions.comm_free) }
}

/// `MPI_Comm_disconnect` for the layer.
pub(crate) unsafe extern "C" fn comm_disconnect(place: *mut c_void) -> c_int {
    // SAFETY: the program's promise to MPI_Comm_disconnect.
    unsafe { freed(place, |state| state.mpi.functions.comm_disconnect) }
}

/// # Safety
/// `place` is null or holds the handle of a communicator.
unsafe fn freed(
    place: *mut c_void,
    call: impl FnOnce(&CollectivesState) -> unsafe extern "C" fn(*mut c_void) -> c_int,
) -> c_int {
    let Some(state) = running().filter(|_| !place.is_null()) else { return PASS };
    // SAFETY: the caller's promise.
    let comm = unsafe { state.mpi.abi.handle_at(place) };
    // SAFETY: as above.
    state.freeing(comm, || unsafe { call(state)(place) })
}

/// `MPI_Comm_copy_attr_function`: copies nothing; a duplicate builds its own state.
pub(crate) unsafe extern "C" fn copy_nothing(
    _comm: usize,
    _key: c_int,
    _extra: *mut c_void,
    _value: *mut c_void,
    _copy: *mut c_void,
    copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI passes a place for the answer.
    unsafe { *copied = 0 };
    0
}

/// `MPI_Comm_delete_attr_function`: called when the program frees the communicator.
pub(crate) unsafe extern "C" fn forget(comm: usize, _key: c_int, value: *mut c_void, _extra: *mut c_void) -> c_int {
    // SAFETY: the attribute of this key is the value that `plan_for` set, and MPI deletes it once.
    let known = unsafe { Box::from_raw(value.cast::<Known>()) };
    // After MPI_Finalize has begun, MPI frees communicators itself.
    let Some(state) = running() else { return 0 };
    state.forget(state.mpi.abi.handle(comm));
    if let CommunicatorMode::Planned(plan) = known.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
        free(&state.mpi, *plan);
        state.plan_freed();
    }
    0
}

fn free(mpi: &Mpi, plan: Plan) {
    if let Some(node) = plan.node.get() {
        mpi.free(*node);
    }
    mpi.free(plan.site);
    mpi.free(plan.private);
}
