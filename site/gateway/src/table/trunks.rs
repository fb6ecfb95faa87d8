//! Trunks as the table sees them: those that open, break, return or are given up, and the jobs that used them.

use types::JobId;
use wire::Passage;
use wire::control::JobMessage;

use super::{Effect, Table, TrunkId, TrunkInfo};
use crate::table::job::{passage_without, trunks_to};
use crate::table::site::{SitePhase, SiteState};

impl<M: Clone + PartialEq> Table<M> {
    /// Notes that the first link of a trunk is up.
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

    /// Notes that a trunk failed, or still cannot be established.
    pub(crate) fn trunk_problem(&mut self, trunk: TrunkId, problem: String) {
        self.trunks[trunk.0].problem = problem;
    }

    /// Handles the loss of a link, and of the frames in flight on it, while another link of the trunk is up.
    pub(crate) fn trunk_broken(&mut self, trunk: TrunkId) {
        self.tell_members(None, trunk, |_| Some(Passage::Broken));
    }

    /// Handles the loss of a trunk's last link, and of all frames in flight. Jobs wait for the trunk to come back while
    /// this gateway's patience lasts.
    pub(crate) fn trunk_away(&mut self, trunk: TrunkId, reason: &str) {
        let info = &mut self.trunks[trunk.0];
        info.up = false;
        info.problem = reason.to_owned();
        info.changes += 1;
        let changes = info.changes;
        self.tell_members(None, trunk, |others| Some(passage_without(others, reason)));
        self.effects.push(Effect::Patience(trunk, changes, self.patience));
    }

    /// Gives up a trunk when patience with it has run out, unless the trunk has changed since.
    pub(crate) fn patience_over(&mut self, trunk: TrunkId, changes: u64) {
        let info = &self.trunks[trunk.0];
        if info.changes == changes && !info.up {
            let waited = self.patience.as_secs_f64();
            let reason = format!("{} (and it did not come back within {waited} s)", info.problem);
            self.trunk_lost(trunk, &reason);
        }
    }

    /// Gives up a trunk for good, in all jobs.
    pub(crate) fn trunk_lost(&mut self, trunk: TrunkId, reason: &str) {
        let all: Vec<JobId> = self.jobs.keys().copied().collect();
        all.into_iter().for_each(|id| self.lost_over(id, trunk, reason));
        self.allocations_without(trunk, reason);
    }

    /// Gives up a trunk for good, in one job.
    pub(crate) fn lost_over(&mut self, id: JobId, trunk: TrunkId, reason: &str) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let theirs = |site: &SiteState| site.trunk == Some(trunk) || site.routes.contains(&trunk);
        let asked = || job.askers.contains(&trunk).then_some(usize::from(job.home.0));
        let Some(at) = job.sites.iter().position(theirs).or_else(asked) else { return };
        let site = &mut job.sites[at];
        // A site that has not been asked yet may still be asked when the trunk comes back.
        if site.phase == SitePhase::Waiting {
            return;
        }
        let led = job.part.leads() && site.trunk == Some(trunk) && site.phase.is_led();
        if led {
            site.phase = SitePhase::Leaderless;
        }
        let routes = site.routes.iter().filter(|route| **route != trunk).count();
        let (at_home, closing) = (job.own == job.home, job.closing);
        // If the job cannot continue here without this trunk, the loss of the trunk is not reported separately.
        self.is_gone(id, trunk, reason);
        if closing || self.jobs.get(&id).is_none_or(|job| job.closing) {
            return;
        }
        let (job, site, reason) = (id, self.trunks[trunk.0].site.clone(), reason.to_owned());
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

    /// Adds a trunk to a new site; returns its id.
    pub(crate) fn add_trunk(&mut self, trunk: TrunkInfo) -> TrunkId {
        self.trunks.push(trunk);
        TrunkId(self.trunks.len() - 1)
    }

    /// Notes that a gateway is in the sites file again.
    pub(crate) fn take_back_trunk(&mut self, trunk: TrunkId) {
        self.trunks[trunk.0].retired = false;
    }

    /// Gives up a gateway that is no longer in the sites file: jobs do without it.
    pub(crate) fn retire_trunk(&mut self, trunk: TrunkId, reason: &str) {
        self.trunks[trunk.0].retired = true;
        self.trunk_lost(trunk, reason);
    }

    /// The trunk to the gateway of a site that leads jobs started from here: the first reachable one.
    pub(crate) fn lead_trunk(&self, site: &str) -> Option<TrunkId> {
        let up = trunks_to(&self.trunks, site).find(|trunk| self.trunks[trunk.0].up);
        up.or_else(|| trunks_to(&self.trunks, site).next())
    }
}
