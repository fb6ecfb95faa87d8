//! The agent's PMIx server for ranks of Open MPI, and the requests that wait for an answer from other nodes.
//!
//! libpmix serves the ranks on its own thread. It passes on the requests that need other nodes: fences with ranks
//! there, and requests for data that those ranks have published.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;

use pmix::{Answer, GroupAnswer, JobDescription, NodeRanks, Options, PmixError, Ranks, Upcall};
use tokio::sync::mpsc::UnboundedSender;
use types::{Identity, JobId, NodeRoster, Roster, SiteId};

use super::Agent;
use super::error::AgentError;
use super::prepare::Prepared;
use job::fence::Fence;
use job::group::Group;
use job::message::{MpiState, Up};

/// The longest name of a PMIx group, in bytes.
const MAX_NAME: usize = 4096;

/// Messages from libpmix's thread to the agent.
#[derive(Debug)]
pub(super) enum Heard {
    /// A request of a rank of this node.
    Rank(Upcall),
    /// Data that a rank of this node has published, requested by another agent.
    Published {
        asker: Identity,
        /// The asker's number for this question.
        ticket: u32,
        /// `None` if the rank has published nothing.
        data: Option<Vec<u8>>,
    },
}

/// The answer that libpmix expects once a fence is complete.
#[derive(Debug)]
enum Waiting {
    Plain(Answer),
    Group(GroupAnswer),
}

/// The server, and the requests that wait for other nodes.
#[derive(Debug)]
pub(super) struct Pmix {
    server: pmix::Server,
    heard: UnboundedSender<Heard>,
    size: u32,
    first: u32,
    states: Vec<MpiState>,
    fences: Vec<(Fence, Waiting)>,
    asks: HashMap<u32, Answer>,
    tickets: u32,
    /// Open questions of other agents: the asker, its ticket and the rank.
    asked: Vec<(Identity, u32, u32)>,
}

impl Pmix {
    /// Starts the server for the ranks of this node. `folder`: for the files of the server and of the ranks.
    pub(super) fn start(
        library: pmix::Library,
        job: JobId,
        prepared: &Prepared,
        here: usize,
        folder: &Path,
        heard: &UnboundedSender<Heard>,
    ) -> Result<Pmix, PmixError> {
        let nodes = nodes(&prepared.roster);
        let host = nodes.get(here).map_or("", |node| node.name.as_str());
        // Two jobs must not have the same name: Open MPI names shared memory after it.
        let namespace = format!("landbridge-{job}");
        let sink = heard.clone();
        // The receiver is gone once the agent has ended.
        let deliver = move |upcall| drop(sink.send(Heard::Rank(upcall)));
        let server = pmix::Server::start(library, Options { namespace: &namespace, host, folder }, deliver)?;
        server.register(JobDescription { nodes: &nodes, programs: &prepared.programs, here, folder })?;
        Ok(Pmix {
            server,
            heard: heard.clone(),
            size: prepared.roster.size(),
            first: prepared.first.0,
            states: vec![MpiState::default(); prepared.count as usize],
            fences: Vec::new(),
            asks: HashMap::new(),
            tickets: 0,
            asked: Vec::new(),
        })
    }

    /// The variables with which a rank of this node finds the server.
    pub(super) fn admit(&self, local: u32) -> Result<Vec<(OsString, OsString)>, PmixError> {
        self.server.admit(self.first + local)
    }

    /// The MPI state of a rank of this node.
    pub(super) fn state(&self, local: usize) -> MpiState {
        self.states.get(local).copied().unwrap_or_default()
    }

    fn set_state(&mut self, rank: u32, state: MpiState) {
        let local = rank.wrapping_sub(self.first) as usize;
        if let Some(known) = self.states.get_mut(local) {
            *known = state;
        }
    }

