//! The end of a job at one gateway. Part of [`Table`].

use std::collections::BTreeSet;

use types::{JobId, Slot};
use wire::control::{JobMessage, Traffic};

use super::Job;
use crate::log::short;
use crate::table::site::SitePhase;
use crate::table::{Effect, FAREWELL, GRACE, Table, Timer, TrunkId};

impl<M: Clone + PartialEq> Table<M> {
    /// Gives up a job after losing the launcher or the launcher's site. The site's other gateways may not have lost it:
    /// perhaps only this gateway's cable was pulled. So this gateway acts as if it had been killed, and leaves agents
    /// and nodes to the others. An agent without any gateway ends by itself.
    pub(crate) fn cut_off(&mut self, id: JobId, reason: &str) {
        // Until its agents run, no other gateway has the job, and nobody else would give its nodes back.
        let runs =
            |job: &Job<M>| !job.closing && (!job.leads() || job.sites[usize::from(job.own.0)].phase == SitePhase::Open);
        if !self.siblings || !self.jobs.get(&id).is_some_and(runs) {
            return self.close(id, reason);
        }
        let may_log = self.may_log_of(id);
        let Some(mut job) = self.jobs.remove(&id) else { return };
        if let Some(suppressed) = may_log {
            tracing::warn!(suppressed, job = %id, reason = short(reason), "job left to the site's other gateways");
        }
        let others = job.sites.iter().flat_map(|site| site.routes.iter().chain(&site.trunk));
        let others: BTreeSet<TrunkId> = others.chain(&job.askers).chain(&job.unclosed).copied().collect();
        others.into_iter().for_each(|trunk| self.tell(trunk, JobMessage::left(id)));
        let dismiss = |(_, member)| Effect::Dismiss(member, format!("this gateway left job {id}: {reason}"));
        self.effects.extend(job.members.drain().map(dismiss));
        self.effects.push(Effect::Leave(id));
        self.allocations.remove(&id);
        self.grants.release(job.grant);
        self.has_ended(id);
    }

    /// Starts ending a job here, and also at all other sites if it started here.
    pub(crate) fn close(&mut self, id: JobId, reason: &str) {
        if self.jobs.get(&id).is_none_or(|job| job.closing) {
            return;
        }
        let may_log = self.may_log_of(id);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.closing = true;
        if let Some(suppressed) = may_log {
            tracing::info!(suppressed, job = %id, reason = short(reason), "job closing");
        }
        if job.own == job.home {
            let closing = job.unclosed.iter().map(|trunk| Effect::ToTrunk(*trunk, JobMessage::close(id).into()));
            self.effects.extend(closing);
        }
        if job.own == job.home && !job.leads() {
            self.effects.push(Effect::Timer(id, job.epoch, Timer::Farewell, FAREWELL));
        } else if job.own == job.home {
            for site in &mut job.sites {
                match site.phase {
                    SitePhase::Asked | SitePhase::Open => {
                        if let Some(trunk) = site.trunk {
                            self.effects.push(Effect::ToTrunk(trunk, JobMessage::close(id).into()));
                        }
                    }
                    SitePhase::Waiting => site.phase = SitePhase::Closed,
                    _ => {}
                }
            }
            self.effects.push(Effect::Timer(id, job.epoch, Timer::Farewell, FAREWELL));
            self.close_allocations(id);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let members = job.members.extract_if(|slot, _| *slot != Slot::LAUNCHER).map(|(_, member)| member);
        self.effects.extend(members.map(|member| Effect::Dismiss(member, format!("job {id} is closed: {reason}"))));
        if !job.agents.is_empty() {
            self.effects.push(Effect::Timer(id, job.epoch, Timer::Grace, GRACE));
        }
        self.finish(id);
    }

    /// Ends a closing job once nothing of it is left.
    pub(crate) fn finish(&mut self, id: JobId) {
        if self.jobs.get(&id).is_none_or(|job| !job.closing || !job.agents.is_empty()) || self.release(id) {
            return;
        }
        let may_log = self.may_log_of(id);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let own = &mut job.sites[usize::from(job.own.0)];
        if own.phase != SitePhase::Closed {
            own.phase = SitePhase::Closed;
            let traffic = job.traffic;
            if let Some(suppressed) = may_log {
                let Traffic { sent, received, local } = traffic;
                tracing::info!(suppressed, job = %id, sent, received, local, "job closed");
            }
            if !job.refused || job.own == job.home {
                let site = self.site.clone();
                let led = job.leads();
                self.tell_launcher(id, JobMessage::Closed { job: id, site, traffic, led });
            }
        }
        let Some(job) = self.jobs.get(&id) else { return };
        let led = job.leads() && job.sites.iter().any(|site| site.phase.is_led());
        let others = led || !job.unclosed.is_empty();
        if job.own == job.home && others {
            return;
        }
        if let Some(mut job) = self.jobs.remove(&id) {
            self.allocations.remove(&id);
            self.grants.release(job.grant);
            self.has_ended(id);
            if let Some(launcher) = job.members.remove(&Slot::LAUNCHER) {
                self.effects.push(Effect::Dismiss(launcher, String::new()));
            }
        }
    }
}
