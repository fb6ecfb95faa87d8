//! Members that one gateway reports as lost although another may still reach them: agents, and ranks of a job without
//! agents.
//!
//! A gateway whose own cable was pulled sees every member fall silent, and reports that once the cable is back. So the
//! launcher asks the member itself, end to end, through every gateway. An answer ends the suspicion. The loss is
//! confirmed if no gateway can deliver the question, or if the member does not answer in time.
//!
//! A member that nobody has reported can be asked too. It is lost if it does not answer in time and no gateway could
//! deliver a question; silence alone is for gateways to judge. While a gateway that may still deliver a question is
//! itself silent, the question stays open: either the gateway is lost soon, or it delivers the question then.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use types::patience::{CoreTime, Patience};
use types::{Identity, Slowness};
use wire::control::JobMessage;

/// Time limit for an member's answer, on a machine that is not overloaded.
pub(super) const ANSWER: Duration = Duration::from_millis(1500);
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
    /// False if nobody has reported it.
    reported: bool,
    /// Time limit for its answer.
    answer: Duration,
    since: Instant,
    /// The core time then.
    before: CoreTime,
    until: Instant,
    ask_at: Instant,
    /// Gateways that could not deliver a question.
    undelivered: BTreeSet<usize>,
}

impl Suspect {
    fn new(member: Identity, report: (usize, JobMessage), since: Instant, before: CoreTime) -> Suspect {
        Suspect {
            member,
            report,
            reported: true,
            answer: ANSWER,
            since,
            before,
            until: since + ANSWER,
            ask_at: since,
            undelivered: BTreeSet::new(),
        }
    }

    /// Nobody has reported the member.
    fn unreported(self, answer: Duration) -> Suspect {
        Suspect { reported: false, answer, until: self.since + answer, ..self }
    }
}

impl Suspects {
    /// Adds a member that is reported as lost. It must be asked at once. `before`: this process's core time now.
    pub(super) fn add(&mut self, member: Identity, report: (usize, JobMessage), now: Instant, before: CoreTime) {
        match self.0.iter_mut().find(|suspect| suspect.member == member) {
            Some(suspect) if suspect.reported => {}
            Some(suspect) => *suspect = Suspect::new(member, report, now, before),
            None => self.0.push(Suspect::new(member, report, now, before)),
        }
    }

    /// Adds a member that nobody has reported. `report`: the loss, if it is confirmed. `answer`: the time limit for its
    /// answer. Else as [`Suspects::add`].
    pub(super) fn question(
        &mut self,
        member: Identity,
        report: (usize, JobMessage),
        answer: Duration,
        now: Instant,
        before: CoreTime,
    ) {
        let asked = Suspect::new(member, report, now, before).unreported(answer);
        match self.0.iter_mut().find(|suspect| suspect.member == member) {
            Some(suspect) if suspect.reported || suspect.until <= asked.until => {}
            Some(suspect) => *suspect = asked,
            None => self.0.push(asked),
        }
    }

    /// A member has answered. Returns the report, which was wrong.
    pub(super) fn answered(&mut self, member: Identity) -> Option<JobMessage> {
        let at = self.0.iter().position(|suspect| suspect.member == member)?;
        Some(self.0.swap_remove(at).report.1)
    }

