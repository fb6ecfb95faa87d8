//! Nodes from a batch system for a job: requested before the job is opened, because its roster names them, and given
//! back with the job. Part of [`Table`]; `services::nodes` does the I/O.
//!
//! The launcher asks its own gateway, which asks the gateway of each site concerned. Until the job is open, an
//! allocation is given back if its asker is lost. From then on the nodes belong to the job: a gateway that stops leaves
//! them to the job, together with its agents.

use gateway_tasks::{AllocationNews, AllocationOrder};
use types::JobId;
use wire::Control;
use wire::control::{AllocatedNode, AllocationMessage, HeldAllocation, JobMessage, NodeAsk, Traffic};

use crate::log::log;
use crate::table::error::{AllocationError, JobError, Refused, Violation};
use crate::table::{Effect, Table, TrunkId};

/// Most jobs for which nodes are requested or held; each costs a process beside the gateway.
const MOST: usize = 256;
/// Most such jobs of one other site.
const MOST_OF_SITE: usize = MOST / 4;

/// A gateway's state of a job's nodes.
pub(crate) struct Allocation<M> {
    pub asker: Asker<M>,
    /// Trunks over which this gateway asked other sites.
    asked: Vec<TrunkId>,
    /// This site's own allocation.
    own: Option<OwnAllocation>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Asker<M> {
    /// The launcher, which is connected here.
    Launcher(M),
    /// The launcher's site.
    Site(TrunkId),
    /// The asker is gone.
    Nobody,
}

impl<M> Asker<M> {
    /// The trunk to the launcher's site, unless that is this site.
    pub(crate) fn trunk(&self) -> Option<TrunkId> {
        if let Asker::Site(trunk) = self { Some(*trunk) } else { None }
    }
}

#[derive(Debug, Default)]
struct OwnAllocation {
    /// The allocation's name in the batch system, and its nodes.
    granted: Option<(String, Vec<AllocatedNode>)>,
    released: bool,
}

impl<M: Clone + PartialEq> Table<M> {
    /// Handles the launcher's request for nodes of a site whose trunk should be up.
    ///
    /// # Errors
    /// The refusing site, and its reason.
    pub(crate) fn allocate(
        &mut self,
        launcher: M,
        id: JobId,
        site: String,
        home: String,
        ask: NodeAsk,
    ) -> Result<(), Refused> {
        let own = self.site.clone();
        if home != own {
            return Err(Refused { site: own.clone(), why: JobError::WrongHome { home, site: own } });
        }
        let fits = self.check_memory(ask.beyond_home, 0);
        let begun = fits.and_then(|()| self.seek(id, Asker::Launcher(launcher)));
        begun.map_err(|error| Refused { site: own, why: error.into() })?;
        if site == self.site {
            return self.begin(id, ask).map_err(|error| Refused { site, why: error.into() });
        }
        let trunk = self.lead_trunk(&site).ok_or_else(|| {
            let (own, site) = (self.site.clone(), site.clone());
            Refused { site: site.clone(), why: JobError::UnknownSite { own, site } }
        })?;
        let info = &self.trunks[trunk.0];
        if !info.up {
            return Err(Refused { why: JobError::Unreached(info.problem.clone()), site });
        }
        if let Some(entry) = self.allocations.get_mut(&id) {
            entry.asked.push(trunk);
        }
        self.tell(trunk, AllocationMessage::Ask { job: id, site, home, ask });
        Ok(())
    }

    /// The trunk over which a site was asked for a job's nodes. The gateway that obtained them leads the job there.
    pub(crate) fn asked_for_nodes(&self, id: JobId, site: &str) -> Option<TrunkId> {
        let asked = &self.allocations.get(&id)?.asked;
        asked.iter().find(|trunk| self.trunks[trunk.0].site == site).copied()
    }

