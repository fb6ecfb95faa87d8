//! Members of a job: joining, leaving, and the news that others get.

use member::last_route::RETURN;
use types::id::SlotKind;
use types::{Identity, JobId, NodeId, SiteId, Slot};
use wire::Passage;
use wire::control::JobMessage;

use super::{Effect, Leave, Table, Timer, TrunkId};
use crate::table::error::JobError;
use crate::table::job::is_rank;

impl<M: Clone + PartialEq> Table<M> {
    /// Admits a member that has proved the job's secret.
    ///
    /// # Errors
    /// The reason for not admitting it.
    pub(crate) fn join(&mut self, id: JobId, identity: Identity, member: M) -> Result<(), JobError> {
        self.may_join(id, identity)?;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.members.insert(identity.slot, member.clone());
            job.lost.remove(&identity.slot);
            let is_last = is_rank(identity.slot) && job.is_whole();
            self.tell_what_is_away(id, &member);
            if is_last {
                self.say_here(id);
            }
        }
        Ok(())
    }

    /// Notifies a new member of the sites that cannot be reached now.
    pub(crate) fn tell_what_is_away(&mut self, id: JobId, member: &M) {
        let Some(job) = self.jobs.get(&id) else { return };
        for (at, site) in job.sites.iter().enumerate().filter(|(at, _)| *at != usize::from(job.own.0)) {
            if !site.routes().iter().any(|route| self.trunks[route.0].up) {
                let known = site.routes().first().map(|route| self.trunks[route.0].problem.clone());
                let reason = known.unwrap_or_else(|| "the job is not open there yet".to_owned());
                self.effects.push(Effect::Passage(member.clone(), SiteId(at as u16), Passage::Away(reason)));
            }
        }
    }

    /// Checks that a member may join; returns its initial window: the bytes that it may have in flight.
    ///
    /// # Errors
    /// The reason for not admitting it.
    pub(crate) fn may_join(&self, id: JobId, identity: Identity) -> Result<u32, JobError> {
        self.secret(id)?;
        let open = self.jobs.get(&id);
        let job = open.ok_or_else(|| JobError::NotOpen { job: id, site: self.site.clone() })?;
        job.may_join(identity, &self.site)?;
        if job.members.contains_key(&identity.slot) {
            return Err(JobError::Connected { job: id, slot: identity.slot });
        }
        Ok(job.grant.window)
    }

    /// Handles the end of a member's connection.
    pub(crate) fn leave(&mut self, id: JobId, slot: Slot, member: &M, how: Leave) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.members.get(&slot) != Some(member) {
            return;
        }
        job.members.remove(&slot);
        let reason = match how {
            Leave::Goodbye if slot == Slot::LAUNCHER => return self.close(id, "the launcher has ended"),
            Leave::Goodbye => return,
            Leave::Silent(reason) => {
                if let SlotKind::Agent(node) = slot.kind() {
                    self.out_of_reach(id, node);
                }
                reason
            }
            // The member reconnects if a reset broke its connection. Other gateways of the site may have it too.
            Leave::Lost(reason) if job.watches(slot) && !job.closing && !job.waits() => {
                job.lost.insert(slot, reason);
                return self.effects.push(Effect::Timer(id, job.epoch, Timer::Return(slot), RETURN));
            }
            Leave::Lost(reason) => reason,
        };
        self.is_lost(id, slot, reason);
    }

    /// Handles a silent agent. The launcher ends the job if no gateway reaches the agent's node. But perhaps only this
    /// gateway does not reach it: then its frames for the node's ranks go nowhere, although its trunks are up. So it
    /// drops these ranks, and gateways of other sites prefer the gateways that reach all ranks. A rank that still can
    /// dials again.
    fn out_of_reach(&mut self, id: JobId, node: NodeId) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| self.siblings && !job.closing) else { return };
        let own = job.own;
        let place = job.roster.nodes().find(|(site, at, ..)| (*site, *at) == (own, node));
        let Some(there) = place.map(|(.., first, entry)| first.0..first.0 + entry.ranks) else { return };
        let is_there = |slot: &Slot, _: &mut M| match slot.kind() {
            SlotKind::Rank(rank, _) => there.contains(&rank.0),
            _ => false,
        };
        let dropped = job.members.extract_if(is_there).map(|(_, member)| member);
        let reason = "the agent of your node is silent at this gateway";
        self.effects.extend(dropped.map(|member| Effect::Dismiss(member, reason.to_owned())));
        self.say_here(id);
    }

    /// Handles the loss of a member that the job needs and that does not come back.
    pub(crate) fn is_lost(&mut self, id: JobId, slot: Slot, reason: String) {
        let Some(job) = self.jobs.get(&id) else { return };
        let identity = Identity { site: job.own, slot };
        if slot == Slot::LAUNCHER {
            self.cut_off(id, &format!("the launcher is gone: {reason}"));
        } else if !job.closing {
            let reason = reason + &self.perhaps_cancelled(id);
            self.tell_launcher(id, JobMessage::MemberLost { job: id, member: identity, reason });
        }
    }

    /// Takes a member's identity from a connection that is no longer used, if `which` returns true for it.
    pub(crate) fn displace(&mut self, id: JobId, slot: Slot, which: impl FnOnce(&M) -> bool) -> Option<M> {
        let members = &mut self.jobs.get_mut(&id)?.members;
        if members.get(&slot).is_some_and(which) { members.remove(&slot) } else { None }
    }

    /// Notifies members of jobs (all jobs, or the `only` one) of a change in a trunk that is one of their routes.
    /// `passage` makes the message; its argument is true if there are other routes.
    pub(crate) fn tell_members(
        &mut self,
        only: Option<JobId>,
        trunk: TrunkId,
        passage: impl Fn(bool) -> Option<Passage>,
    ) {
        for (_, job) in self.jobs.iter().filter(|(id, job)| !job.closing && only.is_none_or(|only| only == **id)) {
            for (at, site) in job.sites.iter().enumerate().filter(|(_, site)| site.routes().contains(&trunk)) {
                let others = site.routes().iter().any(|route| *route != trunk && self.trunks[route.0].up);
                let Some(passage) = passage(others) else { continue };
                let told = |member: &M| Effect::Passage(member.clone(), SiteId(at as u16), passage.clone());
                self.effects.extend(job.members.values().map(told));
            }
        }
    }
}
