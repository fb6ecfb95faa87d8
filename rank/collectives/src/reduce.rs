//! `MPI_Reduce` and `MPI_Allreduce`: inside each site (`group`), then between the sites' leaders.
//!
//! Partial results of sites are combined in the order of sites. MPI requires rank order for operations that do not
//! commute, so those are covered only if each site's ranks are consecutive. All ranks get the same bits, because every
//! leader combines the same partial results in the same order.

use std::ffi::{c_int, c_void};

use crate::abi::Handle;
use crate::calls::Elements;
use crate::communicator::{Plan, plan_for};
use crate::door::PASS;
use crate::leaders::Leaders;
use crate::mpi::{Fault, Mpi};
use crate::span::Span;
use crate::state::{CollectivesState, running};
use crate::strips::in_strips;

/// Minimum bytes of elements that are divided into strips.
const IN_STRIPS: u64 = 64 << 10;

/// A reduction as requested by the program.
struct ReductionCall {
    from: *mut c_void,
    to: *mut c_void,
    count: i64,
    datatype: Handle,
    operation: Handle,
    bytes: u64,
}

/// The arguments common to all reductions, as passed.
struct Call {
    from: *mut c_void,
    to: *mut c_void,
    count: i64,
    datatype: usize,
    operation: usize,
    comm: usize,
}

impl ReductionCall {
    /// `None`: the call is left to the MPI library, on all ranks alike, since MPI demands the same count, datatype and
    /// operation on all of them.
    fn new(state: &CollectivesState, call: &Call, comm: Handle) -> Result<Option<ReductionCall>, Fault> {
        let (mpi, abi) = (&state.mpi, &state.mpi.abi);
        let (datatype, operation) = (abi.handle(call.datatype), abi.handle(call.operation));
        let nothing = comm == abi.comm_null || datatype == abi.datatype_null || operation == abi.op_null;
        let count = call.count;
        if nothing || count < 0 {
            return Ok(None);
        }
        let bytes = u64::try_from(mpi.type_size(datatype)?).unwrap_or(0).saturating_mul(count as u64);
        Ok(Some(ReductionCall { from: call.from, to: call.to, count, datatype, operation, bytes }))
    }

    fn elements(&self) -> Elements {
        Elements { start: self.from, count: self.count, datatype: self.datatype }
    }

    /// Returns true if the plan's order of combining is allowed and wanted.
    fn suits(&self, mpi: &Mpi, plan: &Plan) -> Result<bool, Fault> {
        Ok(!plan.exact && (plan.layout.is_ordered() || mpi.is_commutative(self.operation)?))
    }

    /// Returns true if several ranks of each site carry the elements, after each node has combined its own.
    fn suits_strips(&self, mpi: &Mpi, plan: &Plan) -> Result<bool, Fault> {
        Ok(self.bytes >= IN_STRIPS && (plan.layout.nodes.is_ordered() || mpi.is_commutative(self.operation)?))
    }
}

/// Runs `work` with the plan of the communicator if the arguments and the plan allow us to make the reduction. `allows`
/// gets the plan, and whether the elements are in place.
fn planned(
    call: &Call,
    allows: impl FnOnce(&Plan, bool) -> bool,
    work: impl FnOnce(&Mpi, &Plan, &ReductionCall) -> Result<(), Fault>,
) -> c_int {
    let Some(state) = running() else { return PASS };
    let comm = state.mpi.abi.handle(call.comm);
    let run = || {
        let Some(mut asked) = ReductionCall::new(state, call, comm)? else {
            return Ok(PASS);
        };
        let Some(planned) = plan_for(state, comm, asked.bytes)? else { return Ok(PASS) };
        let Some(plan) = planned.plan() else { return Ok(PASS) };
        let in_place = asked.from as usize == state.mpi.abi.in_place;
        if asked.bytes == 0 || !allows(plan, in_place) || !asked.suits(&state.mpi, plan)? {
            return Ok(PASS);
        }
        // Only in strips can there be more elements than an `int` can count.
        if c_int::try_from(asked.count).is_err() && !asked.suits_strips(&state.mpi, plan)? {
            return Ok(PASS);
        }
        if in_place {
            asked.from = asked.to;
        }
        work(&state.mpi, plan, &asked)?;
        Ok(0)
    };
    run().unwrap_or_else(|fault| state.mpi.raise(comm, fault))
}

/// `MPI_Reduce` for the layer.
pub(crate) unsafe extern "C" fn reduce(
    from: *mut c_void,
    to: *mut c_void,
    count: i64,
    datatype: usize,
    operation: usize,
    root: c_int,
    comm: usize,
) -> c_int {
    planned(
        &Call { from, to, count, datatype, operation, comm },
        |plan, in_place| {
            usize::try_from(root).is_ok_and(|root| root < plan.layout.sites.len()) && (!in_place || is_root(plan, root))
        },
        // SAFETY: the program's promise to MPI_Reduce.
        |mpi, plan, asked| unsafe { to_root(mpi, plan, asked, root as u32) },
    )
}

