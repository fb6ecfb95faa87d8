//! Members that one gateway reports as lost although another may still reach them: agents, and ranks of a job without
//! agents.
//!
//! A gateway whose own cable was pulled sees every member fall silent, and reports that once the cable is back. So the
//! launcher asks the member itself, end to end, through every gateway. An answer ends the suspicion. The loss is
//! confirmed if no gateway can deliver the question, or if the member does not answer in time.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use types::patience::{CoreTime, Patience};
use types::{Identity, Slowness};
use wire::control::JobMessage;

/// Time limit for an member's answer, on a machine that is not overloaded.
const ANSWER: Duration = Duration::from_millis(1500);
/// Interval between questions to a member, because a gateway may drop one.
const AGAIN: Duration = Duration::from_millis(200);

/// See the module docs.
#[derive(Debug, Default)]
pub(super) struct Suspects(Vec<Suspect>);

#[derive(Debug)]
struct Suspect {
    member: Identity,
    /// The number of the gateway that reported the loss, and its message.
    report: (usize, JobMessage),
    since: Instant,
    /// The core time then.
    before: CoreTime,
    until: Instant,
    ask_at: Instant,
    /// Gateways that could not deliver a question.
    undelivered: BTreeSet<usize>,
}

impl Suspects {
    /// Adds a member that is reported as lost. It must be asked at once. `before`: this process's core time now.
    pub(super) fn add(&mut self, member: Identity, report: (usize, JobMessage), now: Instant, before: CoreTime) {
        if !self.0.iter().any(|suspect| suspect.member == member) {
            let (until, ask_at, undelivered) = (now + ANSWER, now, BTreeSet::new());
            self.0.push(Suspect { member, report, since: now, before, until, ask_at, undelivered });
        }
    }

    /// A member has answered. Returns the report, which was wrong.
    pub(super) fn answered(&mut self, member: Identity) -> Option<JobMessage> {
        let at = self.0.iter().position(|suspect| suspect.member == member)?;
        Some(self.0.swap_remove(at).report.1)
    }

    /// A gateway could not deliver a frame to a member. Returns the report if no gateway of `open` could.
    pub(super) fn undelivered(
        &mut self,
        member: Identity,
        gateway: usize,
        mut open: impl Iterator<Item = usize>,
    ) -> Option<(usize, JobMessage)> {
        let at = self.0.iter().position(|suspect| suspect.member == member)?;
        let undelivered = &mut self.0[at].undelivered;
        undelivered.insert(gateway);
        let none = open.all(|gateway| undelivered.contains(&gateway));
        none.then(|| self.0.swap_remove(at).report)
    }

    /// Time of the next call of [`Suspects::due`].
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|suspect| suspect.until.min(suspect.ask_at)).min()
    }

    /// Time at which the last of the reports is confirmed, unless its member answers.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.iter().map(|suspect| suspect.until).max()
    }

    /// Returns the members to ask now and the reports that silence has confirmed. `slowness`: returns this machine's
    /// slowness for this long, since this core time; called when a time limit is reached.
    pub(super) fn due(
        &mut self,
        now: Instant,
        slowness: impl Fn(Duration, CoreTime) -> Slowness,
    ) -> (Vec<Identity>, Vec<(usize, JobMessage)>) {
        let (mut ask, mut confirmed) = (Vec::new(), Vec::new());
        self.0.retain_mut(|suspect| {
            if suspect.until <= now {
                let asked = now - suspect.since;
                let later = Patience::new(ANSWER).next_look(asked, slowness(asked, suspect.before));
                suspect.until = later.map_or(now, |later| suspect.since + later);
            }
            if suspect.until <= now {
                confirmed.push(suspect.report.clone());
                return false;
            }
            if suspect.ask_at <= now {
                suspect.ask_at = now + AGAIN;
                ask.push(suspect.member);
            }
            true
        });
        (ask, confirmed)
    }
}

#[cfg(test)]
mod tests {
    use types::{JobId, NodeId, SiteId, Slot};

    use super::*;

    fn agent(node: u32) -> Identity {
        Identity { site: SiteId(1), slot: Slot::agent(NodeId(node)).unwrap() }
    }

    fn report(node: u32) -> (usize, JobMessage) {
        (0, JobMessage::MemberLost { job: JobId(1), member: agent(node), reason: "no sign of life".into() })
    }

    fn suspects(now: Instant) -> Suspects {
        let mut suspects = Suspects::default();
        (0..2).for_each(|node| suspects.add(agent(node), report(node), now, CoreTime::default()));
        assert_eq!(suspects.due(now, |_, _| Slowness::NONE), (vec![agent(0), agent(1)], Vec::new()));
        suspects
    }

    #[test]
    fn an_agent_that_answers_is_not_lost_and_one_that_is_silent_is() {
        let now = Instant::now();
        let mut suspects = suspects(now);
        assert!(suspects.answered(agent(0)).is_some() && suspects.answered(agent(0)).is_none());
        suspects.add(agent(1), (1, report(1).1), now + AGAIN, CoreTime::default());
        assert_eq!(suspects.due(now + AGAIN, |_, _| unreachable!()), (vec![agent(1)], Vec::new()), "asked again");
        let late = |asked, _| Slowness::new(asked, ANSWER);
        assert_eq!(suspects.due(now + ANSWER, late).1, [], "this machine is twice as slow as an idle one");
        assert_eq!(suspects.due(now + 2 * ANSWER, late).1, [report(1)]);
        assert_eq!(suspects.next(), None);
    }

    #[test]
    fn an_agent_that_no_gateway_reaches_is_lost_at_once() {
        let mut suspects = suspects(Instant::now());
        assert_eq!(suspects.undelivered(agent(1), 0, [0, 1].into_iter()), None);
        assert_eq!(suspects.undelivered(agent(1), 1, [0, 1].into_iter()), Some(report(1)));
        assert_eq!(suspects.undelivered(agent(2), 1, [1].into_iter()), None, "nobody suspects it");
    }
}
