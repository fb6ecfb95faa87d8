//! The identity table and the jobs: admission of members, routes of frames, notices of losses.
//!
//! No sockets, no clock, no tasks: events arrive as method calls, and the resulting actions are queued as [`Effect`]s,
//! which the I/O code takes and carries out. `M` is the I/O code's handle on a member's connection. Start reading at
//! [`Table::route`] for the path of a frame, and at [`Table::open`] for the life of a job (`job`).

pub(crate) mod allocation;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod job;
mod members;
pub(crate) mod message;
pub(crate) mod shared;
pub(crate) mod site;
pub(crate) mod spread;
mod trunks;
pub(crate) mod window;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use gateway_tasks::AllocationOrder;
use types::{JobId, NodeId, SiteId, Slot};
use wire::control::JobMessage;
use wire::{Control, FrameHeader, Passage, Secret};

use crate::log::{self, Suppressed};
use crate::table::allocation::Allocation;
use crate::table::error::JobError;
use crate::table::job::{Job, is_rank};
use crate::table::window::Grants;

/// Index of a trunk: a pair of this gateway and one other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TrunkId(pub usize);

/// Time for which a job waits for trunks that are down before it is refused.
pub(crate) const OPENING: Duration = Duration::from_millis(3000);
/// The same at a site that was asked over a trunk. It is shorter, so that the site's answer still arrives in time.
pub(crate) const OPENING_ASKED: Duration = Duration::from_millis(2200);
/// Time limit for agents to end by themselves.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// Time for which the home site waits for the other sites' last messages.
pub(crate) const FAREWELL: Duration = Duration::from_secs(4);

/// Interval at which a gateway asks whether a job that nobody is connected to is still wanted.
pub(crate) const WANTED: Duration = Duration::from_secs(2);

/// Number of ended jobs that are remembered.
const ENDED: usize = 256;

/// An action for the I/O code.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect<M> {
    /// Send a message to a local launcher.
    ToMember(M, Control),
    /// Send a message over a trunk.
    ToTrunk(TrunkId, Control),
    /// Start the agents of these nodes, then report by [`Table::agents_started`].
    StartAgents(JobId, Vec<(NodeId, String)>),
    /// Leave a job's agents and nodes to the site's other gateways.
    Leave(JobId),
    /// Kill all agents of a job that still run; each is then reported through [`Table::agent_exited`] as usual.
    KillAgents(JobId),
    /// Ask for nodes, and report through [`Table::allocation_news`].
    Allocate(AllocationOrder),
    /// Give the nodes back.
    Release(JobId),
    /// Send a goodbye with a reason and close the connection.
    Dismiss(M, String),
    /// Notify a member of a change in the route to a site.
    Passage(M, SiteId, Passage),
    /// Call [`Table::timer`] after this time.
    Timer(JobId, u64, Timer, Duration),
    /// Call [`Table::patience_over`] after this time.
    Patience(TrunkId, u64, Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Trunks should be up by now.
    Opening,
    /// Agents should have ended by now.
    Grace,
    /// Other sites should have sent their last message by now.
    Farewell,
    /// A launcher or an agent whose connection broke should have reconnected by now.
    Return(Slot),
    /// A member should be connected by now.
    Wanted,
}

/// The source of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// A member of this site, with the identity that the frame states.
    Member,
    Trunk(TrunkId),
}

/// The destination of a frame.
#[derive(Debug)]
pub(crate) enum Route<'a, M> {
    /// To a member of this site.
    Member(&'a M),
    /// Over a trunk.
    Trunk(TrunkId),
    /// Nowhere. `notice`: notify the sender of the reason.
    Nowhere {
        /// The reason, if the sender is to be notified.
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
    /// True while a link of it is up.
    pub up: bool,
    /// The last problem, as text for the user.
    pub problem: String,
    /// Its gateway is no longer in the sites file.
    pub retired: bool,
    /// Number of times it came up or went down; a timer sees from it that the trunk has changed since.
    pub changes: u64,
}

impl TrunkInfo {
    /// A trunk that is not up yet.
    pub(crate) fn new(site: String) -> TrunkInfo {
        TrunkInfo { site, up: false, problem: String::new(), retired: false, changes: 0 }
    }
}

/// A member's departure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// With a goodbye.
    Goodbye,
    /// Without a goodbye: its connection broke. Its machine may be fine.
    Lost(String),
    /// Without a goodbye: it is silent.
    Silent(String),
}

