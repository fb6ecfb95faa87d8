//! Trying everything a run needs: keys, the own gateway, trunks, an agent on every node, provider and program there.

use std::collections::HashMap;
use std::fmt::Display;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use client::ClientError;
use client::key::{self, KeyError};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};
use types::roster::RosterError;
use types::sites::{Dialling, Site, SitesFile};
use types::{Identity, NodeRoster, Roster, SiteId, SiteRoster, Slot};
use wire::Control;
use wire::control::{AllocationMessage, JobMessage, NodeAsk};

use crate::launcher::session::{Connection, Incoming};
use crate::launcher::{SessionError, Sites};
use crate::message::{Down, Up};
use crate::tailor::Typed;

/// How long all agents together may take to come and answer.
const AGENTS: Duration = Duration::from_secs(8);

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The site.
    pub site: String,
    /// What of it, such as `gateway gw1` or `node n2`.
    pub part: String,
    /// Whether it works.
    pub ok: bool,
    /// What was found.
    pub detail: String,
}

impl Finding {
    /// A finding: what works and how, or what does not and why.
    pub fn new(site: &str, part: impl Into<String>, result: Result<String, impl Display>) -> Finding {
        let ok = result.is_ok();
        let detail = result.unwrap_or_else(|problem| problem.to_string());
        Finding { site: site.to_owned(), part: part.into(), ok, detail }
    }
}

/// What does not work, in words that do not repeat the place.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The own site has no key.
    #[error("the sites file names no `key`, so no job can be opened from here")]
    NoKey,
    /// Others may read a key.
    #[error("{path} can be read by others (mode {mode:o}): chmod 600 {path}", path = .path.display())]
    Readable {
        /// The key.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The way to the own gateway, or to a job.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The own gateway.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The job of the check.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// What a site, a gateway or an agent says.
    #[error("{0}")]
    Told(String),
    /// An agent that does not start.
    #[error("its agent could not be started: {0}")]
    NotStarted(String),
    /// Nobody answers.
    #[error("{what} within {seconds} s: look at {log}")]
    Silent {
        /// Who does not.
        what: &'static str,
        /// How long they had.
        seconds: u64,
        /// Where to look.
        log: &'static str,
    },
}

/// Tries everything, from the user's own site `home`; and the `typed` program on every node, if its command is not empty.
pub async fn check(sites: &Sites, home: &str, typed: &Typed) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for site in &sites.file.sites {
        findings.extend(check_key(sites, site, site.name == home));
    }
    let Ok(own) = sites.site(home) else { return findings };
    let gateway = check_gateway(sites, own).await;
    let reached = gateway.iter().any(|finding| finding.ok);
    findings.extend(gateway);
    if !reached {
        return findings;
    }
    let mut linked = vec![home.to_owned()];
    for site in sites.file.sites.iter().filter(|site| site.name != home) {
        let trunk = check_trunk(sites, own, site).await;
        linked.extend(trunk.ok.then(|| site.name.clone()));
        findings.push(trunk);
    }
    for site in sites.file.sites.iter().filter(|site| site.starter.allocates() && linked.contains(&site.name)) {
        findings.push(Finding::new(&site.name, "nodes", try_nodes(sites, home, &site.name).await));
    }
    findings.extend(check_nodes(sites, home, &linked, typed).await);
    findings
}

/// A key: needed at its own site; elsewhere it should not even be.
fn check_key(sites: &Sites, site: &Site, home: bool) -> Option<Finding> {
    let Some(path) = sites.key_path(site) else {
        return home.then(|| Finding::new(&site.name, "key", Err(CheckError::NoKey)));
    };
    if !home && !path.exists() {
        return None;
    }
    let checked = sites.client_secret(site).map_err(CheckError::from).and_then(|_| {
        let mode = std::fs::metadata(&path).map_or(0, |found| found.permissions().mode() & 0o777);
        if mode & 0o077 != 0 {
            return Err(CheckError::Readable { path: path.clone(), mode });
        }
        let loaded = key::load(&path)?;
        Ok(format!("{} is {}", path.display(), loaded.fingerprint()))
    });
    Some(Finding::new(&site.name, "key", checked))
}

