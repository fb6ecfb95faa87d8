//! `MPI_Allgather` and `MPI_Allgatherv`: every block crosses to each other site once, and is distributed inside it.
//!
//! A site's short blocks cross together, between leaders. Long blocks go directly from their rank to one rank of each
//! other site, so that all network cards share the load. All ranks know the lengths of all blocks.

use std::ffi::c_int;

use crate::blocks::{Blocks, in_place, place};
use crate::bundle::LONGEST;
use crate::calls::{Elements, IN_ORDER, Parts};
use crate::communicator::{Plan, with_plan};
use crate::door::{BufferArguments, Sides};
use crate::leaders::Leaders;
use crate::mpi::{Fault, Mpi, Pointer};
use crate::payload::{Payload, TypedBuffer};
use crate::requests::Requests;
use crate::state::{CollectivesState, running};

/// Maximum total length of all blocks, in bytes: lengths are `int`s, and memory holds all blocks once more.
const MOST: u64 = 1 << 30;

/// `MPI_Allgather` for the layer.
pub(crate) unsafe extern "C" fn allgather(from: BufferArguments, to: BufferArguments, comm: usize) -> c_int {
    // SAFETY: the program's promise to MPI_Allgather.
    unsafe { all_gathered(from, |state, _| Blocks::equal(state, to), comm) }
}

/// `MPI_Allgatherv` for the layer.
pub(crate) unsafe extern "C" fn allgatherv(from: BufferArguments, to: Sides, comm: usize) -> c_int {
    // SAFETY: the program's promise to MPI_Allgatherv: the lists have an entry for each rank.
    unsafe { all_gathered(from, |state, ranks| Blocks::listed(state, to, ranks), comm) }
}

/// # Safety
/// The arguments are as MPI demands. `to` returns the blocks.
unsafe fn all_gathered(
    from: BufferArguments,
    to: impl FnOnce(&CollectivesState, usize) -> Result<Option<Blocks>, Fault>,
    comm: usize,
) -> c_int {
    let kept = running().is_some_and(|state| in_place(state, from.buffer));
    with_plan(comm, 0, |state, plan| {
        let Some(to) = to(state, plan.layout.sites.len())? else { return Ok(None) };
        let own = if kept { Some(to.of(plan.rank)) } else { place(state, from)? };
        let Some(own) = own else { return Ok(None) };
        let ranks = 0..plan.layout.sites.len() as u32;
        let lengths: Vec<u64> = ranks.map(|rank| to.of(rank).bytes()).collect::<Result<_, Fault>>()?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        // The same on all ranks, since MPI demands that sent and received lengths match.
        if longest == 0 || lengths.iter().fold(0, |sum: u64, length| sum.saturating_add(*length)) > MOST {
            return Ok(None);
        }
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let together = longest <= LONGEST as u64;
        // SAFETY: the caller's promise.
        let gathered = unsafe {
            match together {
                true => between_leaders(&state.mpi, plan, own, lengths),
                false => between_ranks(&state.mpi, plan, own, lengths),
            }
        }?;
        for rank in (0..plan.layout.sites.len() as u32).filter(|rank| !kept || *rank != plan.rank) {
            // SAFETY: the caller's promise.
            unsafe { Payload::fill(&state.mpi, to.of(rank), gathered.of(rank), plan.private) }?;
        }
        Ok(Some(()))
    })
}

/// The bytes of all blocks, in an order of ranks.
struct Gathered {
    bytes: Vec<u8>,
    /// Length of each rank's block.
    lengths: Vec<usize>,
    starts: Vec<usize>,
}

