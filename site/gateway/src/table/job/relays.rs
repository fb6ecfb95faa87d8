//! At which gateways of other sites a job is open, and the requests that they relay for it. Part of [`Table`].

use types::JobId;
use wire::Passage;
use wire::control::JobMessage;

use super::{Job, is_rank, passage_without, trunks_to};
use crate::table::site::{SitePhase, SiteState};
use crate::table::{Table, TrunkId};

impl<M: Clone + PartialEq> Table<M> {
    /// Asks all gateways of the other sites that do not lead the job to open it.
    pub(crate) fn open_relays(&mut self, id: JobId) {
        self.trunks_of(id).into_iter().for_each(|trunk| self.open_relay(id, trunk));
    }

    /// Trunks that are up, to gateways of the job's other sites.
    fn trunks_of(&self, id: JobId) -> Vec<TrunkId> {
        let Some(job) = self.jobs.get(&id) else { return Vec::new() };
        let others = job.roster.sites().iter().filter(|site| site.name != self.site);
        let trunks = others.flat_map(|site| trunks_to(&self.trunks, &site.name));
        trunks.filter(|trunk| self.trunks[trunk.0].up).collect()
    }

    /// Asks the gateway at the other end of a trunk to relay for a job, unless it was asked.
    pub(crate) fn open_relay(&mut self, id: JobId, trunk: TrunkId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.own == job.home
            && job.window.is_some()
            && job.led_over(trunk).is_none()
            && !job.unclosed.contains(&trunk)
        {
            job.unclosed.push(trunk);
            self.ask_to_relay(id, trunk);
        }
    }

    /// Sends the request to relay. It changes nothing at a gateway that has the job for this one already.
    fn ask_to_relay(&mut self, id: JobId, trunk: TrunkId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let Some(window) = job.window else { return };
        let open = JobMessage::Open {
            job: id,
            secret: job.secret.clone(),
            roster: job.roster.clone(),
            home: self.site.clone(),
            part: job.part.relay(window),
        };
        self.tell(trunk, open);
    }

    /// A trunk is back. The other gateway may have given up this one, unnoticed, if this one's machine was suspended:
    /// so it is asked again for what it was asked for.
    fn ask_again_to_relay(&mut self, id: JobId, trunk: TrunkId) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.own == job.home) else { return };
        if job.unclosed.contains(&trunk) || job.led_over(trunk) == Some(SitePhase::Open) {
            self.ask_to_relay(id, trunk);
        }
    }

    /// A trunk is up: announces this gateway's jobs to the gateway at its other end, and asks it to relay for them.
    pub(crate) fn say_what_is_here(&mut self, trunk: TrunkId) {
        let peer = &self.trunks[trunk.0].site;
        let spans = |job: &Job<M>| !job.closing && job.roster.sites().iter().any(|site| site.name == *peer);
        let ids: Vec<JobId> = self.jobs.iter().filter(|(_, job)| spans(job)).map(|(id, _)| *id).collect();
        for id in ids {
            self.ask_again_to_relay(id, trunk);
            self.open_relay(id, trunk);
            self.tell_here(id, trunk);
        }
    }

    /// Announces to all gateways of the job's other sites that it is open here.
    pub(crate) fn say_here(&mut self, id: JobId) {
        self.trunks_of(id).into_iter().for_each(|trunk| self.tell_here(id, trunk));
    }

    fn tell_here(&mut self, id: JobId, trunk: TrunkId) {
        let whole = self.jobs.get(&id).is_some_and(Job::is_whole);
        self.tell(trunk, JobMessage::Here { job: id, whole });
    }

    /// Notes that a job is open at the other end of a trunk. `whole`: all ranks of that site are connected there, if
    /// known.
    pub(crate) fn is_here(&mut self, id: JobId, trunk: TrunkId, whole: Option<bool>) {
        let peer = &self.trunks[trunk.0].site;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(at) = job.roster.sites().iter().position(|site| site.name == *peer) else { return };
        let at_work = job.members.keys().any(|slot| is_rank(*slot));
        let SiteState { routes, late, partner, told_lost, .. } = &mut job.sites[at];
        let is_found = std::mem::take(told_lost);
        let is_new = !routes.contains(&trunk);
        if is_new {
            routes.push(trunk);
        }
        let may_lack = whole == Some(false) || (whole.is_none() && is_new);
        let falls_short = may_lack && at_work && !late.contains(&trunk);
        if whole == Some(true) {
            late.retain(|other| *other != trunk);
        } else if falls_short {
            late.push(trunk);
        }
        // Gateways of two sites pair off, so that none is the first choice of all.
        let order: Vec<TrunkId> = trunks_to(&self.trunks, peer).collect();
        *partner = order.get(self.number).copied();
        let preference = |route: &TrunkId| {
            let place = order.iter().position(|other| other == route).unwrap_or(0);
            (late.contains(route), (place + order.len() - self.number % order.len()) % order.len())
        };
        routes.sort_by_key(preference);
        if is_found {
            let site = peer.clone();
            self.tell_launcher(id, JobMessage::SiteFound { job: id, site });
        }
        if !is_new {
            if falls_short && self.trunks[trunk.0].up {
                // Frames that went there may be lost.
                self.tell_members(Some(id), trunk, |others| others.then_some(Passage::Broken));
            }
            return;
        }
        self.tell_here(id, trunk);
        if self.trunks[trunk.0].up {
            self.tell_members(Some(id), trunk, |others| (!others).then_some(Passage::Open));
        }
    }

    /// Notes that a job is no longer open at the other end of a trunk.
    pub(crate) fn is_gone(&mut self, id: JobId, trunk: TrunkId, reason: &str) {
        if self.trunks[trunk.0].up {
            self.tell_members(Some(id), trunk, |others| Some(passage_without(others, reason)));
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        for site in &mut job.sites {
            site.routes.retain(|route| *route != trunk);
            site.late.retain(|route| *route != trunk);
        }
        job.unclosed.retain(|other| *other != trunk);
        job.askers.retain(|other| *other != trunk);
        if job.own != job.home {
            let name = job.home_name();
            match job.askers.first() {
                // From now on this gateway reports to another gateway of that site.
                Some(asker) => job.sites[usize::from(job.home.0)].trunk = Some(*asker),
                None => {
                    let text = format!("site {name}, where the job was started, is lost: {reason}");
                    self.cut_off(id, &text);
                }
            }
        }
        self.finish(id);
    }
}