/// `MPI_Allreduce` for the layer.
pub(crate) unsafe extern "C" fn allreduce(
    from: *mut c_void,
    to: *mut c_void,
    count: i64,
    datatype: usize,
    operation: usize,
    comm: usize,
) -> c_int {
    planned(
        &Call { from, to, count, datatype, operation, comm },
        |_, _| true,
        // SAFETY: the program's promise to MPI_Allreduce.
        |mpi, plan, asked| unsafe { to_all(mpi, plan, asked) },
    )
}

fn is_root(plan: &Plan, root: c_int) -> bool {
    u32::try_from(root) == Ok(plan.rank)
}

/// # Safety
/// `asked` is as MPI demands.
unsafe fn to_root(mpi: &Mpi, plan: &Plan, asked: &ReductionCall, root: u32) -> Result<(), Fault> {
    let (from, to, operation) = (asked.elements(), asked.to, asked.operation);
    if asked.suits_strips(mpi, plan)? {
        // SAFETY: the caller's promise.
        return unsafe { in_strips(mpi, plan, from, to, operation, Some(root)) };
    }
    let leaders = Leaders::new(mpi, plan, Some(root));
    let mut own = Span::new(mpi, if leaders.leads() { from.count } else { 0 }, from.datatype)?;
    let own = Elements { count: from.count, ..own.elements() };
    // SAFETY: the program's elements, and room for as many at the leader.
    unsafe { leaders.group().reduce(from, own.start, operation) }?;
    if !leaders.leads() {
        return Ok(());
    }
    if !is_root(plan, root as c_int) {
        // SAFETY: the elements that were reduced above.
        return unsafe { leaders.exchange([(leaders.site_of(root), own)], []) };
    }
    // SAFETY: our own memory, and the program's for the result.
    unsafe { receive_and_combine(mpi, plan, &leaders, false, own, to, operation) }
}

/// # Safety
/// `asked` is as MPI demands.
unsafe fn to_all(mpi: &Mpi, plan: &Plan, asked: &ReductionCall) -> Result<(), Fault> {
    let (from, to, operation) = (asked.elements(), asked.to, asked.operation);
    if asked.suits_strips(mpi, plan)? {
        // SAFETY: the caller's promise.
        return unsafe { in_strips(mpi, plan, from, to, operation, None) };
    }
    let leaders = Leaders::new(mpi, plan, None);
    let mut own = Span::new(mpi, if leaders.leads() { from.count } else { 0 }, from.datatype)?;
    let own = Elements { count: from.count, ..own.elements() };
    // SAFETY: the program's elements, and room for as many at the leader.
    unsafe { leaders.group().reduce(from, own.start, operation) }?;
    if leaders.leads() {
        // SAFETY: our own memory, and the program's for the result.
        unsafe { receive_and_combine(mpi, plan, &leaders, true, own, to, operation) }?;
    }
    // SAFETY: the program's room for the result.
    unsafe { leaders.group().broadcast(Elements { start: to, ..from }) }
}

/// Receives as many elements as `own` from each other site's leader, and combines all into `to`. With `tells`, all
/// leaders make this call, and each also sends `own` to the others.
///
/// # Safety
/// `own` is our own memory, which is overwritten; `to` has room for as many elements.
unsafe fn receive_and_combine(
    mpi: &Mpi,
    plan: &Plan,
    leaders: &Leaders<'_>,
    tells: bool,
    own: Elements,
    to: *mut c_void,
    operation: Handle,
) -> Result<(), Fault> {
    let room = |site| Ok((site, Span::new(mpi, own.count, own.datatype)?));
    let mut parts: Vec<(usize, Span)> = leaders.others().map(room).collect::<Result<_, Fault>>()?;
    let mut all: Vec<(usize, Elements)> = parts.iter_mut().map(|(site, span)| (*site, span.elements())).collect();
    // SAFETY: the caller's promise, and our own memory for each part.
    unsafe {
        match tells {
            true => leaders.tell(own, &all),
            false => leaders.exchange([], all.iter().copied()),
        }?;
        all.push((leaders.own_site(), own));
        combine(mpi, plan, all, to, operation)
    }
}

/// Combines the elements of all sites in the order of sites, and copies the result to `to`.
///
/// # Safety
/// `all` are in our own memory, and are overwritten; `to` has room for the elements.
unsafe fn combine(
    mpi: &Mpi,
    plan: &Plan,
    all: Vec<(usize, Elements)>,
    to: *mut c_void,
    operation: Handle,
) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    let total = unsafe { combined(mpi, all, operation) }?;
    // SAFETY: the caller's promise.
    unsafe { mpi.copy(total, Elements { start: to, ..total }, plan.rank, plan.private) }
}

/// Combines elements in the order of their numbers. The result is in the memory of the elements with the highest
/// number.
///
/// # Safety
/// All elements can be overwritten; there is at least one entry.
pub(crate) unsafe fn combined(
    mpi: &Mpi,
    mut all: Vec<(usize, Elements)>,
    operation: Handle,
) -> Result<Elements, Fault> {
    all.sort_by_key(|(number, _)| *number);
    let mut rest = all.into_iter().map(|(_, elements)| elements);
    let Some(mut total) = rest.next() else { return Err(Fault::NO_MEMORY) };
    for next in rest {
        // SAFETY: the caller's promise.
        unsafe { mpi.combine(total, next.start, operation) }?;
        total = next;
    }
    Ok(total)
}
