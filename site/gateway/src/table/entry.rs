//! Checks before a job is opened at a gateway: its number, its sites and nodes, and the memory that its home site
//! already uses here. Part of [`Table`].

use std::collections::{BTreeSet, HashMap};

use types::roster::FORWARDER;
use types::{JobId, NodeRoster, Roster, SiteId};
use wire::Secret;
use wire::control::{Part, Traffic};

use crate::log::short;
use crate::table::Table;
use crate::table::allocation::Asker;
use crate::table::error::{JobError, Refused};
use crate::table::job::{Job, members_of, ranks_of, spans_of};
use crate::table::site::{SitePhase, SiteState};

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
        if id == JobId::default() {
            return Err(here(JobError::Zero));
        }
        if self.jobs.contains_key(&id) {
            return Err(here(JobError::Open(id)));
        }
        if self.allocations.get(&id).is_some_and(|found| found.asker != *asker) {
            return Err(here(JobError::Anothers(id)));
        }
        // A roster that arrived as JSON has not passed its constructor's checks.
        let roster = Roster::new(roster.sites().to_vec()).map_err(|error| here(error.into()))?;
        // The roster may be long.
        let shown = || short(&roster.to_string()).to_owned();
        let missing = || here(JobError::NotInRoster { site: self.site.clone(), roster: shown() });
        let own = self.own_id(&roster).ok_or_else(missing)?;
        let home_name = asked_by.map_or(&self.site, |trunk| &self.trunks[trunk.0].site);
        let mut sites = Vec::new();
        let mut home = None;
        for (at, site) in roster.sites().iter().enumerate() {
            if roster.sites()[..at].iter().any(|other| other.name == site.name) {
                return Err(here(JobError::Twice { site: site.name.clone(), roster: shown() }));
            }
            if site.name == *home_name {
                home = Some(SiteId(at as u16));
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
        let home = home.ok_or_else(|| here(JobError::HomeNotInRoster { home: home_name.clone(), roster: shown() }))?;
        if part == Part::Lead
            && let Some(own_roster) = roster.site(own)
            && let Some(unknown) =
                own_roster.nodes.iter().find(|node| !self.has_node(id, &node.name) && !is_beside(node))
        {
            if unknown.name == FORWARDER {
                return Err(here(JobError::ForwardsNothing { site: self.site.clone() }));
            }
            let known = match self.nodes.join(", ") {
                none if none.is_empty() => "those of a job's allocation".to_owned(),
                known => known,
            };
            let (site, node) = (self.site.clone(), short(&unknown.name).to_owned());
            return Err(here(JobError::UnknownNode { site, node, known }));
        }
        let local = members_of(&roster, own, home);
        let all: u64 = (0..roster.sites().len()).map(|at| members_of(&roster, SiteId(at as u16), home)).sum();
        self.check_described(home_name, &roster).map_err(here)?;
        let kept = self.kept_from(home_name);
        let grant = match part.window() {
            None => self.grants.grant(all - local, kept),
            Some(window) => self.grants.grant_window(all - local, window, kept),
        };
        let grant = grant.map_err(|error| here(error.into()))?;
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
        if let Some(suppressed) = self.may_log(home_name) {
            let roster = job.roster.to_string();
            tracing::info!(suppressed, job = %id, home = home_name, roster = short(&roster), window = grant.window,
                "job opening");
        }
        self.jobs.insert(id, job);
        self.ended.retain(|ended| *ended != id);
        Ok(own)
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