pub(crate) struct Table<M> {
    /// Name of this gateway's site.
    pub(crate) site: String,
    /// Number of this gateway within its site, from 0.
    pub(crate) number: usize,
    /// The site has other gateways, to which its members are connected too.
    pub(crate) siblings: bool,
    /// Names of the site's nodes in the sites file, and [`types::roster::FORWARDER`] if ports are forwarded.
    pub(crate) nodes: Vec<String>,
    pub(crate) trunks: Vec<TrunkInfo>,
    pub(crate) jobs: HashMap<JobId, Job<M>>,
    pub(crate) allocations: HashMap<JobId, Allocation<M>>,
    pub(crate) grants: Grants,
    /// Time for which jobs wait for a trunk that was up and is down.
    patience: Duration,
    pub(crate) effects: Vec<Effect<M>>,
    pub(crate) epoch: u64,
    /// Jobs that ended recently, the last one at the end.
    pub(crate) ended: VecDeque<JobId>,
}

impl<M: Clone + PartialEq> Table<M> {
    /// The table of gateway number `number` of this site.
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

    /// Takes the effects queued since the last call.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect<M>> {
        std::mem::take(&mut self.effects)
    }

    /// Decides the route of a frame and counts the frame.
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
                let text = format!("a frame of job {} for {} arrived at site {}", header.job, header.to, self.site);
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
            // Looked up twice because of the borrow checker: the first reference cannot be returned.
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
        // Members have been notified and will retransmit once there is a route. Only if there never will be one, the
        // sender is notified again.
        let name = job.roster.site(header.to.site).map_or("", |s| s.name.as_str());
        let notice = (!site.phase.reachable()).then(|| format!("site {name} cannot be reached"));
        Route::Nowhere { notice }
    }

    /// The secret that members of a job must prove.
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

    /// Returns true if a job that is not open here may still be opened: it has not ended recently.
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

    /// Closes everything at the end of the program. With `siblings` (other gateways of the site), jobs that these can
    /// continue are spared and returned. They get no message, as if the program had been killed.
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

    /// Sends a message to the launcher of a job, at any site.
    pub(crate) fn tell_launcher(&mut self, id: JobId, message: JobMessage) {
        let Some(job) = self.jobs.get(&id) else { return };
        let at_home = job.own == job.home;
        let of_each = match &message {
            JobMessage::Closed { .. } | JobMessage::Refused { .. } => true,
            // The lead may be lost itself. The launcher asks the member before it believes any such report.
            JobMessage::MemberLost { member, .. } => job.watches(member.slot),
            _ => false,
        };
        if !job.leads() && !at_home && !of_each {
            // The lead notifies the launcher.
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

    /// Returns `Some` if a line about a request from this home site may be logged. This gateway's own site has no
    /// limit.
    pub(crate) fn may_log(&self, home: &str) -> Option<Suppressed> {
        if home == self.site { Some(None) } else { log::may(home) }
    }

    /// Like [`Table::may_log`], for a job or for a request to open one.
    pub(crate) fn may_log_of(&self, id: JobId) -> Option<Suppressed> {
        match self.jobs.get(&id) {
            Some(job) => self.may_log(job.home_name()),
            None => self.may_log(self.asker_site(id)),
        }
    }

    /// This site's id in a job's roster, for messages.
    pub(crate) fn own_id(&self, roster: &types::Roster) -> Option<SiteId> {
        roster.sites().iter().position(|site| site.name == self.site).map(|at| SiteId(at as u16))
    }
}

#[cfg(test)]
mod tests;