    /// Handles a request for nodes from the launcher's gateway.
    fn allocate_asked(&mut self, trunk: TrunkId, id: JobId, ask: NodeAsk) {
        let fits = self.check_memory(ask.elsewhere, self.kept_from(&self.trunks[trunk.0].site));
        let begun = fits.and_then(|()| self.seek(id, Asker::Site(trunk))).and_then(|()| self.begin(id, ask));
        if let Err(error) = begun {
            let (site, reason) = (self.site.clone(), error.to_string());
            log!(warn, &self.trunks[trunk.0].site, job = %id, reason, "nodes refused");
            self.tell(trunk, JobMessage::Refused { job: id, site, reason });
        }
    }

    /// Creates an entry, or finds the asker's own.
    fn seek(&mut self, id: JobId, asker: Asker<M>) -> Result<(), AllocationError> {
        if id == JobId::default() || self.jobs.contains_key(&id) {
            return Err(AllocationError::Late(id));
        }
        if let Some(entry) = self.allocations.get(&id) {
            return if entry.asker == asker { Ok(()) } else { Err(AllocationError::Anothers(id)) };
        }
        if let Some(trunk) = asker.trunk() {
            let site = &self.trunks[trunk.0].site;
            let theirs = |found: &&Allocation<M>| found.asker.trunk().is_some_and(|at| self.trunks[at.0].site == *site);
            if self.allocations.values().filter(theirs).count() >= MOST_OF_SITE {
                return Err(AllocationError::TooManyOfSite { site: site.clone(), most: MOST_OF_SITE });
            }
        }
        if self.allocations.len() >= MOST {
            return Err(AllocationError::TooMany(MOST));
        }
        self.allocations.insert(id, Allocation { asker, asked: Vec::new(), own: None });
        Ok(())
    }

    /// Checks that this many ranks at other sites would fit if the job were opened now. The job has agents too, and
    /// other jobs may come first, so a job that passes may still be refused when it is opened.
    fn check_memory(&self, elsewhere: u32, kept: u64) -> Result<(), AllocationError> {
        self.grants.check(elsewhere.into(), kept).map_err(AllocationError::NoMemory)
    }

    fn begin(&mut self, id: JobId, ask: NodeAsk) -> Result<(), AllocationError> {
        let Some(entry) = self.allocations.get_mut(&id) else { return Ok(()) };
        if entry.own.is_some() {
            return Err(AllocationError::Twice(id));
        }
        entry.own = Some(OwnAllocation::default());
        if let Some(suppressed) = self.may_log_of(id) {
            tracing::info!(suppressed, job = %id, ranks = ask.ranks, held = ask.held.is_some(), "nodes asked for");
        }
        self.effects.push(Effect::Allocate(AllocationOrder { job: id, ask }));
        Ok(())
    }

    /// Handles news of this site's own allocation.
    pub(crate) fn allocation_news(&mut self, id: JobId, news: AllocationNews) {
        let site = self.site.clone();
        let may_log = if let AllocationNews::Waiting(_) = news { None } else { self.may_log_of(id) };
        let Some(own) = self.allocations.get_mut(&id).and_then(|entry| entry.own.as_mut()) else { return };
        match news {
            AllocationNews::Waiting(state) => self.tell_asker(id, AllocationMessage::Waiting { job: id, site, state }),
            AllocationNews::Granted { id: name, nodes } => {
                if let Some(suppressed) = may_log {
                    tracing::info!(suppressed, job = %id, allocation = name, nodes = nodes.len(), "nodes granted");
                }
                own.granted = Some((name, nodes.clone()));
                self.tell_asker(id, AllocationMessage::Granted { job: id, site, nodes });
            }
            AllocationNews::Ended(reason) => {
                let released = own.released;
                if let Some(suppressed) = may_log {
                    tracing::info!(suppressed, job = %id, reason, released, "allocation ended");
                }
                if let Some(entry) = self.allocations.get_mut(&id) {
                    entry.own = None;
                }
                match self.jobs.get(&id) {
                    Some(job) if job.closing => self.finish(id),
                    Some(_) => self.refuse(id, reason),
                    None if released => {
                        self.tell_asker(
                            id,
                            JobMessage::Closed { job: id, site, traffic: Traffic::default(), led: true },
                        );
                    }
                    None => self.tell_asker(id, JobMessage::Refused { job: id, site, reason }),
                }
                self.forget(id);
            }
        }
    }

