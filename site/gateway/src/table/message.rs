//! Messages about jobs and nodes from gateways of other sites, and their handling. Part of [`Table`].
//!
//! There are three cases. A message that no gateway following the protocol sends is a violation, and its link is cut:
//! news about a site other than the sender's, or orders for one. A message about a job in which the site has no part,
//! or over a trunk on which the site was not asked, is ignored. A late message is ignored or answered as such: the job
//! may have ended, or this gateway may have given up the site, while the message was in flight or its sender was
//! suspended, and the trunk serves other jobs as well.

use types::{JobId, Roster};
use wire::Secret;
use wire::control::{JobMessage, Part, Traffic};

use crate::log::{log, short};
use crate::table::error::Violation;
use crate::table::job::Job;
use crate::table::site::SitePhase;
use crate::table::{Table, TrunkId};

impl<M: Clone + PartialEq> Table<M> {
    /// Handles a message about a job from a trunk.
    ///
    /// # Errors
    /// No gateway that follows the protocol sends it: close the link.
    pub(crate) fn job_from_trunk(&mut self, trunk: TrunkId, message: JobMessage) -> Result<(), Violation> {
        let peer = self.trunks[trunk.0].site.clone();
        let wrong = |what| Err(Violation(format!("site {peer} may not send {what}")));
        match message {
            JobMessage::Open { job, secret, roster, home, part } => {
                if home != peer {
                    return wrong("a message about a job of another site");
                }
                self.open_or_refuse(trunk, (job, secret), roster, part);
            }
            JobMessage::Here { job, whole } => {
                if self.jobs.contains_key(&job) {
                    self.is_here(job, trunk, Some(whole));
                } else if self.ended.contains(&job) {
                    // If the job was requested from here, the other gateway has not heard of its end; for other jobs
                    // this message does no harm. Nothing is sent about a job that is not known yet: the launcher may be
                    // about to open it here, and the other gateway would take the message for the end of that job.
                    self.tell(trunk, JobMessage::left(job));
                }
            }
            JobMessage::Wanted { job } => {
                let asked = self.jobs.get(&job).is_some_and(|open| open.own == open.home && open.has_part(&peer));
                if !asked {
                    self.tell(trunk, JobMessage::left(job));
                }
            }
            JobMessage::Close { job, everywhere: true } => self.close_asked(trunk, job),
            JobMessage::Close { job, everywhere: false } => self.is_left(trunk, job),
            JobMessage::Opened { job, ref site, .. }
            | JobMessage::Refused { job, ref site, .. }
            | JobMessage::AgentLost { job, ref site, .. }
            | JobMessage::Closed { job, ref site, .. } => {
                if *site != peer {
                    return wrong("news about another site");
                }
                if self.jobs.contains_key(&job) {
                    self.news(job, trunk, message);
                } else {
                    self.news_before_opening(job, trunk, message);
                }
            }
            JobMessage::MemberLost { job, member, .. } => {
                let Some(open) = self.jobs.get(&job) else { return Ok(()) };
                if open.has_part(&peer) && open.roster.site(member.site).is_none_or(|site| site.name != peer) {
                    return wrong("news about another site");
                }
                self.news(job, trunk, message);
            }
            JobMessage::SiteLost { job, ref seen_from, .. } => {
                if *seen_from != peer {
                    return wrong("news about another site");
                }
                self.news(job, trunk, message);
            }
            JobMessage::LeadLost { .. } | JobMessage::SiteFound { .. } | JobMessage::Stopped { .. } => {
                return wrong("a message for launchers");
            }
        }
        Ok(())
    }

    /// Opens a job that the launcher's site, over this trunk, asks for, or reports the reason against it.
    fn open_or_refuse(&mut self, trunk: TrunkId, (job, secret): (JobId, Secret), roster: Roster, part: Part) {
        if let Err(why) = self.open_asked(trunk, job, secret, roster, part) {
            let (site, reason) = (self.site.clone(), why.to_string());
            let peer = &self.trunks[trunk.0].site;
            log!(warn, peer, %job, from = peer, reason, "job refused");
            self.tell(trunk, JobMessage::Refused { job, site, reason });
            self.abandoned_over(job, trunk);
        }
    }

