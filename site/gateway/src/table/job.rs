//! A job at one gateway: its state, opening, agents. Part of [`Table`].

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use gateway_tasks::StartError;
use types::id::SlotKind;
use types::{Identity, JobId, NodeId, Roster, SiteId, Slot};
use wire::control::{JobMessage, Part, Traffic};
use wire::{Passage, Secret};

use crate::log::quantity;
use crate::log::short;
use crate::table::allocation::Asker;
use crate::table::error::{JobError, Refused, Violation};
use crate::table::site::{SitePhase, SiteState};
use crate::table::window::Grant;
use crate::table::{Effect, OPENING, OPENING_ASKED, Table, Timer, TrunkId, TrunkInfo, WANTED};

mod end;
mod relays;

/// A job as one gateway knows it.
pub(crate) struct Job<M> {
    pub secret: Secret,
    pub roster: Roster,
    /// Index of this gateway's site in the roster.
    pub own: SiteId,
    /// Index of the launcher's site in the roster.
    pub home: SiteId,
    /// This gateway's part in the job.
    pub part: Part,
    /// Trunks over which this gateway was asked to open the job; it reports to the first. Empty at home.
    pub askers: Vec<TrunkId>,
    /// At home: the window for gateways that do not lead the job, once it is known.
    pub window: Option<u32>,
    /// At home: trunks over which gateways that do not lead the job were asked to open it and have not yet closed it.
    pub unclosed: Vec<TrunkId>,
    /// One per site, in the roster's order.
    pub sites: Vec<SiteState>,
    pub members: HashMap<Slot, M>,
    /// Members whose connection broke and that may reconnect, and the reason of the break.
    pub lost: HashMap<Slot, String>,
    /// Nodes with a running agent.
    pub agents: BTreeSet<NodeId>,
    pub grant: Grant,
    pub traffic: Traffic,
    pub closing: bool,
    /// The job was refused after it was entered: its end is not reported.
    pub refused: bool,
    /// Agents were requested.
    pub started: bool,
    /// Distinguishes this job from others with the same number, for timers. Later jobs have higher epochs.
    pub epoch: u64,
    /// Ranks of this site: first, and one past the last.
    pub ranks: (u32, u32),
    /// First rank of every site, and one past its last.
    pub spans: Vec<(u32, u32)>,
}

/// Returns true for a rank, and false for an agent or the launcher.
pub(crate) fn is_rank(slot: Slot) -> bool {
    slot.0 >> 8 <= Slot::MAX_RANK
}

impl<M> Job<M> {
    /// Checks that a member with this identity belongs to this site.
    pub(crate) fn may_join(&self, identity: Identity, site: &str) -> Result<(), JobError> {
        let site = || site.to_owned();
        if identity.site != self.own {
            return Err(JobError::OtherSite { identity, site: site(), number: self.own.0 });
        }
        let nodes = self.roster.site(self.own).map_or(0, |own| own.nodes.len());
        match identity.slot.kind() {
            SlotKind::Rank(rank, _) if (self.ranks.0..self.ranks.1).contains(&rank.0) => Ok(()),
            SlotKind::Rank(rank, _) => {
                let (first, beyond) = self.ranks;
                Err(JobError::RankElsewhere { rank: rank.0, site: site(), first, beyond })
            }
            SlotKind::Agent(node) if (node.0 as usize) < nodes => Ok(()),
            SlotKind::Agent(node) => Err(JobError::NoSuchNode { site: site(), node: node.0, nodes }),
            SlotKind::Service(service) => Err(JobError::NoSuchService(service.0)),
            SlotKind::Launcher => Err(JobError::Launcher),
            SlotKind::Gateway => Err(JobError::Gateway),
        }
    }

    /// Returns true while trunks are missing.
    pub(crate) fn waits(&self) -> bool {
        !self.closing && self.sites.iter().any(|site| site.phase == SitePhase::Waiting)
    }

    /// Name of the launcher's site.
    pub(crate) fn home_name(&self) -> &str {
        self.roster.site(self.home).map_or("", |site| site.name.as_str())
    }

    /// Returns true if all ranks of this site are connected here.
    pub(crate) fn is_whole(&self) -> bool {
        // A rank may have several endpoints, each of which is a member.
        let ranks: BTreeSet<u32> = self.members.keys().filter(|slot| is_rank(**slot)).map(|slot| slot.0 >> 8).collect();
        ranks.len() == (self.ranks.1 - self.ranks.0) as usize
    }