    /// All ranks of the fence have reached it.
    pub(super) fn fence_out(&mut self, fence: &Fence, data: Vec<u8>, number: u32) {
        let Some(at) = self.fences.iter().position(|(waiting, _)| waiting == fence) else { return };
        match self.fences.remove(at).1 {
            Waiting::Plain(answer) => answer.give(Some(data)),
            Waiting::Group(answer) => answer.give(data, number),
        }
    }

    fn group(&self, ranks: Ranks) -> Option<Group> {
        let group = match ranks {
            Ranks::All => Group::all(self.size),
            Ranks::Some(ranks) => Group::of(ranks),
        };
        Some(group).filter(|group| group.is_valid(self.size))
    }

    /// Handles the answer to a question of this node.
    pub(super) fn handle_answer(&mut self, ticket: u32, data: Option<Vec<u8>>) {
        if let Some(answer) = self.asks.remove(&ticket) {
            answer.give(data);
        }
    }
}

impl Agent {
    /// Handles a message of libpmix's thread.
    pub(super) fn heard(&mut self, heard: Heard) -> Result<(), AgentError> {
        let Some(pmix) = self.pmix.as_mut() else { return Ok(()) };
        match heard {
            Heard::Published { asker, ticket, data } => {
                let before = pmix.asked.len();
                pmix.asked.retain(|(who, number, _)| (*who, *number) != (asker, ticket));
                // Without an open question, it was answered when its rank ended.
                if pmix.asked.len() < before { self.report(&Up::ModexTell { asker, ticket, data }) } else { Ok(()) }
            }
            Heard::Rank(upcall) => self.upcall(upcall),
        }
    }

    fn upcall(&mut self, upcall: Upcall) -> Result<(), AgentError> {
        let Some(pmix) = self.pmix.as_mut() else { return Ok(()) };
        match upcall {
            Upcall::Connected { rank } => {
                pmix.set_state(rank, MpiState::Running);
                self.uses_mpi()
            }
            Upcall::Finalised { rank } => {
                pmix.set_state(rank, MpiState::Finalised);
                Ok(())
            }
            Upcall::Aborted { rank, code, message } => self.report(&Up::Aborted { rank, code, message }),
            Upcall::SpawnRefused { rank, program } => self.report(&spawn_refused(rank, &program)),
            Upcall::NamesRefused { rank } => self.report(&names_refused(rank)),
            Upcall::Modex { rank, answer } => {
                pmix.tickets = pmix.tickets.wrapping_add(1);
                let ticket = pmix.tickets;
                pmix.asks.insert(ticket, answer);
                self.report(&Up::ModexAsk { ticket, rank })
            }
            Upcall::Fence { ranks, data, answer } => match pmix.group(ranks) {
                None => {
                    answer.give(None);
                    Ok(())
                }
                Some(group) => {
                    let fence = Fence::plain(group);
                    pmix.fences.push((fence.clone(), Waiting::Plain(answer)));
                    self.fence(fence, data)
                }
            },
            Upcall::Group { name, ranks, data, answer } => match pmix.group(ranks).filter(|_| name.len() <= MAX_NAME) {
                None => {
                    answer.refuse();
                    Ok(())
                }
                Some(group) => {
                    let fence = Fence { group, name };
                    pmix.fences.push((fence.clone(), Waiting::Group(answer)));
                    self.fence(fence, data)
                }
            },
        }
    }

    /// Handles a question of another node about data that a rank of this node publishes. The rank may not have
    /// published it yet.
    pub(super) fn modex_asked(&mut self, asker: Identity, ticket: u32, rank: u32) -> Result<(), AgentError> {
        let (first, count) = self.prepared.as_ref().map_or((0, 0), |prepared| (prepared.first.0, prepared.count));
        let local = rank.wrapping_sub(first);
        // The rank may not have been started yet.
        let starts = self.starting.is_some() && local < count;
        let alive = self.ranks.get(local as usize).map_or(starts, |rank| rank.alive);
        let asked = match self.pmix.as_mut().filter(|_| alive) {
            None => false,
            Some(pmix) => {
                pmix.asked.push((asker, ticket, rank));
                let sink = pmix.heard.clone();
                let answer = move |data| drop(sink.send(Heard::Published { asker, ticket, data }));
                let result = pmix.server.published(rank, answer);
                if let Err(error) = &result {
                    tracing::warn!(rank, %error, "what a rank has published cannot be read");
                    pmix.asked.retain(|(who, number, _)| (*who, *number) != (asker, ticket));
                }
                result.is_ok()
            }
        };
        if asked { Ok(()) } else { self.report(&Up::ModexTell { asker, ticket, data: None }) }
    }

