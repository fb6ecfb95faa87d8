//! Checks of every node by an agent: it starts, reaches its gateway, loads the provider and finds the program.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use types::{Identity, NodeRoster, Roster, SiteId, SiteRoster, Slot};
use wire::control::{JobMessage, Part};

use super::{AGENTS, CheckError, Finding};
use job::message::{Down, Program, Up};
use launcher::session::{Connection, Incoming};
use launcher::tailor::Typed;
use launcher::{SessionError, Sites};

/// Starts an agent on every node in a job without ranks. The agent checks provider and program.
pub(super) async fn check(sites: &Sites, home: &str, linked: &[String], typed: &Typed) -> Vec<Finding> {
    let reached = sites.file.sites.iter().filter(|site| linked.contains(&site.name));
    let rostered = reached.map(|site| SiteRoster {
        name: site.name.clone(),
        nodes: site.nodes.iter().map(|node| NodeRoster { name: node.name.clone(), ranks: 0 }).collect(),
    });
    let roster = match Roster::new(rostered.collect()) {
        Ok(roster) => roster,
        Err(error) => return vec![Finding::new(home, "nodes", Err(error))],
    };
    ask_in(Connection::new(sites, home).await, sites, home, &roster, typed, AGENTS).await
}

/// Opens a job over this connection. An agent on each of its nodes checks provider and program. Every node gets a
/// finding.
pub(super) async fn ask_in(
    connection: Result<Connection, SessionError>,
    sites: &Sites,
    home: &str,
    roster: &Roster,
    typed: &Typed,
    limit: Duration,
) -> Vec<Finding> {
    let mut asked = Asked::new(roster);
    let program = |site: &str| typed.from_home(home, &sites.file, site);
    let result = match connection {
        Ok(connection) => ask(connection, roster, program, &mut asked, limit).await,
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        asked.fail_rest(|_| true, || CheckError::Reported(error.to_string()));
    }
    let (what, log) = ("its agent did not answer", "the gateway's log");
    asked.fail_rest(|_| true, || CheckError::Silent { what, seconds: limit.as_secs(), log });
    asked.findings(roster)
}

async fn ask(
    connection: Connection,
    roster: &Roster,
    program: impl Fn(&str) -> Program,
    asked: &mut Asked,
    limit: Duration,
) -> Result<(), SessionError> {
    let mut session = connection.open(roster, Part::Lead).await?;
    let end = Instant::now() + limit;
    while !asked.complete() {
        session.flush();
        let Ok(incoming) = timeout_at(end, session.next()).await else { break };
        for incoming in incoming? {
            match incoming {
                Incoming::Up(agent, Up::Here) => {
                    let site = roster.site(agent.site).map_or("", |site| &site.name);
                    let program = Box::new(program(site));
                    session.send(agent, &Down::Prepare { program, roster: roster.to_string() })?;
                }
                Incoming::Up(agent, Up::Ready { mpi, notes, .. }) => {
                    let mpi = mpi.map_or(String::new(), |mpi| format!(", the program uses {mpi}"));
                    let notes = notes.into_iter().map(|note| format!("; {note}")).collect::<String>();
                    asked.answer(agent, Ok(format!("agent and provider work{mpi}{notes}")));
                }
                Incoming::Up(agent, Up::Refused { reason }) => asked.answer(agent, Err(CheckError::Reported(reason))),
                Incoming::Up(..)
                | Incoming::GatewayOpen(_)
                | Incoming::GatewayLost(..)
                | Incoming::GatewayBack { .. }
                | Incoming::Note(_) => {}
                Incoming::Job(_, message) => asked.gateway_reports(message, roster),
            }
        }
    }
    for agent in asked.agents() {
        session.send(agent, &Down::Finish)?;
    }
    session.flush();
    session.close();
    // The gateways end the remaining agents. Waiting for them keeps the next job from meeting this one.
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

/// The nodes that were asked, and their replies.
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

    fn gateway_reports(&mut self, message: JobMessage, roster: &Roster) {
        let index = |name: &str| roster.sites().iter().position(|site| site.name == name).map(|at| SiteId(at as u16));
        match message {
            JobMessage::Refused { site, reason, .. } | JobMessage::SiteLost { site, reason, .. } => {
                let site = index(&site);
                self.fail_rest(|agent| Some(agent.site) == site, || CheckError::Reported(reason.clone()));
            }
            JobMessage::AgentLost { site, node, reason, .. } => {
                let site = index(&site);
                let named = self.nodes.iter().find(|(agent, name)| Some(agent.site) == site && *name == node);
                if let Some(agent) = named.map(|(agent, _)| *agent) {
                    self.answer(agent, Err(CheckError::NotStarted(reason)));
                }
            }
            JobMessage::MemberLost { member, reason, .. } => self.answer(member, Err(CheckError::Reported(reason))),
            _ => {}
        }
    }

    fn findings(mut self, roster: &Roster) -> Vec<Finding> {
        let nodes = std::mem::take(&mut self.nodes);
        let finding = |(agent, name): (Identity, String)| {
            let site = roster.site(agent.site).map_or("", |site| &site.name);
            let answer = self.answers.remove(&agent).unwrap_or_else(|| Err(CheckError::Reported("no answer".into())));
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
    fn every_node_gets_a_finding() {
        let roster: Roster = "a:n1*0;b:n1*0,n2*0".parse().unwrap();
        let mut asked = Asked::new(&roster);
        let agent = |site, node| Identity { site: SiteId(site), slot: Slot::agent(NodeId(node)).unwrap() };
        asked.answer(agent(0, 0), Ok("fine".into()));
        let lost =
            JobMessage::AgentLost { job: JobId(1), site: "b".into(), node: "n2".into(), reason: "no ssh".into() };
        asked.gateway_reports(lost, &roster);
        assert!(!asked.complete());
        asked.gateway_reports(JobMessage::Refused { job: JobId(1), site: "b".into(), reason: "full".into() }, &roster);
        assert!(asked.complete());
        let findings = asked.findings(&roster);
        let texts: Vec<_> =
            findings.iter().map(|f| (f.site.as_str(), f.part.as_str(), f.ok, f.detail.as_str())).collect();
        assert_eq!(texts[0], ("a", "node n1", true, "fine"));
        assert_eq!(texts[1], ("b", "node n1", false, "full"));
        assert_eq!(texts[2], ("b", "node n2", false, "its agent could not be started: no ssh"));
    }
}