    pub(crate) fn leads(&self) -> bool {
        self.part.leads()
    }

    /// The phase of the site at the other end of this trunk, if this gateway leads the job, and the one there leads it
    /// there.
    fn led_over(&self, trunk: TrunkId) -> Option<SitePhase> {
        let led = self.sites.iter().find(|site| site.trunk == Some(trunk) && site.phase.is_led());
        led.filter(|_| self.leads()).map(|site| site.phase)
    }

    /// Returns true if gateways watch for this member's signs of life. In a job with agents, the agents watch the
    /// ranks, which are heard only while their programs call MPI.
    pub(crate) fn watches(&self, slot: Slot) -> bool {
        !is_rank(slot) || !self.part.has_agents()
    }
}

/// First rank of a site, and one past its last.
pub(crate) fn ranks_of(roster: &Roster, site: SiteId) -> (u32, u32) {
    let sizes = roster.sites().iter().map(|s| s.size());
    let first: u32 = sizes.clone().take(usize::from(site.0)).sum();
    (first, first + sizes.skip(usize::from(site.0)).take(1).sum::<u32>())
}

/// First rank of every site, and one past its last.
pub(crate) fn spans_of(roster: &Roster) -> Vec<(u32, u32)> {
    let mut first = 0;
    let span = |site: &types::SiteRoster| {
        let beyond = first + site.size();
        (std::mem::replace(&mut first, beyond), beyond)
    };
    roster.sites().iter().map(span).collect()
}

/// Number of ranks and agents of a site, plus the launcher at the home site.
pub(crate) fn members_of(roster: &Roster, site: SiteId, home: SiteId) -> u64 {
    let own = roster.site(site).map_or(0, |s| u64::from(s.size()) + s.nodes.len() as u64);
    own + u64::from(site == home)
}

/// The trunks to a site's gateways, in the order of the sites file.
pub(crate) fn trunks_to<'a>(trunks: &'a [TrunkInfo], site: &'a str) -> impl Iterator<Item = TrunkId> + 'a {
    trunks.iter().enumerate().filter(move |(_, trunk)| trunk.site == site && !trunk.retired).map(|(at, _)| TrunkId(at))
}

/// The notice to members that a route is lost. `others`: there are other routes.
pub(crate) fn passage_without(others: bool, reason: &str) -> Passage {
    if others { Passage::Broken } else { Passage::Away(reason.to_owned()) }
}

