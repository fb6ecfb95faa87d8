//! A job's reactions to messages of agents. Part of [`Job`].

use tokio::time::Instant;
use types::{Identity, Rank, Slot};

use super::{Action, Job, NodeState, Phase};
use crate::cause::{ABORT, EFFECT, LOST, MPI_ERROR, of_end};
use crate::outcome::Failure;
use job::fence::{Fence, FenceError};
use job::group::first_agent;
use job::message::{Down, End, MpiState, Up};

impl Job {
    /// Handles a message of the agent of the node with this index.
    pub(super) fn up(&mut self, at: usize, message: Up, now: Instant) {
        let (agent, site, name) = (self.nodes[at].agent, self.nodes[at].site.clone(), self.nodes[at].name.clone());
        match message {
            Up::Here => self.agent_connected(at, now),
            Up::Ready { mpi, collectives, ipv6, notes } => {
                self.nodes[at].mpi = mpi;
                self.nodes[at].collectives = collectives;
                self.nodes[at].ipv6 = ipv6;
                self.nodes[at].state = NodeState::Ready;
                self.progress(now);
                self.actions.extend(notes.into_iter().map(|note| Action::Note(format!("{site}/{name}: {note}"))));
                self.check_ready(now);
            }
            Up::Refused { reason } => self.lost(Failure::at_node(&site, &name, reason), now),
            Up::UsesMpi => {
                self.uses_mpi = true;
                let ended = (0..self.exits.len()).filter(|rank| self.exits[*rank].is_some()).collect::<Vec<_>>();
                ended.into_iter().for_each(|rank| self.check_exit(rank as u32, now));
            }
            Up::FenceIn { fence, data } => self.fence_in(at, fence, &data, now),
            Up::ModexAsk { ticket, rank } => self.ask_for_modex(agent, ticket, rank),
            Up::ModexTell { asker, ticket, data } => {
                if self.nodes.iter().any(|node| node.agent == asker) {
                    self.actions.push_back(Action::Send(asker, Down::ModexTell { ticket, data }));
                }
            }
            Up::Trouble { rank, reason } => {
                // While ranks are being ended, they lack things because of that.
                if matches!(self.phase, Phase::Running | Phase::Settling) {
                    let failure = self.at_rank(rank, reason);
                    self.cause.add_trouble(failure);
                }
            }
            Up::Note { rank, text } => {
                let note = self.at_rank(rank, text).to_string();
                self.actions.push_back(Action::Note(note));
            }
            Up::Output { rank, stream, bytes } => {
                self.actions.push_back(Action::Output { agent, rank, stream, bytes });
            }
            Up::InputTaken { rank, bytes } => self.input.taken(rank, bytes),
            Up::Exited { rank, end, state } => self.rank_exited(rank, (end, state), now),
            Up::Aborted { rank, code, message } => self.rank_aborted(rank, code, &message, now),
            Up::Failed { rank, reason } => {
                let failure = match rank {
                    Some(rank) => self.at_rank(rank, reason),
                    None => Failure::at_node(&site, &name, reason),
                };
                self.fail_now(LOST, failure, 1, now);
            }
            Up::Ended => {
                self.nodes[at].state = NodeState::Ended;
                self.check_ended(now);
            }
            // Agents that run ranks forward no ports, so this message is ignored.
            Up::Forward(_) => {}
        }
    }

    /// Sends a new agent its order. If the job is being ended already, the agent only ends.
    fn agent_connected(&mut self, at: usize, now: Instant) {
        let agent = self.nodes[at].agent;
        self.nodes[at].state = NodeState::Here;
        self.progress(now);
        let first = if self.is_starting() {
            let program = self.programs.get(usize::from(agent.site.0)).cloned().unwrap_or_default();
            Down::Prepare { program: Box::new(program), roster: self.roster.to_string() }
        } else {
            Down::Kill { signal: 9 }
        };
        self.actions.push_back(Action::Send(agent, first));
    }

    /// Passes an agent's request for a rank's data on to the agent of that rank.
    fn ask_for_modex(&mut self, asker: Identity, ticket: u32, rank: u32) {
        let owner = self.roster.place(Rank(rank));
        let owner = owner.and_then(|place| Some(Identity { site: place.site, slot: Slot::agent(place.node)? }));
        self.actions.push_back(match owner {
            Some(owner) => Action::Send(owner, Down::ModexAsk { asker, ticket, rank }),
            None => Action::Send(asker, Down::ModexTell { ticket, data: None }),
        });
    }

    fn rank_exited(&mut self, rank: u32, exit: (End, MpiState), now: Instant) {
        self.input.taken(rank, None);
        if let Some(known) = self.exits.get_mut(rank as usize) {
            *known = Some(exit);
            self.check_exit(rank, now);
        }
    }

    fn check_exit(&mut self, rank: u32, now: Instant) {
        let Some((end, state)) = self.exits.get(rank as usize).copied().flatten() else { return };
        if let Some((weight, reason, code)) = of_end(end, state, self.uses_mpi) {
            let failure = self.at_rank(rank, reason);
            self.fail_now(weight, failure, code, now);
        }
    }

    fn rank_aborted(&mut self, rank: u32, code: i32, message: &str, now: Instant) {
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        let failure = self.at_rank(rank, format!("called MPI_Abort with code {code}{message}"));
        // An aborted job has not succeeded, even if its code is 0.
        let code = if code & 0xff == 0 { 1 } else { code & 0xff };
        self.fail_now(if code == MPI_ERROR { EFFECT } else { ABORT }, failure, code, now);
    }

    /// All ranks of a site that belong to the fence's group have entered it.
    fn fence_in(&mut self, at: usize, fence: Fence, data: &[u8], now: Instant) {
        let sites = fence.group.sites(&self.roster);
        let arrived = match fence.group.is_valid(self.roster.size()) {
            true => self.fences.arrived(&fence, &self.nodes[at].agent.site, data, sites.clone()),
            false => Err(FenceError::Group),
        };
        match arrived {
            Ok(None) => {}
            Ok(Some(data)) => {
                self.numbers -= u32::from(!fence.name.is_empty());
                let out = Down::FenceOut { fence, data, number: self.numbers };
                let out = |site| Action::Send(first_agent(site), out.clone());
                self.actions.extend(sites.into_iter().map(out));
            }
            Err(problem) => {
                let node = &self.nodes[at];
                let failure = Failure::at_node(&node.site, &node.name, problem.to_string());
                self.fail_now(LOST, failure, 1, now);
            }
        }
    }
}