    /// Closes a job that the launcher's site, over this trunk, orders to end.
    fn close_asked(&mut self, trunk: TrunkId, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return self.closed_already(id, trunk) };
        if !job.askers.contains(&trunk) {
            // Either the message is late: this gateway had already given up its sender. Or the sender's site did not
            // start the job and may not end it.
            if job.home_name() == self.trunks[trunk.0].site {
                self.tell(trunk, nothing_left(id, &self.site));
            }
        } else if job.closing && job.sites[usize::from(job.home.0)].trunk != Some(trunk) {
            // Another gateway of the launcher's site was first, and gets the report.
            self.tell(trunk, nothing_left(id, &self.site));
        } else {
            let home = usize::from(job.home.0);
            job.sites[home].trunk = Some(trunk);
            self.close(id, "the launcher closed the job");
        }
    }

    /// Handles the notice that the gateway at the other end of a trunk has nothing left of a job. It may have been cut
    /// off from its launcher or from its members, so its part of the job is lost, and nothing more. The home site asks
    /// it again to relay.
    fn is_left(&mut self, trunk: TrunkId, id: JobId) {
        let (site, reason) =
            (self.trunks[trunk.0].site.clone(), "its gateway has lost the launcher or its part of the job");
        self.lost_over(id, trunk, reason);
        if self.jobs.get(&id).is_some_and(|job| !job.closing && job.has_part(&site)) {
            self.open_relay(id, trunk);
        }
    }

    /// Answers a gateway that ends a job it had asked for, when there is no such job here.
    fn closed_already(&mut self, id: JobId, trunk: TrunkId) {
        if self.allocations.contains_key(&id) {
            self.abandoned_over(id, trunk);
        } else {
            self.tell(trunk, nothing_left(id, &self.site));
        }
    }

    /// Handles news about a job that started here: updates the table and forwards the news to the launcher. Accepted
    /// only from a site of the job, over a trunk on which that site was asked.
    fn news(&mut self, id: JobId, trunk: TrunkId, message: JobMessage) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.own == job.home) else { return };
        let peer = &self.trunks[trunk.0].site;
        if !job.has_part(peer) || !job.was_asked(trunk) {
            tracing::debug!(job = %id, site = peer, "ignoring news of a job that was not requested there");
            return;
        }
        if let JobMessage::SiteLost { site, .. } = &message
            && !job.has_part(site)
        {
            return;
        }
        // A gateway that was given up no longer leads, even if it still sends news of the time when it did.
        let leads_there = job.leads()
            && job.sites.iter().any(|site| site.trunk == Some(trunk) && site.phase != SitePhase::Leaderless);
        if !leads_there {
            match message {
                JobMessage::Closed { site, traffic, led, .. } => {
                    let unclosed = !job.closing && job.unclosed.contains(&trunk);
                    let led = led && (job.closing || !job.leads());
                    self.tell_launcher(id, JobMessage::Closed { job: id, site, traffic, led });
                    self.is_gone(id, trunk, "its gateway closed the job");
                    if unclosed {
                        // The message is unrequested, or a late answer to an end before the launcher opened the job
                        // here again. The gateway may have the job open again, and would not hear of the next end. If
                        // it has no such job, this reply does no harm.
                        self.tell(trunk, JobMessage::left(id));
                    }
                }
                JobMessage::Refused { site, reason, .. } => {
                    log!(warn, &site, job = %id, site, reason = short(&reason), "not using a gateway");
                    self.is_gone(id, trunk, &reason);
                }
                // From the gateway that leads the job there, which has lost the gateway that leads it here.
                JobMessage::AgentLost { .. } | JobMessage::MemberLost { .. } | JobMessage::SiteLost { .. } => {
                    self.tell_launcher(id, message);
                }
                _ => {}
            }
            return;
        }
        let Some(site) = job.sites.iter_mut().find(|site| site.trunk == Some(trunk)) else { return };
        let before = site.phase;
        match message {
            JobMessage::Opened { .. } if before == SitePhase::Asked => site.phase = SitePhase::Open,
            JobMessage::Refused { .. } => site.phase = SitePhase::Refused,
            JobMessage::Closed { .. } if before != SitePhase::Refused => site.phase = SitePhase::Closed,
            JobMessage::Opened { .. } | JobMessage::Closed { .. } => return,
            _ => {}
        }
        self.tell_launcher(id, message);
        self.finish(id);
    }
}

impl<M> Job<M> {
    /// Returns true if a site takes part in the job.
    fn has_part(&self, site: &str) -> bool {
        self.roster.sites().iter().any(|one| one.name == site)
    }

    /// At home: returns true if the job was requested over this trunk.
    fn was_asked(&self, trunk: TrunkId) -> bool {
        let asked = self.sites.iter().any(|site| site.trunk == Some(trunk) && site.phase != SitePhase::Waiting);
        asked || self.unclosed.contains(&trunk)
    }
}

/// The report that this gateway has nothing left of a job, or that other gateways report for it.
fn nothing_left(job: JobId, site: &str) -> JobMessage {
    JobMessage::Closed { job, site: site.to_owned(), traffic: Traffic::default(), led: false }
}