async fn check_gateway(sites: &Sites, own: &Site) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gateway in &own.gateways {
        let one = Site { gateways: vec![gateway.clone()], ..own.clone() };
        let began = Instant::now();
        let (result, unread) = match sites.connect(&one).await {
            Ok((mut client, _)) => {
                let admitted = format!("{} admits us in {:.1} ms", gateway.inside, began.elapsed().as_secs_f64() * 1e3);
                (Ok(admitted), client.standing(false).await.ok().and_then(|standing| standing.stale))
            }
            Err(error) => (Err(error), None),
        };
        findings.push(Finding::new(&own.name, format!("gateway {}", gateway.name), result));
        findings.extend(unread.map(|unread| {
            let told = format!("{unread}: `landbridge sites apply` has every gateway work by it");
            Finding::new(&own.name, "sites file", Err(CheckError::Told(told)))
        }));
    }
    findings
}

/// Tries the trunk from the user's own site to another.
pub async fn check_trunk(sites: &Sites, own: &Site, site: &Site) -> Finding {
    let probed = async {
        let (mut client, _) = sites.connect(own).await?;
        Ok::<_, CheckError>(client.probe(&site.name).await?)
    };
    let how = if goes_through_ssh(&sites.file, own, site) { ", through ssh" } else { "" };
    let result = probed.await.map(|rtt| format!("round trip from {} {:.2} ms{how}", own.name, rtt.as_secs_f64() * 1e3));
    Finding::new(&site.name, format!("trunk from {}", own.name), result)
}

/// Whether the first gateways of two sites reach each other through ssh.
fn goes_through_ssh(file: &SitesFile, own: &Site, other: &Site) -> bool {
    let at = |wanted: &Site| file.sites.iter().position(|site| site.name == wanted.name);
    let (earlier, later) = if at(own) < at(other) { (own, other) } else { (other, own) };
    match (earlier.gateways.first(), later.gateways.first()) {
        (Some(earlier), Some(later)) => Dialling::between(earlier, later).is_ssh(),
        _ => false,
    }
}

/// Asks a site's batch system whether it would give nodes; makes no job.
async fn try_nodes(sites: &Sites, home: &str, site: &str) -> Result<String, CheckError> {
    let mut connection = Connection::new(sites, home).await?;
    let wait_s = AGENTS.as_secs() as u32;
    connection
        .ask(site, NodeAsk { ranks: 0, per_node: None, wait_s, held: None, elsewhere: 0, beyond_home: 0 })
        .await?;
    let mut said = String::new();
    let answer = async {
        loop {
            match connection.next().await? {
                Control::Allocation(AllocationMessage::Waiting { state, .. }) => said = state,
                Control::Allocation(AllocationMessage::Granted { .. }) => return Ok(std::mem::take(&mut said)),
                Control::Job(JobMessage::Refused { reason, .. }) => {
                    let advice = nodes_advice(site, &reason);
                    return Err(CheckError::Told(format!("{reason}{advice}")));
                }
                _ => {}
            }
        }
    };
    let answer = timeout_at(Instant::now() + AGENTS * 2, answer).await;
    connection.give_back(Duration::from_secs(1)).await;
    let (what, log) = ("no answer", "its gateway's log");
    answer.unwrap_or(Err(CheckError::Silent { what, seconds: 2 * AGENTS.as_secs(), log }))
}

/// The command that gives Slurm what it misses in a job of ours.
fn nodes_advice(site: &str, reason: &str) -> String {
    if !reason.contains("salloc") {
        return String::new();
    }
    let reason = reason.to_lowercase();
    // What salloc was asked with stands in backquotes; what it answered comes after.
    let answer = reason.rsplit('`').next().unwrap_or_default();
    let key = [
        ("qos", "qos=NAME"),
        ("partition", "partition=NAME"),
        ("account", "account=NAME"),
        ("time limit", "time=TIME"),
    ];
    // Slurm's "account or account/partition combination" is about accounts.
    let key = match answer.contains("invalid account") {
        true => Some("account=NAME"),
        false => key.into_iter().find(|(word, _)| answer.contains(word)).map(|(_, setting)| setting),
    };
    let setting = key.unwrap_or("KEY=VALUE");
    format!("; `landbridge sites add {site} --slurm {setting}` sets it for every job")
}

