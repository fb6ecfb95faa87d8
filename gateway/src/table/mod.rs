//! The identity table and the jobs: who is admitted, where a frame goes, what to tell whom when something is lost.
//!
//! No sockets, no clock, no tasks: events come in through methods, and what is to be done about them is
//! queued as [`Effect`]s, which whoever does the I/O takes and carries out. `M` is its handle on a member's connection.
//! Start reading at [`Table::route`] for the path of a frame, at [`Table::open`] for the life of a job (`job`).

pub(crate) mod allocation;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod job;
pub(crate) mod message;
pub(crate) mod site;
pub(crate) mod window;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use hooks::AllocationOrder;
use types::{Identity, JobId, NodeId, SiteId, Slot};
use wire::control::{JobMessage, Part};
use wire::{Control, FrameHeader, Passage, Secret};

use crate::log::{self, Unsaid};
use crate::table::allocation::Allocation;
use crate::table::error::JobError;
use crate::table::job::{Job, is_rank, passage_without, trunks_to};
use crate::table::site::SitePhase;
use crate::table::window::Grants;

/// Index of a trunk: a pair of this gateway and one other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TrunkId(pub usize);

/// How long a job waits for trunks that are not up before it is refused.
pub(crate) const OPENING: Duration = Duration::from_millis(3000);
/// The same at a site that was asked over a trunk: shorter, so that its answer still arrives in time.
pub(crate) const OPENING_ASKED: Duration = Duration::from_millis(2200);
/// How long agents have to end by themselves.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// How long a launcher or an agent whose connection broke has to dial again, where the site has other gateways.
pub(crate) const RETURN: Duration = Duration::from_secs(2);
/// How long the home site waits for the others' last words.
pub(crate) const FAREWELL: Duration = Duration::from_secs(4);

/// How often a gateway asks whether a job to which nobody is connected is still wanted.
pub(crate) const WANTED: Duration = Duration::from_secs(2);

/// Jobs that ended and are remembered.
const ENDED: usize = 256;

/// Something to be done.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect<M> {
    /// Send a message to a local launcher.
    ToMember(M, Control),
    /// Send a message over a trunk.
    ToTrunk(TrunkId, Control),
    /// Start the agents of these nodes, then report by [`Table::agents_started`].
    StartAgents(JobId, Vec<(NodeId, String)>),
    /// Kill all agents of a job that still run; each is reported by [`Table::agent_exited`] as always.
    KillAgents(JobId),
    /// Ask for nodes, and report by [`Table::allocation_news`].
    Allocate(AllocationOrder),
    /// Give them back.
    Release(JobId),
    /// Say goodbye with a reason and close.
    Dismiss(M, String),
    /// Tell a member what became of the route to a site.
    Passage(M, SiteId, Passage),
    /// Call [`Table::timer`] after this long.
    Timer(JobId, u64, Timer, Duration),
    /// Call [`Table::patience_over`] after this long.
    Patience(TrunkId, u64, Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Trunks should be up.
    Opening,
    /// Agents should be gone.
    Grace,
    /// Other sites should have said their last word.
    Farewell,
    /// A launcher or an agent whose connection broke should have dialled again.
    Return(Slot),
    /// Somebody should be connected.
    Wanted,
}

/// Where a frame came from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// A member of this site, which is who the frame says.
    Member,
    Trunk(TrunkId),
}

/// Where a frame goes.
#[derive(Debug)]
pub(crate) enum Route<'a, M> {
    /// To a member of this site.
    Member(&'a M),
    /// Over a trunk.
    Trunk(TrunkId),
    /// Nowhere. `notice`: tell the sender why.
    Nowhere {
        /// Why, if it is to be told.
        notice: Option<String>,
    },
    /// The peer breaks the rules: close its connection.
    Violation(String),
}

/// A trunk as the table knows it.
#[derive(Clone, Debug)]
pub(crate) struct TrunkInfo {
    /// The site at its other end.
    pub site: String,
    /// A link of it is up.
    pub up: bool,
    /// What went wrong last, for the user.
    pub problem: String,
    /// Its gateway is not in the sites file any more.
    pub retired: bool,
    /// How often it came up or went, so that a timer knows whether it is still about the same.
    pub changes: u64,
}

impl TrunkInfo {
    /// A trunk that is not up yet.
    pub(crate) fn new(site: String) -> TrunkInfo {
        TrunkInfo { site, up: false, problem: String::new(), retired: false, changes: 0 }
    }
}

/// How a member left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// With a goodbye.
    Goodbye,
    /// Without: its connection broke. Its machine may be well.
    Lost(String),
    /// Without: it says nothing any more.
    Silent(String),
}

