//! Checks before a job is opened at a gateway: its number, its sites and nodes, and the memory that its home site
//! already uses here. Part of [`Table`].

use std::collections::{BTreeSet, HashMap};

use types::roster::FORWARDER;
use types::{JobId, NodeRoster, Roster, SiteId};
use wire::Secret;
use wire::control::{Part, Traffic};

use crate::log::short;

use crate::table::allocation::Asker;
use crate::table::error::{JobError, Refused};
use crate::table::job::{Job, members_of, ranks_of, spans_of};
use crate::table::site::{SitePhase, SiteState};
use crate::table::window::Grant;
use crate::table::{Table, TrunkId};

impl<M: Clone + PartialEq> Table<M> {
    /// Checks a job and enters it into the table. `asker`: the peer that wants it opened.
    ///
    /// # Errors
    /// The site that cannot take part, and the reason.
    pub(crate) fn enter(
        &mut self,
        id: JobId,
        secret: Secret,
        roster: Roster,
        part: Part,
        asker: &Asker<M>,
    ) -> Result<SiteId, Refused> {
        let here = |why: JobError| Refused { site: self.site.clone(), why };
        let asked_by = asker.trunk();
        self.may_enter(id, asker).map_err(here)?;
        // A roster that arrived as JSON has not passed its constructor's checks.
        let roster = Roster::new(roster.sites().to_vec()).map_err(|error| here(error.into()))?;
        let missing = || here(JobError::NotInRoster { site: self.site.clone(), roster: shown(&roster) });
        let own = self.own_id(&roster).ok_or_else(missing)?;
        let home_name = asked_by.map_or(&self.site, |trunk| &self.trunks[trunk.0].site).clone();
        let sites = self.site_states(id, &roster, part, asked_by, &home_name)?;
        let home = roster.sites().iter().position(|site| site.name == home_name).map(|at| SiteId(at as u16));
        let home =
            home.ok_or_else(|| here(JobError::HomeNotInRoster { home: home_name.clone(), roster: shown(&roster) }))?;
        if part == Part::Lead {
            self.check_nodes(id, &roster, own).map_err(here)?;
        }
        let grant = self.grant(&home_name, &roster, (own, home), part);
        let grant = grant.map_err(|why| Refused { site: self.site.clone(), why })?;
        self.epoch += 1;
        let job = Job {
            secret,
            ranks: ranks_of(&roster, own),
            spans: spans_of(&roster),
            roster,
            own,
            home,
            part,
            askers: asked_by.into_iter().collect(),
            window: part.window(),
            unclosed: Vec::new(),
            sites,
            members: HashMap::new(),
            lost: HashMap::new(),
            agents: BTreeSet::new(),
            grant,
            traffic: Traffic::default(),
            closing: false,
            refused: false,
            // Only the lead starts agents.
            started: !part.leads(),
            epoch: self.epoch,
        };
        if let Some(suppressed) = self.may_log(&home_name) {
            let roster = job.roster.to_string();
            tracing::info!(suppressed, job = %id, home = home_name, roster = short(&roster), window = grant.window,
                "job opening");
        }
        self.jobs.insert(id, job);
        self.ended.retain(|ended| *ended != id);
        Ok(own)
    }

    /// Checks that a job of this number may be opened for this peer.
    fn may_enter(&self, id: JobId, asker: &Asker<M>) -> Result<(), JobError> {
        if id == JobId::default() {
            return Err(JobError::Zero);
        }
        if self.jobs.contains_key(&id) {
            return Err(JobError::Open(id));
        }
        match self.allocations.get(&id) {
            Some(found) if found.asker != *asker => Err(JobError::Anothers(id)),
            _ => Ok(()),
        }
    }