/// Starts an agent on every node in a job without ranks, and asks it for provider and program.
async fn check_nodes(sites: &Sites, home: &str, linked: &[String], typed: &Typed) -> Vec<Finding> {
    let reached = sites.file.sites.iter().filter(|site| linked.contains(&site.name));
    let rostered = reached.map(|site| SiteRoster {
        name: site.name.clone(),
        nodes: site.nodes.iter().map(|node| NodeRoster { name: node.name.clone(), ranks: 0 }).collect(),
    });
    let roster = match Roster::new(rostered.collect()) {
        Ok(roster) => roster,
        Err(error) => return vec![Finding::new(home, "nodes", Err(error))],
    };
    let mut asked = Asked::new(&roster);
    if let Err(error) = ask(sites, home, &roster, typed, &mut asked).await {
        asked.fail_rest(|_| true, || CheckError::Told(error.to_string()));
    }
    let (what, log) = ("its agent did not answer", "the gateway's log");
    asked.fail_rest(|_| true, || CheckError::Silent { what, seconds: AGENTS.as_secs(), log });
    asked.findings(&roster)
}

async fn ask(sites: &Sites, home: &str, roster: &Roster, typed: &Typed, asked: &mut Asked) -> Result<(), SessionError> {
    let mut session = Connection::new(sites, home).await?.open(roster).await?;
    let end = Instant::now() + AGENTS;
    while !asked.complete() {
        session.flush();
        let Ok(incoming) = timeout_at(end, session.next()).await else { break };
        for incoming in incoming? {
            match incoming {
                Incoming::Up(agent, Up::Here) => {
                    let site = roster.site(agent.site).map_or("", |site| &site.name);
                    let program = Box::new(typed.from_home(home, &sites.file, site));
                    session.send(agent, &Down::Prepare { program, roster: roster.to_string() })?;
                }
                Incoming::Up(agent, Up::Ready { mpi, notes }) => {
                    let mpi = mpi.map_or(String::new(), |mpi| format!(", the program uses {mpi}"));
                    let notes = notes.into_iter().map(|note| format!("; {note}")).collect::<String>();
                    asked.answer(agent, Ok(format!("agent and provider work{mpi}{notes}")));
                }
                Incoming::Up(agent, Up::Refused { reason }) => asked.answer(agent, Err(CheckError::Told(reason))),
                Incoming::Up(..) | Incoming::GatewayOpen(_) | Incoming::GatewayLost(..) | Incoming::Note(_) => {}
                Incoming::Job(_, message) => asked.gateway_says(message, roster),
            }
        }
    }
    for agent in asked.agents() {
        session.send(agent, &Down::Finish)?;
    }
    session.flush();
    session.close();
    // The gateways end what is left; waiting for their word keeps the next job from meeting this one.
    let closing = async {
        let mut left = roster.sites().len();
        while left > 0 {
            let closed =
                |incoming: &Incoming| matches!(incoming, Incoming::Job(_, JobMessage::Closed { led: true, .. }));
            left -= session.next().await?.iter().filter(|incoming| closed(incoming)).count().min(left);
        }
        Ok::<(), SessionError>(())
    };
    match timeout_at(Instant::now() + Duration::from_secs(3), closing).await {
        Ok(result) => result,
        Err(_) => Ok(()),
    }
}

/// The nodes that were asked, and what they said.
struct Asked {
    nodes: Vec<(Identity, String)>,
    answers: HashMap<Identity, Result<String, CheckError>>,
}

impl Asked {
    fn new(roster: &Roster) -> Asked {
        let nodes = roster.nodes().filter_map(|(site, node, _, entry)| {
            Some((Identity { site, slot: Slot::agent(node)? }, entry.name.clone()))
        });
        Asked { nodes: nodes.collect(), answers: HashMap::new() }
    }

    fn complete(&self) -> bool {
        self.answers.len() >= self.nodes.len()
    }

    fn agents(&self) -> Vec<Identity> {
        self.nodes.iter().map(|(agent, _)| *agent).collect()
    }

