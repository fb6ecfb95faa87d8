//! Time limits of a job's phases, and the parts that exceed them.

use std::time::Duration;

use tokio::time::Instant;
use types::{Patience, Slowness};

use super::{Action, Job, LONG, NodeState, Phase, TIMEOUT_CODE};
use crate::cause::LOST;
use crate::outcome::Failure;

impl Job {
    pub(super) fn wait_for(&mut self, calm: Duration, now: Instant) {
        (self.wait, self.long_wait) = ((now, Patience::new(calm)), false);
        self.deadline = Some(now + calm);
    }

    /// A site or an agent has completed the step that all must complete. Extends the deadline.
    pub(super) fn progress(&mut self, now: Instant) {
        if self.is_starting() {
            let (begun, patience) = &mut self.wait;
            patience.progress(now - *begun);
            self.deadline = Some(*begun + patience.deadline(Slowness::NONE));
        }
    }

    /// Seconds of the current wait so far, for messages.
    pub(super) fn waited(&self, now: Instant) -> u64 {
        (now - self.wait.0).as_secs()
    }

    /// A deadline has passed. `slowness`: this machine's.
    pub(crate) fn deadline_over(&mut self, now: Instant, slowness: Slowness) {
        if self.is_starting() {
            self.look_for_agents(now, slowness);
            if self.deadline.is_some_and(|deadline| deadline > now) {
                return;
            }
            let (begun, patience) = self.wait;
            if let Some(later) = patience.next_look(now - begun, slowness) {
                self.deadline = Some(begun + later);
                self.note_long_wait(begun + patience.deadline(slowness), now);
                return;
            }
        }
        self.deadline = None;
        match self.phase {
            Phase::Opening => self.gateway_is_lost(self.silent_gateway(now), now),
            Phase::Preparing => self.lost(self.silent_agent(now).unwrap_or_default(), now),
            Phase::Settling => self.kill(now),
            Phase::Killing => self.close(now),
            Phase::Closing => self.phase = Phase::Over,
            Phase::Running => {
                let seconds = self.timeout.unwrap_or_default().as_secs_f64();
                let failure = Failure::new(format!("the ranks have run for {seconds} s, as long as --timeout allows"));
                self.fail_now(LOST, failure, TIMEOUT_CODE, now);
            }
            Phase::Draining | Phase::Over => {}
        }
    }

    /// Names, once in a wait, what a busy machine is given more time for.
    fn note_long_wait(&mut self, until: Instant, now: Instant) {
        if until - now < LONG {
            return;
        }
        let silent = match self.phase {
            Phase::Opening => Some(self.silent_gateway(now)),
            _ => self.silent_agent(now),
        };
        if let Some(silent) = silent.filter(|_| !std::mem::replace(&mut self.long_wait, true)) {
            let seconds = (until - self.wait.0).as_secs();
            let text = format!("{silent}; this machine is busy, so it has {seconds} s or more");
            self.actions.push_back(Action::Note(text));
        }
    }

    /// The failure that a site's gateway has not opened the job.
    fn silent_gateway(&self, now: Instant) -> Failure {
        let silent = self.sites.iter().position(|site| site.window.is_none()).unwrap_or(0);
        let name = &self.roster.sites()[silent].name;
        let waited = self.waited(now);
        let reason = format!(
            "did not open the job within {waited} s: is its gateway running and reachable? `landbridge sites check` \
             shows it"
        );
        Failure::at_site(name, reason)
    }

    /// The failure that an agent is not ready.
    fn silent_agent(&self, now: Instant) -> Option<Failure> {
        let silent = self.nodes.iter().find(|node| node.state < NodeState::Ready)?;
        let what = match silent.state {
            NodeState::Awaited => "its agent did not connect",
            _ => "its agent did not answer",
        };
        let reason = format!("{what} within {} s", self.waited(now));
        Some(Failure::at_node(&silent.site, &silent.name, reason))
    }
}