    /// Answers the open questions about a rank of this node that has ended: it will publish nothing more.
    pub(super) fn modex_ended(&mut self, rank: u32) -> Result<(), AgentError> {
        let Some(pmix) = self.pmix.as_mut() else { return Ok(()) };
        let (over, left) = std::mem::take(&mut pmix.asked).into_iter().partition(|(_, _, about)| *about == rank);
        pmix.asked = left;
        let over: Vec<(Identity, u32, u32)> = over;
        for (asker, ticket, _) in over {
            self.report(&Up::ModexTell { asker, ticket, data: None })?;
        }
        Ok(())
    }
}

/// The note for the user about a refused `MPI_Comm_spawn`.
pub(super) fn spawn_refused(rank: u32, program: &str) -> Up {
    let program = if program.is_empty() { "another program" } else { program };
    let text = format!(
        "called MPI_Comm_spawn for {program}, which Landbridge does not support: start all ranks with `landbridge run`"
    );
    Up::Note { rank, text }
}

fn names_refused(rank: u32) -> Up {
    let text = "published or looked up a name, as MPI_Publish_name, MPI_Comm_accept and MPI_Comm_connect of Open MPI do, \
                which Landbridge does not support: start all ranks with one `landbridge run`";
    Up::Note { rank, text: text.into() }
}

/// All nodes of the job. Their names are unique, even if two sites have a node of the same name. From the names each
/// server knows its own ranks, and Open MPI knows which ranks share memory. As in host names, only the part before the
/// first dot counts.
fn nodes(roster: &Roster) -> Vec<NodeRanks> {
    let schemes: [fn(&str, &str, usize) -> String; 3] = [
        |_, node, _| node.to_owned(),
        |site, node, _| format!("{site}-{node}").replace('.', "_"),
        |site, node, at| format!("{site}-{node}-{at}").replace('.', "_"),
    ];
    let mut named = Vec::new();
    for scheme in schemes {
        let node = |(at, (site, _, first, node)): (usize, (SiteId, _, types::Rank, &NodeRoster))| NodeRanks {
            name: scheme(roster.site(site).map_or("", |site| &site.name), &node.name, at),
            ranks: first.0..first.0 + node.ranks,
        };
        named = roster.nodes().enumerate().map(node).collect();
        let labels: HashSet<&str> = named.iter().filter_map(|node: &NodeRanks| node.name.split('.').next()).collect();
        if labels.len() == named.len() {
            break;
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_names_of_their_own() {
        let names = |roster: &str| nodes(&roster.parse().unwrap()).into_iter().map(|n| n.name).collect::<Vec<_>>();
        assert_eq!(names("a:n1*2,n2*1;b:m1*3"), ["n1", "n2", "m1"]);
        assert_eq!(names("a:n1*2,n2*1;b:n1*3"), ["a-n1", "a-n2", "b-n1"]);
        assert_eq!(names("a:n1.a.org*2;b:n1.b.org*3"), ["a-n1_a_org", "b-n1_b_org"]);
        assert_eq!(names("a:b-c*1,c*1;a-b:c*1"), ["a-b-c-0", "a-c-1", "a-b-c-2"]);
        let ranks: Vec<_> = nodes(&"a:n1*2,n2*1;b:n1*3".parse().unwrap()).into_iter().map(|n| n.ranks).collect();
        assert_eq!(ranks, [0..2, 2..3, 3..6]);
    }
}