    fn answer(&mut self, agent: Identity, result: Result<String, CheckError>) {
        if self.nodes.iter().any(|(known, _)| *known == agent) {
            self.answers.entry(agent).or_insert(result);
        }
    }

    fn fail_rest(&mut self, which: impl Fn(Identity) -> bool, problem: impl Fn() -> CheckError) {
        for agent in self.agents().into_iter().filter(|agent| which(*agent)) {
            self.answer(agent, Err(problem()));
        }
    }

    fn gateway_says(&mut self, message: JobMessage, roster: &Roster) {
        let index = |name: &str| roster.sites().iter().position(|site| site.name == name).map(|at| SiteId(at as u16));
        match message {
            JobMessage::Refused { site, reason, .. } | JobMessage::SiteLost { site, reason, .. } => {
                let site = index(&site);
                self.fail_rest(|agent| Some(agent.site) == site, || CheckError::Told(reason.clone()));
            }
            JobMessage::AgentLost { site, node, reason, .. } => {
                let site = index(&site);
                let named = self.nodes.iter().find(|(agent, name)| Some(agent.site) == site && *name == node);
                if let Some(agent) = named.map(|(agent, _)| *agent) {
                    self.answer(agent, Err(CheckError::NotStarted(reason)));
                }
            }
            JobMessage::MemberLost { member, reason, .. } => self.answer(member, Err(CheckError::Told(reason))),
            _ => {}
        }
    }

    fn findings(mut self, roster: &Roster) -> Vec<Finding> {
        let nodes = std::mem::take(&mut self.nodes);
        let finding = |(agent, name): (Identity, String)| {
            let site = roster.site(agent.site).map_or("", |site| &site.name);
            let answer = self.answers.remove(&agent).unwrap_or_else(|| Err(CheckError::Told("no answer".into())));
            Finding::new(site, format!("node {name}"), answer)
        };
        nodes.into_iter().map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{JobId, NodeId};

    #[test]
    fn what_slurm_misses_is_named_with_the_flag() {
        let advice = |answer: &str| {
            nodes_advice("lyon", &format!("Slurm gave no nodes: `salloc --account=x`: exit status 1: {answer}"))
        };
        for (answer, flag) in [
            ("error: Job submit/allocate failed: No partition specified or system default partition", "partition=NAME"),
            ("Invalid account or account/partition combination specified", "account=NAME"),
            ("Invalid qos specification", "qos=NAME"),
            ("Job violates accounting/QOS policy", "qos=NAME"),
            ("Requested time limit is invalid (missing or exceeds some limit)", "time=TIME"),
            ("Requested node configuration is not available", "KEY=VALUE"),
        ] {
            assert!(advice(answer).contains(&format!("`landbridge sites add lyon --slurm {flag}`")), "{answer}");
        }
        assert_eq!(nodes_advice("lyon", "no answer"), "");
    }

    #[test]
    fn every_node_gets_a_finding() {
        let roster: Roster = "a:n1*0;b:n1*0,n2*0".parse().unwrap();
        let mut asked = Asked::new(&roster);
        let agent = |site, node| Identity { site: SiteId(site), slot: Slot::agent(NodeId(node)).unwrap() };
        asked.answer(agent(0, 0), Ok("fine".into()));
        let lost =
            JobMessage::AgentLost { job: JobId(1), site: "b".into(), node: "n2".into(), reason: "no ssh".into() };
        asked.gateway_says(lost, &roster);
        assert!(!asked.complete());
        asked.gateway_says(JobMessage::Refused { job: JobId(1), site: "b".into(), reason: "full".into() }, &roster);
        assert!(asked.complete());
        let findings = asked.findings(&roster);
        let texts: Vec<_> =
            findings.iter().map(|f| (f.site.as_str(), f.part.as_str(), f.ok, f.detail.as_str())).collect();
        assert_eq!(texts[0], ("a", "node n1", true, "fine"));
        assert_eq!(texts[1], ("b", "node n1", false, "full"));
        assert_eq!(texts[2], ("b", "node n2", false, "its agent could not be started: no ssh"));
    }
}