impl<M: Clone + PartialEq> Table<M> {
    /// Opens a job for its launcher, at the launcher's site. On success the launcher is a member, and its identity is
    /// returned.
    ///
    /// # Errors
    /// The refusing site and the reason, for [`JobMessage::Refused`].
    pub(crate) fn open(
        &mut self,
        id: JobId,
        secret: Secret,
        roster: Roster,
        home: &str,
        part: Part,
        launcher: M,
    ) -> Result<Identity, Refused> {
        if home != self.site {
            let (home, site) = (home.to_owned(), self.site.clone());
            return Err(Refused { site: site.clone(), why: JobError::WrongHome { home, site } });
        }
        if !part.leads()
            && let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.closing && job.secret == secret)
            && job.own == job.home
        {
            // The launcher reconnects: its connection broke, or this gateway's machine was suspended.
            let identity = Identity { site: job.own, slot: Slot::LAUNCHER };
            job.lost.remove(&Slot::LAUNCHER);
            if let Some(before) = job.members.insert(Slot::LAUNCHER, launcher.clone()) {
                self.effects.push(Effect::Dismiss(before, "the launcher has reconnected".to_owned()));
            }
            self.tell_what_is_away(id, &launcher);
            self.open_relays(id);
            return Ok(identity);
        }
        if !part.leads() && !self.siblings && !self.jobs.contains_key(&id) {
            return Err(Refused { site: self.site.clone(), why: JobError::Forgotten });
        }
        let own = self.enter(id, secret, roster, part, &Asker::Launcher(launcher.clone()))?;
        let launcher_identity = Identity { site: own, slot: Slot::LAUNCHER };
        if let Some(job) = self.jobs.get_mut(&id) {
            job.members.insert(Slot::LAUNCHER, launcher.clone());
        }
        self.tell_what_is_away(id, &launcher);
        if part.leads() {
            self.advance(id);
        } else {
            self.open_relays(id);
        }
        self.bound_opening(id, OPENING);
        self.say_here(id);
        Ok(launcher_identity)
    }

    /// Opens a job at the request of the launcher's gateway.
    pub(crate) fn open_asked(
        &mut self,
        trunk: TrunkId,
        id: JobId,
        secret: Secret,
        roster: Roster,
        part: Part,
    ) -> Result<(), JobError> {
        if let Some(job) = self.jobs.get_mut(&id)
            && !part.leads()
            && job.secret == secret
            && self.trunks[trunk.0].site == job.home_name()
        {
            // Another gateway of the launcher's site asks for the same job.
            if !job.askers.contains(&trunk) {
                job.askers.push(trunk);
            }
            self.is_here(id, trunk, None);
            return Ok(());
        }
        self.enter(id, secret, roster, part, &Asker::Site(trunk)).map_err(|refused| refused.why)?;
        self.advance(id);
        self.bound_opening(id, OPENING_ASKED);
        self.ask_again_whether_wanted(id);
        self.say_here(id);
        self.is_here(id, trunk, None);
        Ok(())
    }

    fn ask_again_whether_wanted(&mut self, id: JobId) {
        let epoch = self.jobs.get(&id).map(|job| job.epoch);
        self.effects.extend(epoch.map(|epoch| Effect::Timer(id, epoch, Timer::Wanted, WANTED)));
    }

    /// The gateways that asked for a job may have ended it, or restarted, without the knowledge of this gateway. So
    /// while nobody is connected to a job, this gateway asks them whether it is still wanted; otherwise it might keep
    /// the job forever.
    fn ask_whether_wanted(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|job| !job.closing) else { return };
        if job.members.is_empty() && job.agents.is_empty() {
            let asks = job.askers.iter().map(|trunk| Effect::ToTrunk(*trunk, JobMessage::Wanted { job: id }.into()));
            self.effects.extend(asks);
        }
        self.ask_again_whether_wanted(id);
    }

    /// Limits a job's wait for trunks.
    fn bound_opening(&mut self, id: JobId, limit: Duration) {
        if let Some(job) = self.jobs.get(&id).filter(|job| job.waits()) {
            self.effects.push(Effect::Timer(id, job.epoch, Timer::Opening, limit));
        }
    }

    /// Asks the sites whose trunks are up, and starts the agents here once no trunk is missing.
    pub(crate) fn advance(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.closing) else { return };
        let at_home = job.own == job.home;
        for site in job.sites.iter_mut().filter(|site| site.phase == SitePhase::Waiting) {
            if let Some(trunk) = site.trunk.filter(|trunk| self.trunks[trunk.0].up) {
                site.phase = SitePhase::Asked;
                if at_home {
                    let open = JobMessage::Open {
                        job: id,
                        secret: job.secret.clone(),
                        roster: job.roster.clone(),
                        home: self.site.clone(),
                        part: job.part,
                    };
                    self.effects.push(Effect::ToTrunk(trunk, open.into()));
                }
            }
        }
        if !job.started && !job.waits() {
            job.started = true;
            let own = job.roster.site(job.own).filter(|_| job.part == Part::Lead);
            let nodes = own.map(|own| own.nodes.iter()).unwrap_or_default();
            let nodes: Vec<_> = nodes.enumerate().map(|(at, node)| (NodeId(at as u32), node.name.clone())).collect();
            // Entered before they run, so that the first to end does not look like the last.
            job.agents.extend(nodes.iter().map(|(node, _)| *node));
            self.effects.push(Effect::StartAgents(id, nodes));
        }
    }

    /// Notes that the agents were started, or that one did not start: neither the agent of that node nor any later one
    /// runs.
    pub(crate) fn agents_started(&mut self, id: JobId, result: Result<(), (NodeId, StartError)>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let site = self.site.clone();
        match result {
            Ok(()) => {
                job.sites[usize::from(job.own.0)].phase = SitePhase::Open;
                let window = job.grant.window;
                let agents = job.agents.len();
                if let Some(suppressed) = self.may_log_of(id) {
                    tracing::info!(suppressed, job = %id, agents, window = %quantity(window.into()), "job open");
                }
                self.tell_launcher(id, JobMessage::Opened { job: id, site, window });
            }
            Err((failed, error)) => {
                let node = job.roster.site(job.own).and_then(|own| own.nodes.get(failed.0 as usize));
                let node = node.map_or("", |node| node.name.as_str());
                let reason = format!("cannot start the agent of node {node}: {error}");
                job.agents.retain(|node| *node < failed);
                self.refuse(id, reason);
            }
        }
    }

    /// Refuses a job that this site had entered.
    pub(crate) fn refuse(&mut self, id: JobId, reason: String) {
        let site = self.site.clone();
        if let Some(suppressed) = self.may_log_of(id) {
            tracing::warn!(suppressed, job = %id, reason = short(&reason), "job refused");
        }
        self.tell_launcher(id, JobMessage::Refused { job: id, site, reason });
        if let Some(job) = self.jobs.get_mut(&id) {
            job.refused = true;
            job.sites[usize::from(job.own.0)].phase = SitePhase::Refused;
            // At home the launcher decides how the job continues.
            if job.own != job.home {
                self.close(id, "the site refused the job");
            }
        }
    }

    /// Handles the end of an agent.
    pub(crate) fn agent_exited(&mut self, id: JobId, node: NodeId, status: String) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.agents.remove(&node);
        job.lost.retain(|slot, _| Slot::agent(node) != Some(*slot));
        if job.closing {
            self.finish(id);
            return;
        }
        let name = job.roster.site(job.own).and_then(|own| own.nodes.get(node.0 as usize));
        let (node, site) = (name.map_or(String::new(), |node| node.name.clone()), self.site.clone());
        let reason = status + &self.perhaps_cancelled(id);
        self.tell_launcher(id, JobMessage::AgentLost { job: id, site, node, reason });
    }

    /// Handles a launcher's message about its job.
    ///
    /// # Errors
    /// The launcher may not send it: close its connection.
    pub(crate) fn job_from_launcher(&mut self, id: JobId, message: &JobMessage) -> Result<(), Violation> {
        match message {
            JobMessage::Close { job, .. } if *job == id => {
                self.close(id, "the launcher closed the job");
                Ok(())
            }
            JobMessage::Open { job, part, .. } if *job == id && !part.leads() => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.window = part.window();
                }
                self.open_relays(id);
                Ok(())
            }
            JobMessage::Close { job, .. } => {
                Err(Violation(format!("the launcher of job {id} may not close job {job}")))
            }
            JobMessage::Open { .. }
            | JobMessage::Here { .. }
            | JobMessage::Wanted { .. }
            | JobMessage::Opened { .. }
            | JobMessage::Refused { .. }
            | JobMessage::AgentLost { .. }
            | JobMessage::MemberLost { .. }
            | JobMessage::LeadLost { .. }
            | JobMessage::SiteLost { .. }
            | JobMessage::SiteFound { .. }
            | JobMessage::Stopped { .. }
            | JobMessage::Closed { .. } => Err("a launcher may only open and close its job".into()),
        }
    }

    /// Handles the expiry of a timer that an effect has set.
    pub(crate) fn timer(&mut self, id: JobId, epoch: u64, timer: Timer) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.epoch == epoch) else { return };
        match timer {
            Timer::Return(slot) => {
                if let Some(reason) = job.lost.remove(&slot) {
                    self.is_lost(id, slot, reason);
                }
            }
            Timer::Wanted => self.ask_whether_wanted(id),
            Timer::Opening if job.waits() => self.give_up_waiting(id),
            Timer::Opening => {}
            Timer::Grace if job.agents.is_empty() => {}
            Timer::Grace => self.effects.push(Effect::KillAgents(id)),
            Timer::Farewell => {
                job.unclosed.clear();
                let own = usize::from(job.own.0);
                for (at, site) in job.sites.iter_mut().enumerate().filter(|(_, site)| site.phase.reachable()) {
                    if at != own {
                        tracing::warn!(job = %id, site = job.roster.sites()[at].name, "site did not close the job \
                            in time");
                        site.phase = SitePhase::Lost;
                    }
                }
                self.finish(id);
            }
        }
    }

    /// Ends the wait for trunks that did not come up in time.
    fn give_up_waiting(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let at_home = job.own == job.home;
        let mut missing = Vec::new();
        for (at, site) in job.sites.iter_mut().enumerate().filter(|(_, site)| site.phase == SitePhase::Waiting) {
            let problem = site.trunk.map_or(String::new(), |trunk| self.trunks[trunk.0].problem.clone());
            missing.push((job.roster.sites()[at].name.clone(), problem));
            if at_home {
                site.phase = SitePhase::Refused;
            }
        }
        if at_home {
            for (site, reason) in missing {
                tracing::warn!(job = %id, site, reason, "job refused: no trunk");
                self.tell_launcher(id, JobMessage::Refused { job: id, site, reason });
            }
        } else {
            let list: Vec<_> =
                missing.iter().map(|(site, problem)| format!("no trunk to site {site}: {problem}")).collect();
            self.refuse(id, list.join("; "));
        }
    }
}
