//! One rank of each site, through which a site's data cross trunks.

use crate::calls::{Elements, IN_ORDER};
use crate::communicator::Plan;
use crate::mpi::{Fault, Mpi};
use crate::requests::Requests;

/// The leaders of one call.
pub(crate) struct Leaders<'a> {
    mpi: &'a Mpi,
    plan: &'a Plan,
    /// By site.
    ranks: Vec<u32>,
    own_site: usize,
}

impl<'a> Leaders<'a> {
    /// The first rank of each site. `root`: leads its own site, if there is one.
    pub(crate) fn new(mpi: &'a Mpi, plan: &'a Plan, root: Option<u32>) -> Leaders<'a> {
        let mut ranks: Vec<u32> = plan.layout.members.iter().filter_map(|members| members.first().copied()).collect();
        if let Some(root) = root {
            ranks[usize::from(plan.layout.sites[root as usize])] = root;
        }
        let own_site = usize::from(plan.layout.sites[plan.rank as usize]);
        Leaders { mpi, plan, ranks, own_site }
    }

    pub(crate) fn own_site(&self) -> usize {
        self.own_site
    }

    /// All sites but this rank's.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own_site;
        (0..self.ranks.len()).filter(move |site| *site != own)
    }

    /// Whether this rank leads its site.
    pub(crate) fn leads(&self) -> bool {
        self.ranks[self.own_site] == self.plan.rank
    }

    /// The leader's number in its site's own communicator.
    pub(crate) fn inside(&self) -> u32 {
        let (members, leader) = (&self.plan.layout.members[self.own_site], self.ranks[self.own_site]);
        members.iter().position(|member| *member == leader).unwrap_or(0) as u32
    }

    /// The leader of this rank's own site.
    pub(crate) fn own_leader(&self) -> u32 {
        self.ranks[self.own_site]
    }

    /// The leader of a site.
    pub(crate) fn of_site(&self, site: usize) -> u32 {
        self.ranks[site]
    }

    /// The ranks of this rank's site.
    pub(crate) fn members(&self) -> &'a [u32] {
        &self.plan.layout.members[self.own_site]
    }

    /// The site of a rank.
    pub(crate) fn site_of(&self, rank: u32) -> usize {
        usize::from(self.plan.layout.sites[rank as usize])
    }

    /// Sends to and receives from leaders of other sites, all at once, and waits for all of it.
    ///
    /// # Safety
    /// All elements are as MPI demands, what is received overlaps nothing, and all of it outlives the call.
    pub(crate) unsafe fn exchange(
        &self,
        sends: impl IntoIterator<Item = (usize, Elements)>,
        receives: impl IntoIterator<Item = (usize, Elements)>,
    ) -> Result<(), Fault> {
        let mut requests = Requests::new(self.mpi, 2 * self.ranks.len());
        for (site, into) in receives {
            let from = self.ranks[site];
            // SAFETY: the caller's promise.
            unsafe { requests.receive(into, (from, IN_ORDER), self.plan.private) }?;
        }
        for (site, from) in sends {
            let to = self.ranks[site];
            // SAFETY: the caller's promise.
            unsafe { requests.send(from, (to, IN_ORDER), self.plan.private) }?;
        }
        requests.finish()
    }
}