    /// The state of each site of a job, with the trunk to it.
    ///
    /// # Errors
    /// The site that cannot take part, and the reason.
    fn site_states(
        &self,
        id: JobId,
        roster: &Roster,
        part: Part,
        asked_by: Option<TrunkId>,
        home_name: &str,
    ) -> Result<Vec<SiteState>, Refused> {
        let mut sites = Vec::new();
        for (at, site) in roster.sites().iter().enumerate() {
            if roster.sites()[..at].iter().any(|other| other.name == site.name) {
                let why = JobError::Twice { site: site.name.clone(), roster: shown(roster) };
                return Err(Refused { site: self.site.clone(), why });
            }
            if site.name == self.site {
                sites.push(SiteState::new(None, SitePhase::Asked));
                continue;
            }
            let trunk = match asked_by {
                Some(trunk) if site.name == *home_name => trunk,
                _ => self.asked_for_nodes(id, &site.name).or_else(|| self.lead_trunk(&site.name)).ok_or_else(|| {
                    let (own, site) = (self.site.clone(), site.name.clone());
                    Refused { site: site.clone(), why: JobError::UnknownSite { own, site } }
                })?,
            };
            let phase = if part.leads() { SitePhase::Waiting } else { SitePhase::Asked };
            sites.push(SiteState::new(Some(trunk), phase));
        }
        Ok(sites)
    }

    /// Checks that this site has the nodes that a job names.
    fn check_nodes(&self, id: JobId, roster: &Roster, own: SiteId) -> Result<(), JobError> {
        let nodes = roster.site(own).map_or(&[][..], |own| &own.nodes);
        let Some(unknown) = nodes.iter().find(|node| !self.has_node(id, &node.name) && !is_beside(node)) else {
            return Ok(());
        };
        if unknown.name == FORWARDER {
            return Err(JobError::ForwardsNothing { site: self.site.clone() });
        }
        let known = match self.nodes.join(", ") {
            none if none.is_empty() => "those of a job's allocation".to_owned(),
            known => known,
        };
        let (site, node) = (self.site.clone(), short(&unknown.name).to_owned());
        Err(JobError::UnknownNode { site, node, known })
    }

    /// The memory for a job's frames.
    ///
    /// # Errors
    /// Its home site already uses too much.
    fn grant(
        &mut self,
        home_name: &str,
        roster: &Roster,
        (own, home): (SiteId, SiteId),
        part: Part,
    ) -> Result<Grant, JobError> {
        let local = members_of(roster, own, home);
        let all: u64 = (0..roster.sites().len()).map(|at| members_of(roster, SiteId(at as u16), home)).sum();
        self.check_described(home_name, roster)?;
        let kept = self.kept_from(home_name);
        let grant = match part.window() {
            None => self.grants.grant(all - local, kept),
            Some(window) => self.grants.grant_window(all - local, window, kept),
        };
        Ok(grant?)
    }

    /// Gateway memory that is reserved for jobs of other homes. This site is not limited: its users share this gateway
    /// with no other site's.
    pub(crate) fn kept_from(&self, home: &str) -> u64 {
        if home == self.site {
            return 0;
        }
        self.grants.kept(self.jobs.values().filter(|job| job.home_name() == home).map(|job| job.grant.bytes()).sum())
    }

    /// # Errors
    /// The descriptions of the home's jobs alone would take too much of the gateway's memory.
    fn check_described(&self, home: &str, roster: &Roster) -> Result<(), JobError> {
        if home == self.site {
            return Ok(());
        }
        let theirs = || self.jobs.values().filter(|job| job.home_name() == home);
        let (described, most) = (theirs().map(|job| described(&job.roster)).sum::<u64>(), self.grants.described());
        if described + self::described(roster) > most {
            return Err(JobError::Described { home: home.to_owned(), jobs: theirs().count(), described, most });
        }
        Ok(())
    }
}

/// A roster for messages: it may be long.
fn shown(roster: &Roster) -> String {
    short(&roster.to_string()).to_owned()
}

/// Returns true if a roster's node is this gateway's own machine, for movers of files. It needs no entry in the sites
/// file.
fn is_beside(node: &NodeRoster) -> bool {
    node.name == FORWARDER && node.ranks > 0
}

/// Approximate bytes that a job's entry takes, without its members' frames in flight.
fn described(roster: &Roster) -> u64 {
    const ENTRY: usize = 4 << 10;
    let name = |name: &String| size_of::<String>() + size_of::<u64>() + name.len();
    let nodes = |site: &types::SiteRoster| site.nodes.iter().map(|node| name(&node.name)).sum::<usize>();
    let span = size_of::<(u32, u32)>();
    (ENTRY + roster.sites().iter().map(|site| span + name(&site.name) + nodes(site)).sum::<usize>()) as u64
}
