//! The ranks of one site, or of one node, working together: reductions to one of them, broadcasts from one of them.
//!
//! We use the MPI library's own functions only where they are correct. Intel MPI 2021.18's `MPI_Reduce` is not: results
//! are wrong from some 1,100 elements of `MPI_DOUBLE_INT` on, sooner within a node, and the memory of ranks other than
//! the root is overwritten. Its collectives in shared memory treat gaps of a datatype as data. So with Intel MPI,
//! elements are combined along a binomial tree of messages, and with all libraries, elements with gaps are broadcast
//! packed.

use crate::abi::Handle;
use crate::calls::{Elements, IN_ORDER};
use crate::communicator::Plan;
use crate::mpi::{Fault, Mpi, Pointer};
use crate::payload::{Payload, TypedBuffer};
use crate::requests::Requests;
use crate::span::Span;

/// A group of ranks at this rank's site.
pub(crate) struct SiteGroup<'a> {
    pub mpi: &'a Mpi,
    pub plan: &'a Plan,
    /// The MPI library's communicator of these ranks, in the same order.
    pub comm: Handle,
    pub members: &'a [u32],
    /// The rank that gets a reduction's result, or holds the data to broadcast.
    pub root: u32,
}

impl SiteGroup<'_> {
    fn is_root(&self) -> bool {
        self.plan.rank == self.root
    }

    /// The root's number in the group's communicator.
    pub(crate) fn root_inside(&self) -> u32 {
        self.members.iter().position(|member| *member == self.root).unwrap_or(0) as u32
    }

    /// Combines the members' elements `from` into the root's `to`, which may be the same memory as its `from`.
    ///
    /// # Safety
    /// `from` is as MPI demands; at the root, `to` has room for as many elements.
    pub(crate) unsafe fn reduce(&self, from: Elements, to: Pointer, operation: Handle) -> Result<(), Fault> {
        let mpi = self.mpi;
        if !mpi.reduces {
            // SAFETY: the caller's promise.
            return unsafe { self.reduce_by_messages(from, to, operation) };
        }
        let in_place = Elements { start: mpi.abi.in_place as Pointer, ..from };
        let from = if self.is_root() && from.start == to { in_place } else { from };
        // SAFETY: the caller's promise.
        unsafe { mpi.reduce(from, to, operation, self.root_inside(), self.comm) }
    }

    /// # Safety
    /// As [`SiteGroup::reduce`].
    unsafe fn reduce_by_messages(&self, from: Elements, to: Pointer, operation: Handle) -> Result<(), Fault> {
        let (mpi, plan) = (self.mpi, self.plan);
        let order = self.order(mpi.is_commutative(operation)?);
        let (children, parent) = binomial(&order, plan.rank);
        // The last child's elements can be combined directly into the result's memory.
        let result = (self.is_root() && order[0] == self.root).then_some(to);
        let (mut total, mut _memory) = (from, None);
        for (at, child) in children.iter().enumerate() {
            let mut span = None;
            let into = match result.filter(|to| at + 1 == children.len() && *to != from.start) {
                Some(to) => Elements { start: to, ..from },
                None => span.insert(Span::new(mpi, from.count, from.datatype)?).elements(),
            };
            // SAFETY: the root's room for the result, or our own memory; nobody else uses either.
            unsafe {
                self.receive(into, *child)?;
                mpi.combine(total, into.start, operation)?;
            }
            (total, _memory) = (into, span);
        }
        if let Some(parent) = parent {
            // SAFETY: the program's elements, or our own memory.
            unsafe { self.send(total, parent) }?;
        }
        let to = Elements { start: to, ..from };
        // SAFETY: the caller's promise.
        unsafe {
            match (order[0] == plan.rank, self.is_root()) {
                (true, true) if total.start != to.start => mpi.copy(total, to, plan.rank, plan.private),
                (true, false) => self.send(total, self.root),
                (false, true) => self.receive(to, order[0]),
                _ => Ok(()),
            }
        }
    }

    /// The order in which to combine the members. If any order is allowed, the root comes first, and ranks of a node
    /// are next to each other.
    fn order(&self, any: bool) -> Vec<u32> {
        if !any {
            return self.members.to_vec();
        }
        let nodes = &self.plan.layout.nodes;
        let site = usize::from(self.plan.layout.sites[self.root as usize]);
        let all = nodes.beginning_with(site, self.root).into_iter().flatten();
        all.filter(|rank| self.members.contains(rank)).collect()
    }

    /// Copies the root's elements to all members.
    ///
    /// # Safety
    /// `elements` are as MPI demands.
    pub(crate) unsafe fn broadcast(&self, elements: Elements) -> Result<(), Fault> {
        let (mpi, Elements { start, count, datatype }) = (self.mpi, elements);
        let place = TypedBuffer { buffer: start, count, datatype, size: mpi.type_size(datatype)? };
        // SAFETY: the caller's promise.
        let mut payload = unsafe { Payload::of(mpi, place, self.is_root(), self.plan.private) }?;
        let (start, count) = (payload.start().cast(), payload.length() as i64);
        let bytes = Elements { start, count, datatype: mpi.abi.byte };
        // SAFETY: the program's memory, or our own copy.
        unsafe { mpi.broadcast(bytes, self.root_inside(), self.comm) }?;
        if self.is_root() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { payload.deliver(mpi, self.plan.private) }
    }

    /// # Safety
    /// As [`Mpi::send_elements`].
    unsafe fn send(&self, from: Elements, to: u32) -> Result<(), Fault> {
        let mut requests = Requests::new(self.mpi, 1);
        // SAFETY: the caller's promise.
        unsafe { requests.send(from, (to, IN_ORDER), self.plan.private) }?;
        requests.finish()
    }

    /// # Safety
    /// As [`Mpi::receive_elements`].
    unsafe fn receive(&self, into: Elements, from: u32) -> Result<(), Fault> {
        let mut requests = Requests::new(self.mpi, 1);
        // SAFETY: the caller's promise.
        unsafe { requests.receive(into, (from, IN_ORDER), self.plan.private) }?;
        requests.finish()
    }
}

/// The children and the parent of a rank in a binomial tree over `order`, whose first rank is the tree's root. A rank's
/// own contribution and those of its children, one after the other, are adjacent in the order.
fn binomial(order: &[u32], rank: u32) -> (Vec<u32>, Option<u32>) {
    let own = order.iter().position(|other| *other == rank).unwrap_or(0);
    let mut children = Vec::new();
    let mut distance = 1;
    while distance < order.len() {
        if own & distance != 0 {
            return (children, Some(order[own - distance]));
        }
        children.extend(order.get(own + distance));
        distance *= 2;
    }
    (children, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contributions that reach a rank, in the order of combining.
    fn combined(order: &[u32], rank: u32) -> Vec<u32> {
        let below = binomial(order, rank).0.into_iter().flat_map(|child| combined(order, child));
        std::iter::once(rank).chain(below).collect()
    }

    #[test]
    fn a_tree_combines_everything_once_and_in_order() {
        for count in 1..40 {
            let order: Vec<u32> = (0..count).map(|at| (at * 7 + 3) % 41).collect();
            assert_eq!(combined(&order, order[0]), order);
            for rank in &order {
                let (children, parent) = binomial(&order, *rank);
                assert!(children.iter().all(|child| binomial(&order, *child).1 == Some(*rank)));
                assert_eq!(parent.is_none(), *rank == order[0]);
            }
        }
    }
}