pub(crate) struct Table<M> {
    /// Name of this gateway's site.
    pub(crate) site: String,
    /// Which of the site's gateways it is, from 0.
    pub(crate) number: usize,
    /// The site has other gateways, to which its members are connected too.
    pub(crate) siblings: bool,
    /// Names of the site's nodes in the sites file.
    pub(crate) nodes: Vec<String>,
    pub(crate) trunks: Vec<TrunkInfo>,
    pub(crate) jobs: HashMap<JobId, Job<M>>,
    pub(crate) allocations: HashMap<JobId, Allocation<M>>,
    pub(crate) grants: Grants,
    /// How long jobs wait for a trunk that was up and is away.
    patience: Duration,
    pub(crate) effects: Vec<Effect<M>>,
    pub(crate) epoch: u64,
    /// Jobs that ended lately, the last at the end.
    pub(crate) ended: VecDeque<JobId>,
}

impl<M: Clone + PartialEq> Table<M> {
    /// The table of this site's gateway of that number.
    pub(crate) fn new(
        (site, number): (String, usize),
        nodes: Vec<String>,
        trunks: Vec<TrunkInfo>,
        memory: u64,
        patience: Duration,
    ) -> Table<M> {
        let grants = Grants::new(memory);
        let (jobs, allocations) = (HashMap::new(), HashMap::new());
        Table {
            site,
            number,
            siblings: false,
            nodes,
            trunks,
            jobs,
            allocations,
            grants,
            patience,
            effects: Vec::new(),
            epoch: 0,
            ended: VecDeque::new(),
        }
    }