    /// A gateway could not deliver a frame to a member. Returns the report if there was one and no gateway of `open`
    /// could.
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
        (none && self.0[at].reported).then(|| self.0.swap_remove(at).report)
    }

    /// Time of the next call of [`Suspects::due`].
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|suspect| suspect.until.min(suspect.ask_at)).min()
    }

    /// Time at which the last of the reports is confirmed, unless its member answers.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.iter().map(|suspect| suspect.until).max()
    }

    /// Returns the members to ask now and the reports that silence has confirmed. `open`: the gateways that are
    /// connected, each with true if it is silent itself. `slowness`: returns this machine's slowness for this long,
    /// since this core time; called when a time limit is reached.
    pub(super) fn due(
        &mut self,
        now: Instant,
        open: &[(usize, bool)],
        slowness: impl Fn(Duration, CoreTime) -> Slowness,
    ) -> (Vec<Identity>, Vec<(usize, JobMessage)>) {
        let (mut ask, mut confirmed) = (Vec::new(), Vec::new());
        self.0.retain_mut(|suspect| {
            if suspect.until <= now {
                let asked = now - suspect.since;
                let later = Patience::new(suspect.answer).next_look(asked, slowness(asked, suspect.before));
                suspect.until = later.map_or(now, |later| suspect.since + later);
            }
            if suspect.until <= now {
                let mut undecided =
                    open.iter().filter(|(gateway, _)| !suspect.undelivered.contains(gateway)).peekable();
                if suspect.reported || undecided.peek().is_none() {
                    confirmed.push(suspect.report.clone());
                    return false;
                }
                if !undecided.any(|(_, silent)| *silent) {
                    return false;
                }
                suspect.until = now + AGAIN;
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

    const ONE: [(usize, bool); 1] = [(0, false)];
    const BOTH: [(usize, bool); 2] = [(0, false), (1, false)];

    fn agent(node: u32) -> Identity {
        Identity { site: SiteId(1), slot: Slot::agent(NodeId(node)).unwrap() }
    }

    fn report(node: u32) -> (usize, JobMessage) {
        (0, JobMessage::MemberLost { job: JobId(1), member: agent(node), reason: "no sign of life".into() })
    }

    fn suspects(now: Instant) -> Suspects {
        let mut suspects = Suspects::default();
        (0..2).for_each(|node| suspects.add(agent(node), report(node), now, CoreTime::default()));
        assert_eq!(suspects.due(now, &ONE, |_, _| Slowness::NONE), (vec![agent(0), agent(1)], Vec::new()));
        suspects
    }

    #[test]
    fn an_agent_that_answers_is_not_lost_and_one_that_is_silent_is() {
        let now = Instant::now();
        let mut suspects = suspects(now);
        assert!(suspects.answered(agent(0)).is_some() && suspects.answered(agent(0)).is_none());
        suspects.add(agent(1), (1, report(1).1), now + AGAIN, CoreTime::default());
        assert_eq!(suspects.due(now + AGAIN, &ONE, |_, _| unreachable!()), (vec![agent(1)], Vec::new()), "asked again");
        let late = |asked, _| Slowness::new(asked, ANSWER);
        assert_eq!(suspects.due(now + ANSWER, &ONE, late).1, [], "this machine is twice as slow as an idle one");
        assert_eq!(suspects.due(now + 2 * ANSWER, &ONE, late).1, [report(1)]);
        assert_eq!(suspects.next(), None);
    }

    #[test]
    fn an_agent_that_no_gateway_reaches_is_lost_at_once() {
        let mut suspects = suspects(Instant::now());
        assert_eq!(suspects.undelivered(agent(1), 0, [0, 1].into_iter()), None);
        assert_eq!(suspects.undelivered(agent(1), 1, [0, 1].into_iter()), Some(report(1)));
        assert_eq!(suspects.undelivered(agent(2), 1, [1].into_iter()), None, "nobody suspects it");
    }

    #[test]
    fn an_agent_that_nobody_reports_is_lost_if_it_is_silent_and_no_gateway_knows_it() {
        let (now, idle) = (Instant::now(), |_, _| Slowness::NONE);
        let mut suspects = Suspects::default();
        (0..3).for_each(|node| suspects.question(agent(node), report(node), ANSWER, now, CoreTime::default()));
        assert_eq!(suspects.due(now, &BOTH, idle).0.len(), 3);
        for gateway in [0, 1] {
            assert_eq!(suspects.undelivered(agent(1), gateway, [0, 1].into_iter()), None, "it may still come");
        }
        assert_eq!(suspects.undelivered(agent(2), 1, [0, 1].into_iter()), None);
        assert!(suspects.answered(agent(0)).is_some());
        let lost = suspects.due(now + ANSWER, &BOTH, idle);
        assert_eq!(lost, (Vec::new(), vec![report(1)]), "one gateway has delivered the question to the third");
        // A report counts more than a question.
        suspects.question(agent(1), report(1), ANSWER, now, CoreTime::default());
        suspects.add(agent(1), report(1), now, CoreTime::default());
        assert_eq!(suspects.undelivered(agent(1), 1, [1].into_iter()), Some(report(1)));
    }

    #[test]
    fn a_question_stays_open_while_a_gateway_that_may_deliver_it_is_silent() {
        let (now, idle) = (Instant::now(), |_, _| Slowness::NONE);
        let asked = || {
            let mut suspects = Suspects::default();
            suspects.question(agent(0), report(0), ANSWER, now, CoreTime::default());
            assert_eq!(suspects.undelivered(agent(0), 1, [0, 1].into_iter()), None);
            let silent = [(0, true), (1, false)];
            for later in [ANSWER, 2 * ANSWER, 3 * ANSWER] {
                assert_eq!(suspects.due(now + later, &silent, idle), (vec![agent(0)], Vec::new()));
            }
            suspects
        };
        assert_eq!(asked().due(now + 4 * ANSWER, &[(1, false)], idle).1, [report(0)], "the silent gateway is lost");
        assert!(asked().answered(agent(0)).is_some(), "the silent gateway speaks again, and delivers the question");
        let mut suspects = asked();
        assert_eq!(suspects.due(now + 4 * ANSWER, &BOTH, idle), (Vec::new(), Vec::new()), "silence is for gateways");
        assert_eq!(suspects.next(), None);
    }

    #[test]
    fn a_question_that_is_urgent_shortens_one_of_the_routine() {
        let (now, idle) = (Instant::now(), |_, _| Slowness::NONE);
        let mut suspects = Suspects::default();
        let mut question = |answer| suspects.question(agent(0), report(0), answer, now, CoreTime::default());
        [8 * ANSWER, ANSWER, 8 * ANSWER].into_iter().for_each(&mut question);
        assert_eq!(suspects.undelivered(agent(0), 0, [0].into_iter()), None);
        assert_eq!(suspects.due(now + ANSWER, &ONE, idle).1, [report(0)]);
    }
}