    /// Handles a message about nodes for a job from a trunk.
    ///
    /// # Errors
    /// No gateway that follows the protocol sends it: close the link.
    pub(crate) fn allocation_from_trunk(
        &mut self,
        trunk: TrunkId,
        message: AllocationMessage,
    ) -> Result<(), Violation> {
        let peer = &self.trunks[trunk.0].site;
        match message {
            AllocationMessage::Ask { job, site, home, ask } => {
                if home != *peer || site != self.site {
                    return Err(Violation(format!("site {peer} may not order nodes at another site")));
                }
                self.allocate_asked(trunk, job, ask);
            }
            AllocationMessage::Waiting { job, ref site, .. } | AllocationMessage::Granted { job, ref site, .. } => {
                if site != peer {
                    return Err(Violation(format!("site {peer} may not send news about another site")));
                }
                if self.allocations.get(&job).is_some_and(|entry| entry.asked.contains(&trunk)) {
                    self.tell_asker(job, message);
                }
            }
        }
        Ok(())
    }

    /// Handles news about a job that is not open, from a site that this gateway asked for nodes.
    pub(crate) fn news_before_opening(&mut self, id: JobId, trunk: TrunkId, message: JobMessage) {
        let Some(entry) = self.allocations.get_mut(&id).filter(|entry| entry.asked.contains(&trunk)) else { return };
        if matches!(message, JobMessage::Refused { .. } | JobMessage::Closed { .. }) {
            entry.asked.retain(|asked| *asked != trunk);
        }
        self.tell_asker(id, message);
    }

    /// Gives up the nodes of a job that was never opened.
    pub(crate) fn abandon(&mut self, id: JobId) {
        let Some(entry) = self.allocations.get_mut(&id).filter(|_| !self.jobs.contains_key(&id)) else { return };
        for trunk in entry.asked.clone() {
            self.tell(trunk, JobMessage::close(id));
        }
        if !self.release(id) {
            self.forget(id);
        }
    }

    /// Abandons the nodes of a job if this launcher requested them. Returns true if it did.
    pub(crate) fn abandoned_by(&mut self, id: JobId, launcher: &M) -> bool {
        let own = self.allocations.get(&id).is_some_and(|entry| entry.asker == Asker::Launcher(launcher.clone()));
        if own {
            self.abandon(id);
        }
        own
    }

    /// Abandons the nodes of a job that was never opened here, if the launcher's site requested them over this trunk.
    pub(crate) fn abandoned_over(&mut self, id: JobId, trunk: TrunkId) {
        if self.allocations.get(&id).is_some_and(|entry| entry.asker == Asker::Site(trunk)) {
            self.abandon(id);
        }
    }

    /// Abandons the nodes that a launcher requested: its connection has ended.
    pub(crate) fn launcher_gone(&mut self, launcher: &M) {
        let gone = Asker::Launcher(launcher.clone());
        let theirs: Vec<JobId> = self.allocations.iter().filter(|(_, e)| e.asker == gone).map(|(id, _)| *id).collect();
        for id in theirs {
            if let Some(entry) = self.allocations.get_mut(&id) {
                entry.asker = Asker::Nobody;
            }
            self.abandon(id);
        }
    }

    /// Handles the loss of a trunk, for jobs that are not open: nodes that were requested from this gateway over it are
    /// given back, and requests that this gateway sent over it count as refused.
    pub(crate) fn allocations_without(&mut self, trunk: TrunkId, reason: &str) {
        let unopened: Vec<JobId> = self.allocations.keys().filter(|id| !self.jobs.contains_key(id)).copied().collect();
        for id in unopened {
            let Some(entry) = self.allocations.get_mut(&id) else { continue };
            if entry.asker == Asker::Site(trunk) {
                entry.asker = Asker::Nobody;
                self.abandon(id);
            } else if entry.asked.contains(&trunk) {
                entry.asked.retain(|asked| *asked != trunk);
                let site = self.trunks[trunk.0].site.clone();
                let reason = format!("the trunk to it is lost: {reason}");
                self.tell_asker(id, JobMessage::Refused { job: id, site, reason });
            }
        }
    }

