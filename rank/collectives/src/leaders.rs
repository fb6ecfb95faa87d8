//! Leaders: one rank of each site, which carries the site's data across trunks.

use types::SiteId;

use crate::calls::{Elements, IN_ORDER};
use crate::communicator::Plan;
use crate::group::SiteGroup;
use crate::mpi::{Fault, Mpi};
use crate::payload::{Payload, TypedBuffer};
use crate::requests::Requests;
use crate::shares::{PendingShare, Shares, Trees};

/// The leaders of one call.
pub(crate) struct Leaders<'a> {
    mpi: &'a Mpi,
    plan: &'a Plan,
    /// By site.
    ranks: Vec<u32>,
    own_site: usize,
}

impl<'a> Leaders<'a> {
    /// The first rank of each site leads it. If there is a `root`, it leads its own site.
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

    /// All sites except this rank's.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own_site;
        (0..self.ranks.len()).filter(move |site| *site != own)
    }

    /// Returns true if this rank leads its site.
    pub(crate) fn leads(&self) -> bool {
        self.ranks[self.own_site] == self.plan.rank
    }

    /// The leader's number in its site's own communicator.
    pub(crate) fn inside(&self) -> u32 {
        self.group().root_inside()
    }

    /// The ranks of this rank's site, with its leader as root.
    pub(crate) fn group(&self) -> SiteGroup<'a> {
        let (mpi, plan) = (self.mpi, self.plan);
        SiteGroup { mpi, plan, comm: plan.site, members: self.members(), root: self.own_leader() }
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

    /// Sends `own` to all other leaders, and receives as many elements from each of them into `theirs`. With several
    /// other sites, gateways copy the elements along the fastest trees of sites. All leaders of a communicator must
    /// call this, and the call has no root.
    ///
    /// # Safety
    /// As [`Leaders::exchange`].
    pub(crate) unsafe fn tell(&self, own: Elements, theirs: &[(usize, Elements)]) -> Result<(), Fault> {
        match &self.plan.shares {
            // SAFETY: the caller's promise.
            Some(shares) => unsafe { self.share(shares, own, theirs) },
            // SAFETY: the caller's promise.
            None => unsafe { self.exchange(self.others().map(|site| (site, own)), theirs.iter().copied()) },
        }
    }

    /// # Safety
    /// As [`Leaders::exchange`].
    unsafe fn share(&self, shares: &Shares, own: Elements, theirs: &[(usize, Elements)]) -> Result<(), Fault> {
        let (mpi, private, number) = (self.mpi, self.plan.private, shares.reserve_for_leaders());
        let size = mpi.type_size(own.datatype)?;
        let payload = |elements: Elements, is_full| {
            let Elements { start, count, datatype } = elements;
            // SAFETY: the caller's promise.
            unsafe { Payload::of(mpi, TypedBuffer { buffer: start, count, datatype, size }, is_full, private) }
        };
        let mut mine = payload(own, true)?;
        let into = theirs.iter().map(|(site, elements)| Ok((*site, payload(*elements, false)?)));
        let mut into: Vec<(usize, Payload)> = into.collect::<Result<_, Fault>>()?;
        let mut awaited: Vec<PendingShare<'_>> = Vec::with_capacity(1 + into.len());
        // Our share goes first: the announcements that we await theirs go directly, which may take longer.
        let names = &self.plan.layout.names;
        let others: Vec<SiteId> = self.others().map(|site| names[site]).collect();
        let to: Vec<u32> = self.others().map(|site| self.ranks[site]).collect();
        let piece = (mine.start(), mine.length());
        let trees = Trees { own: names[self.own_site], others: &others, bytes: piece.1 as u64 };
        // SAFETY: nobody changes the elements meanwhile.
        awaited.push(begun(mpi, self.plan, || unsafe { shares.send(number, piece, &to, &trees) })?);
        for (site, payload) in &mut into {
            let piece = (payload.start(), payload.length());
            // SAFETY: the payload outlives the share, and only this share writes it.
            awaited.push(begun(mpi, self.plan, || unsafe { shares.receive(self.ranks[*site], number, piece) })?);
        }
        while !awaited.is_empty() {
            mpi.poke(private)?;
            shares.collect();
            let mut open = Vec::with_capacity(awaited.len());
            for mut share in awaited {
                if !share.has_ended()? {
                    open.push(share);
                }
            }
            awaited = open;
        }
        // SAFETY: the caller's promise.
        into.into_iter().try_for_each(|(_, payload)| unsafe { payload.deliver(mpi, private) })
    }

    /// Sends to and receives from leaders of other sites, all at once, and waits for all of it.
    ///
    /// # Safety
    /// All elements are as MPI demands, receive buffers overlap nothing, and all of them outlive the call.
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

/// Begins a share as soon as there is room for it.
fn begun<'s>(
    mpi: &Mpi,
    plan: &Plan,
    mut begin: impl FnMut() -> Result<Option<PendingShare<'s>>, Fault>,
) -> Result<PendingShare<'s>, Fault> {
    loop {
        if let Some(share) = begin()? {
            return Ok(share);
        }
        mpi.poke(plan.private)?;
    }
}
