//! The end of a job: its cause, and the way to it.

use std::io;
use std::time::Duration;

use job::message::Down;
use job::processes::signal_name;
use tokio::time::Instant;
use types::Rank;

use super::{AFTERMATH, Action, CLOSE, Job, KILL, Node, NodeState, Phase, SETTLE, SETTLE_EFFECT};
use crate::cause::{EFFECT, LOST, LOST_CODE, SIGNAL, Weight};
use crate::outcome::{Failure, SiteSummary, Summary};

impl Job {
    /// Ends the job: something that it needs is lost or missing.
    pub(super) fn lost(&mut self, failure: Failure, now: Instant) {
        let failure = self.blamed(failure, now);
        self.fail_now(LOST, failure, self.lost_code(), now);
    }

    /// Names the cause of a loss at another site. If all own gateways were silent shortly before, other sites gave up
    /// the job because of that silence, so the failure belongs to the user's own site.
    fn blamed(&self, failure: Failure, now: Instant) -> Failure {
        match &self.silent {
            Some((since, reason))
                if now - *since < AFTERMATH && failure.site.as_ref().is_some_and(|site| *site != self.home) =>
            {
                Failure::at_site(&self.home, format!("{reason}; meanwhile {failure}"))
            }
            _ => failure,
        }
    }

    /// The exit code for a loss: 1 until ranks run, then [`LOST_CODE`].
    fn lost_code(&self) -> i32 {
        if self.phase < Phase::Running { 1 } else { LOST_CODE }
    }

    /// Reports that the launcher's own connection is lost, or that the user has ended the job.
    pub(crate) fn broken(&mut self, failure: Failure, code: Option<i32>) {
        if code.is_none() {
            self.note_unstarted(&failure);
        }
        let code = code.unwrap_or_else(|| self.lost_code());
        self.cause.add(LOST, failure, code);
    }

    pub(super) fn fail_now(&mut self, weight: Weight, failure: Failure, code: i32, now: Instant) {
        match self.phase {
            Phase::Opening | Phase::Preparing => {
                self.cause.add(weight, failure, code);
                self.kill(now);
            }
            Phase::Running | Phase::Settling => {
                self.cause.add(weight, failure, code);
                if weight >= SIGNAL {
                    self.kill(now);
                } else {
                    if self.phase == Phase::Running {
                        self.actions.push_back(Action::QuestionAgents);
                    }
                    self.phase = Phase::Settling;
                    let patience = if weight == EFFECT { SETTLE_EFFECT } else { SETTLE };
                    let settled = now + patience;
                    self.deadline = Some(self.deadline.map_or(settled, |deadline| deadline.min(settled)));
                }
            }
            // Failures while the job is being ended are caused by ending it.
            Phase::Killing | Phase::Draining | Phase::Closing | Phase::Over => {}
        }
    }

    pub(super) fn kill(&mut self, now: Instant) {
        self.phase = Phase::Killing;
        self.deadline = Some(now + KILL);
        self.actions.push_back(Action::Progress(Some("ending all ranks".into())));
        self.tell_agents(&Down::Kill { signal: self.signal });
        self.check_ended(now);
    }

    pub(super) fn check_ended(&mut self, now: Instant) {
        let left = |node: &Node| matches!(node.state, NodeState::Here | NodeState::Ready);
        if self.nodes.iter().any(left) {
            return;
        }
        match self.phase {
            Phase::Killing => self.close(now),
            Phase::Running => {
                self.phase = Phase::Draining;
                self.deadline = None;
            }
            _ => {}
        }
    }

    pub(super) fn close(&mut self, now: Instant) {
        self.phase = Phase::Closing;
        self.deadline = Some(now + CLOSE);
        let agents = self.nodes.iter().filter(|node| node.state == NodeState::Ended).map(|node| node.agent);
        self.actions.extend(agents.map(|agent| Action::Send(agent, Down::Finish)));
        self.actions.push_back(Action::Close);
    }

    /// The user interrupts the job. A second interruption sends SIGKILL to the ranks.
    pub(crate) fn interrupted(&mut self, signal: i32, now: Instant) {
        self.signals += 1;
        let failure = Failure::new(format!("interrupted by {}", signal_name(signal)));
        if self.signals == 1 && !matches!(self.phase, Phase::Killing | Phase::Closing | Phase::Over) {
            self.signal = signal;
            self.cause.add(LOST, failure, 128 + signal);
            self.kill(now);
            return;
        }
        self.cause.add(LOST, failure, 128 + signal);
        self.tell_agents(&Down::Kill { signal: 9 });
        let soon = now + Duration::from_millis(300);
        self.deadline = Some(self.deadline.map_or(soon, |deadline| deadline.min(soon)));
    }

    /// Output can no longer be passed on, for example because `head` has closed the pipe.
    pub(crate) fn output_failed(&mut self, error: &io::Error, now: Instant) {
        let code = if error.kind() == io::ErrorKind::BrokenPipe { 141 } else { 1 };
        if self.phase == Phase::Draining {
            self.cause.add(LOST, Failure::new(format!("cannot write output: {error}")), code);
            return;
        }
        self.fail_now(LOST, Failure::new(format!("cannot write output: {error}")), code, now);
    }

    pub(super) fn at_rank(&self, rank: u32, reason: String) -> Failure {
        match self.roster.place(Rank(rank)) {
            Some(place) => Failure { rank: Some(rank), ..Failure::at_node(place.site_name, place.node_name, reason) },
            None => Failure::new(format!("rank {rank}: {reason}")),
        }
    }

    pub(crate) fn summary(&self, seconds: f64) -> Summary {
        let unfinished = self.exits.iter().any(Option::is_none);
        let (failure, code) = match self.cause.get() {
            Some((failure, code)) => (Some(failure.clone()), code),
            None if unfinished => (Some(Failure::new("the job ended before all ranks did")), 1),
            None => (None, 0),
        };
        let mut next = 0;
        let sites = self.roster.sites().iter().zip(&self.sites).map(|(site, state)| {
            let traffic = state.closed.flatten();
            let first = next;
            next += site.size();
            SiteSummary {
                name: site.name.clone(),
                nodes: site.nodes.iter().map(|node| node.name.clone()).collect(),
                ranks: (first..next).collect(),
                bytes_sent: traffic.map(|traffic| traffic.sent + state.relayed.sent),
                bytes_received: traffic.map(|traffic| traffic.received + state.relayed.received),
            }
        });
        let sites: Vec<SiteSummary> = sites.collect();
        Summary {
            ok: failure.is_none(),
            exit_code: code,
            seconds,
            ranks: self.roster.size(),
            mpi: self.mpi.map(|mpi| mpi.to_string()),
            bytes_relayed: sites.iter().filter_map(|site| site.bytes_sent).sum(),
            sites,
            failure,
        }
    }
}