impl Gathered {
    /// `groups`: the ranks whose blocks follow each other. Also returns the range of each group's blocks.
    fn new(groups: &[Vec<u32>], lengths: Vec<usize>) -> Result<(Gathered, Parts), Fault> {
        let (mut starts, mut at) = (vec![0; lengths.len()], 0);
        let mut parts = Parts::default();
        for group in groups {
            let first = at;
            for rank in group {
                starts[*rank as usize] = at;
                at += lengths[*rank as usize];
            }
            parts.starts.push(first as c_int);
            parts.counts.push((at - first) as c_int);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(at).map_err(|_| Fault::NO_MEMORY)?;
        bytes.resize(at, 0);
        Ok((Gathered { bytes, lengths, starts }, parts))
    }

    fn of(&self, rank: u32) -> &[u8] {
        let (start, length) = (self.starts[rank as usize], self.lengths[rank as usize]);
        &self.bytes[start..start + length]
    }

    /// A byte range as elements.
    fn part(&mut self, mpi: &Mpi, start: usize, length: usize) -> Elements {
        Elements::bytes(mpi, &mut self.bytes[start..start + length])
    }

    fn of_group(&mut self, mpi: &Mpi, parts: &Parts, group: usize) -> Elements {
        self.part(mpi, parts.starts[group] as usize, parts.counts[group] as usize)
    }

    /// Copies in a rank's own block. MPI demands that it has the length that all ranks expect.
    ///
    /// # Safety
    /// `own` is as MPI demands.
    unsafe fn put(&mut self, mpi: &Mpi, own: TypedBuffer, plan: &Plan) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let mut payload = unsafe { Payload::of(mpi, own, true, plan.private) }?;
        // SAFETY: as above.
        let bytes = unsafe { payload.bytes() };
        let (start, length) = (self.starts[plan.rank as usize], self.lengths[plan.rank as usize]);
        if bytes.len() > length {
            return Err(mpi.truncated());
        }
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// # Safety
/// `own` is as MPI demands.
unsafe fn between_leaders(mpi: &Mpi, plan: &Plan, own: TypedBuffer, lengths: Vec<usize>) -> Result<Gathered, Fault> {
    let leaders = Leaders::new(mpi, plan, None);
    let (mut gathered, sites) = Gathered::new(&plan.layout.members, lengths)?;
    // SAFETY: the caller's promise.
    unsafe { gathered.put(mpi, own, plan) }?;
    let (mut inside, members) = (Parts::default(), leaders.members());
    inside.counts.extend(members.iter().map(|member| gathered.lengths[*member as usize] as c_int));
    inside.starts.extend(members.iter().map(|member| gathered.starts[*member as usize] as c_int));
    let mine = gathered.part(mpi, gathered.starts[plan.rank as usize], gathered.lengths[plan.rank as usize]);
    let all: Pointer = gathered.bytes.as_mut_ptr().cast();
    let mine = if leaders.leads() { Elements { start: mpi.abi.in_place as Pointer, ..mine } } else { mine };
    // SAFETY: our own memory, with room for the blocks of all ranks.
    unsafe { mpi.gather_bytes(mine, all, &inside, leaders.inside(), plan.site) }?;
    if leaders.leads() {
        let own = gathered.of_group(mpi, &sites, leaders.own_site());
        let theirs: Vec<(usize, Elements)> =
            leaders.others().map(|site| (site, gathered.of_group(mpi, &sites, site))).collect();
        // SAFETY: the sites' blocks do not overlap.
        unsafe { leaders.tell(own, &theirs) }?;
    }
    let all = Elements::bytes(mpi, &mut gathered.bytes);
    // SAFETY: our own memory.
    unsafe { mpi.broadcast(all, leaders.inside(), plan.site) }?;
    Ok(gathered)
}

/// # Safety
/// `own` is as MPI demands.
unsafe fn between_ranks(mpi: &Mpi, plan: &Plan, own: TypedBuffer, lengths: Vec<usize>) -> Result<Gathered, Fault> {
    let (own_site, members) = (usize::from(plan.layout.sites[plan.rank as usize]), &plan.layout.members);
    // The ranks of other sites that send to this rank of ours.
    let senders = |to: usize| {
        let others = members.iter().enumerate().filter(move |(site, _)| *site != own_site);
        others.flat_map(move |(_, ranks)| ranks.iter().copied().skip(to).step_by(members[own_site].len()))
    };
    let group = |(number, member): (usize, &u32)| std::iter::once(*member).chain(senders(number)).collect();
    let groups: Vec<Vec<u32>> = members[own_site].iter().enumerate().map(group).collect();
    let (mut gathered, parts) = Gathered::new(&groups, lengths)?;
    // SAFETY: the caller's promise.
    unsafe { gathered.put(mpi, own, plan) }?;
    let number = members[own_site].iter().position(|member| *member == plan.rank).unwrap_or(0);
    let mut requests = Requests::new(mpi, groups[number].len() + members.len());
    for sender in &groups[number][1..] {
        let into = gathered.part(mpi, gathered.starts[*sender as usize], gathered.lengths[*sender as usize]);
        // SAFETY: our own memory, which outlives the requests.
        unsafe { requests.receive(into, (*sender, IN_ORDER), plan.private) }?;
    }
    let mine = gathered.part(mpi, gathered.starts[plan.rank as usize], gathered.lengths[plan.rank as usize]);
    for (_, ranks) in members.iter().enumerate().filter(|(site, _)| *site != own_site) {
        let to = ranks[number % ranks.len()];
        // SAFETY: as above.
        unsafe { requests.send(mine, (to, IN_ORDER), plan.private) }?;
    }
    requests.finish()?;
    let all: Pointer = gathered.bytes.as_mut_ptr().cast();
    // SAFETY: our own memory, with room for all blocks.
    unsafe { mpi.allgather_bytes(all, &parts, plan.site) }?;
    Ok(gathered)
}