    /// Gives back this site's own allocation. Returns true if it still exists.
    pub(crate) fn release(&mut self, id: JobId) -> bool {
        let Some(own) = self.allocations.get_mut(&id).and_then(|entry| entry.own.as_mut()) else { return false };
        if !std::mem::replace(&mut own.released, true) {
            self.effects.push(Effect::Release(id));
        }
        true
    }

    /// Sends the end of the job to sites that were asked for nodes but are not in the roster it was opened with.
    pub(crate) fn close_allocations(&mut self, id: JobId) {
        let Some(entry) = self.allocations.get_mut(&id) else { return };
        let Some(job) = self.jobs.get(&id) else { return };
        for trunk in entry.asked.drain(..) {
            if !job.sites.iter().any(|site| site.trunk == Some(trunk)) {
                self.effects.push(Effect::ToTrunk(trunk, JobMessage::close(id).into()));
            }
        }
    }

    /// The batch system's name for a job's allocation here.
    pub(crate) fn allocation_id(&self, id: JobId) -> Option<String> {
        let own = self.allocations.get(&id)?.own.as_ref()?;
        own.granted.as_ref().map(|(name, _)| name.clone())
    }

    /// The batch job to name when a process is started on one of its nodes.
    pub(crate) fn allocation_of(&self, id: JobId, node: &str) -> Option<String> {
        let (name, nodes) = self.allocations.get(&id)?.own.as_ref()?.granted.as_ref()?;
        let of_node = nodes.iter().find(|granted| granted.name == node).map(|granted| granted.job(name));
        Some(of_node.unwrap_or_else(|| name.clone()))
    }

    /// Text on a further possible reason for a loss on the job's nodes: batch systems first kill the processes of a
    /// job, and report it later.
    pub(crate) fn perhaps_cancelled(&self, id: JobId) -> String {
        let told =
            |name| format!(", in batch job {name}, which may have been cancelled or have reached its time limit");
        let job = self.allocation_id(id).filter(|name| name != HeldAllocation::NODE_SERVICE);
        job.map_or(String::new(), told)
    }

    /// The site that requested a job's nodes; this site if none did.
    pub(crate) fn asker_site(&self, id: JobId) -> &str {
        let trunk = self.allocations.get(&id).and_then(|found| found.asker.trunk());
        trunk.map_or(&self.site, |trunk| &self.trunks[trunk.0].site)
    }

    /// Returns true if a node belongs to the site or to the job's allocation. The caller has checked whose allocation
    /// that is.
    pub(crate) fn has_node(&self, id: JobId, node: &str) -> bool {
        let own = self.allocations.get(&id).and_then(|entry| entry.own.as_ref()?.granted.as_ref());
        self.nodes.iter().any(|known| known == node)
            || own.is_some_and(|(_, nodes)| nodes.iter().any(|n| n.name == node))
    }

    /// Removes an entry that will not be needed again.
    fn forget(&mut self, id: JobId) {
        let done = |entry: &Allocation<M>| entry.own.is_none() && !matches!(entry.asker, Asker::Launcher(_));
        if !self.jobs.contains_key(&id) && self.allocations.get(&id).is_some_and(done) {
            self.allocations.remove(&id);
        }
    }

    fn tell_asker(&mut self, id: JobId, message: impl Into<Control>) {
        let message = message.into();
        let Some(entry) = self.allocations.get(&id) else { return };
        let effect = match &entry.asker {
            Asker::Launcher(launcher) => Effect::ToMember(launcher.clone(), message),
            Asker::Site(trunk) => Effect::ToTrunk(*trunk, message),
            Asker::Nobody => return,
        };
        self.effects.push(effect);
    }
}

#[cfg(test)]
mod tests;