    /// What is to be done since the last call.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect<M>> {
        std::mem::take(&mut self.effects)
    }

    /// Decides where a frame goes and counts it.
    pub(crate) fn route(&mut self, origin: Origin, header: &FrameHeader) -> Route<'_, M> {
        let bytes = u64::from(header.length) + wire::frame::HEADER_LEN as u64;
        let Some(job) = self.jobs.get_mut(&header.job) else {
            // The job may have been closed while the frame was in flight.
            return Route::Nowhere { notice: None };
        };
        let of_rank = is_rank(header.from.slot);
        if let Origin::Trunk(trunk) = origin {
            let peer = &self.trunks[trunk.0].site;
            if job.roster.site(header.from.site).is_none_or(|sender| sender.name != *peer) {
                return Route::Violation(format!(
                    "a frame of job {} from {} came from site {peer}",
                    header.job, header.from
                ));
            }
            if header.to.site != job.own {
                let text = format!("a frame of job {} for {} came to site {}", header.job, header.to, self.site);
                return Route::Violation(text);
            }
            if of_rank {
                job.traffic.received += bytes;
            }
        }
        if header.to.site == job.own {
            if matches!(origin, Origin::Member) && of_rank {
                job.traffic.local += bytes;
            }
            // Looked up twice because the borrow checker cannot return the first.
            if job.members.contains_key(&header.to.slot) {
                return Route::Member(&job.members[&header.to.slot]);
            }
            let notice = format!("{} is not connected to the gateway of site {}", header.to.slot, self.site);
            return Route::Nowhere { notice: Some(notice) };
        }
        let Some(site) = job.sites.get_mut(usize::from(header.to.site.0)) else {
            return Route::Violation(format!("job {} has no site #{}", header.job, header.to.site.0));
        };
        if let Some(trunk) = site.route(|route| self.trunks[route.0].up) {
            if of_rank {
                job.traffic.sent += bytes;
            }
            return Route::Trunk(trunk);
        }
        // Members have been told, and send it again when there is a route, unless there will be none.
        let name = job.roster.site(header.to.site).map_or("", |s| s.name.as_str());
        let notice = (!site.phase.reachable()).then(|| format!("site {name} cannot be reached"));
        Route::Nowhere { notice }
    }

    /// The secret that members of a job prove.
    ///
    /// # Errors
    /// The job is not open here.
    pub(crate) fn secret(&self, job: JobId) -> Result<Secret, JobError> {
        match self.jobs.get(&job) {
            Some(open) if !open.closing => Ok(open.secret.clone()),
            Some(_) => Err(JobError::Closing { job, site: self.site.clone() }),
            None => Err(JobError::NotOpen { job, site: self.site.clone() }),
        }
    }

    /// Whether a job that is not open here may be opened yet: it is none that has ended lately.
    pub(crate) fn may_come(&self, job: JobId) -> bool {
        job != JobId::default() && !self.jobs.contains_key(&job) && !self.ended.contains(&job)
    }

    /// Notes that a job has ended.
    pub(crate) fn has_ended(&mut self, job: JobId) {
        if self.ended.len() >= ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(job);
    }

    /// Admits a member that has proved the job's secret.
    ///
    /// # Errors
    /// Why not.
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

    /// Tells a member that comes which sites cannot be reached now.
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

    /// Whether a member may join; gives the bytes that it may have in flight at first.
    ///
    /// # Errors
    /// Why not.
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

    /// A member's connection ended.
    pub(crate) fn leave(&mut self, id: JobId, slot: Slot, member: &M, how: Leave) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.members.get(&slot) != Some(member) {
            return;
        }
        job.members.remove(&slot);
        let reason = match how {
            Leave::Goodbye if slot == Slot::LAUNCHER => return self.close(id, "the launcher ended"),
            Leave::Goodbye => return,
            Leave::Silent(reason) => reason,
            // It is connected to others of the site, and dials this one again.
            Leave::Lost(reason) if self.siblings && !is_rank(slot) && !job.closing && !job.waits() => {
                job.lost.insert(slot, reason);
                return self.effects.push(Effect::Timer(id, job.epoch, Timer::Return(slot), RETURN));
            }
            Leave::Lost(reason) => reason,
        };
        self.is_lost(id, slot, reason);
    }

    /// A member without whom a job is not as it should be does not come back.
    pub(crate) fn is_lost(&mut self, id: JobId, slot: Slot, reason: String) {
        let Some(job) = self.jobs.get(&id) else { return };
        let identity = Identity { site: job.own, slot };
        if slot == Slot::LAUNCHER {
            self.close(id, &format!("the launcher is gone: {reason}"));
        } else if !job.closing {
            let reason = reason + &self.perhaps_cancelled(id);
            self.tell_launcher(id, JobMessage::MemberLost { job: id, member: identity, reason });
        }
    }

    /// Takes a member's place from a connection that is not used any more.
    pub(crate) fn displace(&mut self, id: JobId, slot: Slot, which: impl FnOnce(&M) -> bool) -> Option<M> {
        let members = &mut self.jobs.get_mut(&id)?.members;
        if members.get(&slot).is_some_and(which) { members.remove(&slot) } else { None }
    }

    /// A first link of a trunk is up.
    pub(crate) fn trunk_up(&mut self, trunk: TrunkId) {
        let info = &mut self.trunks[trunk.0];
        info.up = true;
        info.changes += 1;
        self.tell_members(None, trunk, |others| (!others).then_some(Passage::Open));
        let waiting: Vec<JobId> = self.jobs.iter().filter(|(_, job)| job.waits()).map(|(id, _)| *id).collect();
        for id in waiting {
            self.advance(id);
        }
        self.say_what_is_here(trunk);
    }

    /// A trunk failed, or still cannot be brought up.
    pub(crate) fn trunk_problem(&mut self, trunk: TrunkId, problem: String) {
        self.trunks[trunk.0].problem = problem;
    }

    /// A link of a trunk is gone, and with it what was in flight on it; another is up.
    pub(crate) fn trunk_broken(&mut self, trunk: TrunkId) {
        self.tell_members(None, trunk, |_| Some(Passage::Broken));
    }

    /// The last link of a trunk is gone, and with it whatever was in flight. Jobs wait for it to come back, for as long
    /// as this gateway is patient.
    pub(crate) fn trunk_away(&mut self, trunk: TrunkId, reason: &str) {
        let info = &mut self.trunks[trunk.0];
        info.up = false;
        info.problem = reason.to_owned();
        info.changes += 1;
        let changes = info.changes;
        self.tell_members(None, trunk, |others| Some(passage_without(others, reason)));
        self.effects.push(Effect::Patience(trunk, changes, self.patience));
    }

    /// Patience with a trunk is over, unless it has changed since.
    pub(crate) fn patience_over(&mut self, trunk: TrunkId, changes: u64) {
        let info = &self.trunks[trunk.0];
        if info.changes == changes && !info.up {
            let waited = self.patience.as_secs_f64();
            let reason = format!("{} (and it did not come back within {waited} s)", info.problem);
            self.trunk_lost(trunk, &reason);
        }
    }

    /// Tells members of jobs (of all, or `only` one) what became of a trunk that is a route of theirs. `passage` says
    /// what, from whether there are other routes.
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

    /// What a trunk carried is lost for good.
    pub(crate) fn trunk_lost(&mut self, trunk: TrunkId, reason: &str) {
        let name = self.trunks[trunk.0].site.clone();
        let all: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in all {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(at) = job.sites.iter().position(|s| s.trunk == Some(trunk) || s.routes.contains(&trunk)) else {
                continue;
            };
            let site = &mut job.sites[at];
            // A site not asked yet may still be when the trunk comes back.
            if site.phase == SitePhase::Waiting {
                continue;
            }
            let led = job.part == Part::Lead && site.trunk == Some(trunk) && site.phase.is_led();
            if led {
                site.phase = SitePhase::Leaderless;
            }
            let routes = site.routes.iter().filter(|route| **route != trunk).count();
            let (at_home, closing) = (job.own == job.home, job.closing);
            // Without it, nothing of the job can go on here; that is not news then.
            self.is_gone(id, trunk, reason);
            let site = name.clone();
            if closing || self.jobs.get(&id).is_none_or(|job| job.closing) {
                continue;
            }
            let (job, reason) = (id, reason.to_owned());
            if routes == 0 {
                if let Some(job) = self.jobs.get_mut(&id).filter(|_| at_home) {
                    job.sites[at].told_lost = true;
                }
                let seen_from = self.site.clone();
                self.tell_launcher(id, JobMessage::SiteLost { job, site, seen_from, reason });
            } else if led && at_home {
                self.tell_launcher(id, JobMessage::LeadLost { job, site, reason });
            }
        }
        self.allocations_without(trunk, reason);
    }

    /// Closes everything, for the end of the program; with `siblings` (other gateways of the site) but for the jobs
    /// that these can go on with, which it gives back. Those are left without a word, as if the program was killed.
    pub(crate) fn close_all(&mut self, reason: &str, siblings: bool) -> BTreeSet<JobId> {
        let is_left = |(_, job): &(&JobId, &Job<M>)| siblings && !job.closing;
        let left: BTreeSet<JobId> = self.jobs.iter().filter(is_left).map(|(id, _)| *id).collect();
        let closed: Vec<JobId> = self.jobs.keys().copied().filter(|id| !left.contains(id)).collect();
        for id in closed {
            if let Some(launcher) = self.jobs.get_mut(&id).and_then(|job| job.members.remove(&Slot::LAUNCHER)) {
                self.effects.push(Effect::Dismiss(launcher, reason.to_owned()));
            }
            self.close(id, reason);
        }
        let unopened: Vec<JobId> = self.allocations.keys().filter(|id| !self.jobs.contains_key(id)).copied().collect();
        unopened.into_iter().for_each(|id| self.abandon(id));
        left
    }

    /// Sends a message to the launcher of a job, wherever it is.
    pub(crate) fn tell_launcher(&mut self, id: JobId, message: JobMessage) {
        let Some(job) = self.jobs.get(&id) else { return };
        let at_home = job.own == job.home;
        if !job.leads() && !at_home && !matches!(message, JobMessage::Closed { .. } | JobMessage::Refused { .. }) {
            // The lead tells it.
            return;
        }
        let effect = match job.sites[usize::from(job.home.0)].trunk {
            Some(trunk) => Effect::ToTrunk(trunk, message.into()),
            None => match job.members.get(&Slot::LAUNCHER) {
                Some(launcher) => Effect::ToMember(launcher.clone(), message.into()),
                None => return,
            },
        };
        self.effects.push(effect);
    }

    /// Sends a message over a trunk.
    pub(crate) fn tell(&mut self, trunk: TrunkId, message: impl Into<Control>) {
        self.effects.push(Effect::ToTrunk(trunk, message.into()));
    }

    /// Whether something may be logged because of what was asked for at this site: without limit if that is the own
    /// one.
    pub(crate) fn may_log(&self, home: &str) -> Option<Unsaid> {
        if home == self.site { Some(None) } else { log::may(home) }
    }

    /// The same of a job, or of what is to become one.
    pub(crate) fn may_log_of(&self, id: JobId) -> Option<Unsaid> {
        match self.jobs.get(&id) {
            Some(job) => self.may_log(job.home_name()),
            None => self.may_log(self.asker_site(id)),
        }
    }

    /// Takes up a trunk to a site that was not there before; gives its number.
    pub(crate) fn add_trunk(&mut self, trunk: TrunkInfo) -> TrunkId {
        self.trunks.push(trunk);
        TrunkId(self.trunks.len() - 1)
    }

    /// A gateway is in the sites file again.
    pub(crate) fn take_back_trunk(&mut self, trunk: TrunkId) {
        self.trunks[trunk.0].retired = false;
    }

    /// A gateway is not in the sites file any more: jobs do without it.
    pub(crate) fn retire_trunk(&mut self, trunk: TrunkId, reason: &str) {
        self.trunks[trunk.0].retired = true;
        self.trunk_lost(trunk, reason);
    }

    /// A trunk to the gateway of a site that leads what is begun there: of the first that can be reached.
    pub(crate) fn lead_trunk(&self, site: &str) -> Option<TrunkId> {
        let up = trunks_to(&self.trunks, site).find(|trunk| self.trunks[trunk.0].up);
        up.or_else(|| trunks_to(&self.trunks, site).next())
    }

    /// Which site of a job's roster this is; for messages.
    pub(crate) fn own_id(&self, roster: &types::Roster) -> Option<SiteId> {
        roster.sites().iter().position(|site| site.name == self.site).map(|at| SiteId(at as u16))
    }
}

#[cfg(test)]
mod tests;
