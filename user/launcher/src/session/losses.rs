//! Members of an open job that gateways report as lost, or that may be lost: they are asked.

use std::time::Duration;

use client::patience::{core_time, slowness_in};
use tokio::time::Instant;
use types::id::SlotKind;
use types::patience::{CoreTime, Patience};
use types::{Identity, Instance, Rank, SiteId, Slot};
use wire::control::JobMessage;

use super::{Incoming, LEAD, Session};
use crate::suspects::ANSWER;

/// Time for agents to dial other gateways after the loss of one, on a machine that is not overloaded.
const REDIAL: Duration = Duration::from_secs(5);

/// Interval between questions to all agents while no gateway is known to be lost, and the time limit for an answer. A
/// gateway that was restarted does not miss an agent that has not connected to it again, and this process hears of few
/// gateways at other sites.
const ROUTINE: Duration = Duration::from_secs(10);

/// A question to all agents that is due.
pub(super) struct RollCall {
    since: Instant,
    /// The core time then.
    before: CoreTime,
    patience: Patience,
    pub(super) at: Instant,
    /// Time limit for an answer.
    answer: Duration,
}

impl RollCall {
    /// After the loss of a gateway.
    fn after_loss(now: Instant) -> RollCall {
        RollCall::new(now, REDIAL, ANSWER)
    }

    pub(super) fn routine(now: Instant) -> RollCall {
        RollCall::new(now, ROUTINE, ROUTINE)
    }

    fn new(now: Instant, wait: Duration, answer: Duration) -> RollCall {
        RollCall { since: now, before: core_time(), patience: Patience::new(wait), at: now + wait, answer }
    }
}

impl Session {
    /// Turns a message about the job into events, unless it reports a loss that must be verified first.
    pub(super) fn job_message(&mut self, gateway: usize, message: JobMessage) -> Vec<Incoming> {
        match message {
            // All sites already take part. A lost gateway has come back and cannot relay. Without others, the job ends.
            JobMessage::Refused { site, reason, .. } if self.relayed && !self.named.is_empty() => {
                let gateway = self.name_of(gateway);
                vec![Incoming::Note(format!("site {site}: gateway {gateway} is not used: {reason}"))]
            }
            JobMessage::Stopped { .. } => {
                self.unaware.remove(&gateway);
                Vec::new()
            }
            JobMessage::AgentLost { .. } | JobMessage::MemberLost { .. } => match self.suspect(&message) {
                Some(member) => {
                    self.suspects.add(member, (gateway, message), Instant::now(), core_time());
                    self.look_at_suspects()
                }
                None => vec![Incoming::Job(gateway, message)],
            },
            message => {
                if matches!(message, JobMessage::LeadLost { .. }) {
                    self.call_the_roll_soon();
                }
                vec![Incoming::Job(gateway, message)]
            }
        }
    }

    /// Asks all agents, after the loss of a gateway once they have had time to dial the others: gateways report only
    /// members that have been connected to them, and an agent may not know all gateways that its launcher knows.
    pub(super) fn call_the_roll(&mut self) {
        let Some(call) = &mut self.roll_call else { return };
        let waited = call.since.elapsed();
        if let Some(later) = call.patience.next_look(waited, slowness_in(waited, call.before)) {
            call.at = call.since + later;
            return;
        }
        let answer = call.answer;
        self.question_all(answer);
    }

    /// Asks all agents once they have had time to dial other gateways: one of their site's is lost.
    pub(super) fn call_the_roll_soon(&mut self) {
        if !self.closing && self.part.has_agents() {
            self.roll_call = Some(RollCall::after_loss(Instant::now()));
        }
    }

    /// Asks all agents at once whether they are still there, instead of a question that is due.
    pub fn question_agents(&mut self) {
        self.question_all(ANSWER);
    }

    /// Asks all ranks of a job without agents whether they are there: gateways watch only those that have connected. A
    /// rank that is connected to no gateway within `limit` is reported as lost.
    pub fn question_ranks(&mut self, limit: Duration) {
        let now = Instant::now();
        let reason = format!("it has not connected to a gateway of its site within {} s", limit.as_secs());
        for (site, _, first, node) in self.roster.nodes() {
            for slot in (first.0..first.0 + node.ranks).filter_map(|rank| Slot::rank(Rank(rank), Instance(0))) {
                let member = Identity { site, slot };
                let report = JobMessage::MemberLost { job: self.job, member, reason: reason.clone() };
                self.suspects.question(member, (usize::from(LEAD.0), report), limit, now, core_time());
            }
        }
    }

    fn question_all(&mut self, answer: Duration) {
        let now = Instant::now();
        self.roll_call = (!self.closing).then(|| RollCall::routine(now));
        for (site, node, _, entry) in self.roster.nodes() {
            let (Some(slot), Some(name)) = (Slot::agent(node), self.roster.site(site).map(|site| &site.name)) else {
                continue;
            };
            let member = Identity { site, slot };
            if self.post.knows(member) {
                let reason = "its gateways are lost, and it answers through no other".to_owned();
                let (site, node) = (name.clone(), entry.name.clone());
                let report = JobMessage::AgentLost { job: self.job, site, node, reason };
                self.suspects.question(member, (usize::from(LEAD.0), report), answer, now, core_time());
            }
        }
    }

    /// Returns the member that a message reports as lost, if another gateway may still reach it: an agent, or a rank of
    /// a job without agents.
    fn suspect(&self, message: &JobMessage) -> Option<Identity> {
        let member = match message {
            JobMessage::AgentLost { site, node, .. } => {
                let of_site = |at: SiteId| self.roster.site(at).is_some_and(|known| known.name == *site);
                let (site, node, ..) =
                    self.roster.nodes().find(|(at, _, _, entry)| of_site(*at) && entry.name == *node)?;
                Identity { site, slot: Slot::agent(node)? }
            }
            JobMessage::MemberLost { member, .. } => *member,
            _ => return None,
        };
        let may_answer = match member.slot.kind() {
            SlotKind::Agent(_) => self.post.knows(member),
            // Before gateways watch a rank, it has connected.
            SlotKind::Rank(..) => !self.part.has_agents(),
            _ => false,
        };
        let site = &self.roster.site(member.site)?.name;
        let reached = may_answer && self.relayed && !self.closing && self.several.contains(site);
        reached.then_some(member)
    }

    /// Asks the members that gateways report as lost. Returns the confirmed reports.
    pub(super) fn look_at_suspects(&mut self) -> Vec<Incoming> {
        let connections = &self.connections;
        let open: Vec<_> = connections.open().map(|gateway| (gateway, connections.is_silent(gateway))).collect();
        let (ask, confirmed) = self.suspects.due(Instant::now(), &open, |asked, before| {
            // Such a member mostly sleeps, and is assumed to wait for a core as long as this process does.
            core_time().since_for_sleepers(before, asked)
        });
        ask.into_iter().for_each(|member| self.post.ask(member));
        confirmed.into_iter().map(|(gateway, report)| Incoming::Job(gateway, report)).collect()
    }

    /// Latest time at which a pending report about a member is confirmed.
    pub fn suspects_until(&self) -> Option<Instant> {
        self.suspects.until()
    }

    pub(super) fn answered(&mut self, member: Identity) {
        if let Some(report) = self.suspects.answered(member) {
            tracing::info!(%member, ?report, "a member that a gateway has lost answers through another");
        }
    }
}
