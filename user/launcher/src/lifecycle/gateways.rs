//! A job's reactions to messages and losses of gateways. Part of [`Job`].

use std::ops::Range;

use tokio::time::Instant;
use types::Slowness;
use types::patience::Patience;
use wire::control::{JobMessage, Traffic};

use super::{Action, Job, LEADERLESS, Leaderless, Node, NodeState, Phase};
use crate::LOOK;
use crate::outcome::Failure;

impl Job {
    /// Records the gateways that have been ordered to close the job.
    pub(crate) fn closing_at(&mut self, gateways: &[usize]) {
        self.unclosed = gateways.iter().copied().filter(|gateway| *gateway > 0).collect();
    }

    /// Handles the loss of an own gateway while others are connected.
    pub(super) fn gateway_lost(&mut self, gateway: usize, reason: &str, now: Instant) {
        self.gateways.disconnected(gateway);
        if self.phase == Phase::Closing {
            // A gateway closes its connections once it has closed the job.
            self.unclosed.remove(&gateway);
            self.sites.iter_mut().filter(|_| gateway == 0).for_each(|site| {
                site.closed.get_or_insert(None);
            });
            return self.check_closed();
        }
        if self.is_starting() && gateway == 0 {
            return self.gateway_is_lost(Failure::new(reason.to_owned()), now);
        }
        if let Some(home) = self.site_index(&self.home).filter(|_| gateway == 0) {
            // The site's lead will never report.
            self.sites[home].closed = Some(None);
        }
        self.actions.push_back(Action::Note(format!("{reason}; the job continues through other gateways")));
        self.check_reached(reason, now);
    }

    /// Handles the loss of a gateway that the job needs. If no rank has been started yet, the job may be opened again
    /// through another gateway.
    pub(super) fn gateway_is_lost(&mut self, failure: Failure, now: Instant) {
        self.note_unstarted(&failure);
        self.lost(failure, now);
    }

    pub(super) fn note_unstarted(&mut self, failure: &Failure) {
        if self.is_starting() {
            self.unstarted.get_or_insert_with(|| failure.clone());
        }
    }

    /// The reason why no rank was started, if a gateway was lost meanwhile and no signal ended the job.
    pub(crate) fn unstarted(&self) -> Option<&Failure> {
        self.unstarted.as_ref().filter(|_| self.signals == 0)
    }

    /// Reports a site as lost if no own gateway reaches it.
    fn check_reached(&mut self, reason: &str, now: Instant) {
        let Some(name) = self.gateways.unreached().map(str::to_owned) else { return };
        let Some(at) = self.site_index(&name) else { return };
        self.sites[at].closed = Some(None);
        for node in self.nodes.iter_mut().filter(|node| node.site == name) {
            node.state = NodeState::Ended;
        }
        let routes = if self.gateways.len() > 1 { "all routes to it were" } else { "its gateway was" };
        let reason = format!("{routes} lost: {reason}. {LOOK}");
        self.gateway_is_lost(Failure::at_site(&name, reason), now);
        self.check_ended(now);
        self.check_closed();
    }

    pub(super) fn gateway_says(&mut self, gateway: usize, message: JobMessage, now: Instant) {
        match message {
            JobMessage::Closed { site, traffic, led: false, .. } => {
                if let Some(at) = self.site_index(&site) {
                    let relayed = &mut self.sites[at].relayed;
                    relayed.sent += traffic.sent;
                    relayed.received += traffic.received;
                    relayed.local += traffic.local;
                }
            }
            JobMessage::Refused { site, reason, .. } if gateway > 0 => {
                self.actions.push_back(Action::Note(format!("site {site}: a gateway is not used: {reason}")));
            }
            JobMessage::Opened { site, window, .. } => self.site_opened(&site, window, now),
            JobMessage::Refused { site, reason, .. } => {
                if let Some(at) = self.site_index(&site) {
                    self.sites[at].closed = Some(None);
                }
                self.lost(Failure::at_site(&site, reason), now);
            }
            JobMessage::AgentLost { site, node, reason, .. } => {
                self.agent_lost(|known| known.site == site && known.name == node, &reason, now);
            }
            JobMessage::MemberLost { member, reason, .. } => {
                // A rank's end is reported by its agent, with more detail.
                self.agent_lost(|known| known.agent == member, &reason, now);
            }
            JobMessage::LeadLost { site, reason, .. } => self.lead_lost(&site, reason, now),
            JobMessage::SiteLost { site, seen_from, reason, .. } => {
                self.gateways.lost(gateway, &seen_from, &site);
                self.check_reached(&reason, now);
            }
            JobMessage::SiteFound { site, .. } => self.gateways.found(gateway, &site),
            JobMessage::Closed { site, traffic, .. } => self.site_closed(&site, traffic, now),
            JobMessage::Open { .. }
            | JobMessage::Here { .. }
            | JobMessage::Wanted { .. }
            | JobMessage::Stopped { .. }
            | JobMessage::Close { .. } => {
                tracing::warn!(gateway, "a gateway sent the launcher a message that is for gateways");
            }
        }
    }

    fn site_opened(&mut self, site: &str, window: u32, now: Instant) {
        if let Some(at) = self.site_index(site) {
            self.sites[at].window = Some(window);
        }
        self.progress(now);
        self.check_opened(now);
    }

    /// Handles the loss of the leading gateway of another site. The job continues without it if it had opened the job.
    fn lead_lost(&mut self, site: &str, reason: String, now: Instant) {
        let text = format!("site {site}: its leading gateway was lost: {reason}; the job continues through others");
        if let Some(at) = self.site_index(site) {
            // The lead will never report.
            self.sites[at].closed = Some(None);
            if self.sites[at].window.is_none() {
                let reason = format!("its leading gateway was lost before it had opened the job: {reason}");
                return self.gateway_is_lost(Failure::at_site(site, reason), now);
            }
            self.sites[at].leaderless = Some(Leaderless { since: now, reason, look: now + LEADERLESS });
        }
        if self.phase < Phase::Killing {
            self.actions.push_back(Action::Note(text));
        }
    }

    /// The leading gateway of a site has closed the job, with these counts of bytes.
    fn site_closed(&mut self, site: &str, traffic: Traffic, now: Instant) {
        if let Some(at) = self.site_index(site) {
            self.sites[at].closed = Some(Some(traffic));
        }
        if matches!(self.phase, Phase::Opening | Phase::Preparing | Phase::Running) {
            let reason = "its gateway closed the job".to_owned();
            self.lost(Failure::at_site(site, reason), now);
        }
        self.check_closed();
    }

    fn agent_lost(&mut self, which: impl Fn(&Node) -> bool, reason: &str, now: Instant) {
        let Some(node) = self.nodes.iter_mut().find(|node| which(node)) else { return };
        let before = std::mem::replace(&mut node.state, NodeState::Ended);
        let failure = Failure::at_node(&node.site, &node.name, format!("agent lost{}: {reason}", with(&node.ranks)));
        if before != NodeState::Ended {
            self.lost(failure, now);
            self.check_ended(now);
        }
    }

    /// While the job starts, the site without a leading gateway that must be checked next: a node whose agent is still
    /// awaited, the site's index in the roster, and its state.
    pub(super) fn leaderless(&self) -> Option<(&Node, usize, &Leaderless)> {
        if !self.is_starting() || self.sites.iter().all(|site| site.leaderless.is_none()) {
            return None;
        }
        let awaited = self.nodes.iter().filter(|node| node.state == NodeState::Awaited);
        let found = awaited.filter_map(|node| {
            let at = self.site_index(&node.site)?;
            Some((node, at, self.sites[at].leaderless.as_ref()?))
        });
        found.min_by_key(|(_, _, leaderless)| leaderless.look)
    }

    /// Checks that agents at sites without a leading gateway have connected in time. `slowness`: this machine's.
    pub(super) fn look_for_agents(&mut self, now: Instant, slowness: Slowness) {
        let Some((node, at, leaderless)) = self.leaderless().filter(|(_, _, leaderless)| leaderless.look <= now) else {
            return;
        };
        let waited = now - leaderless.since;
        let Some(later) = Patience::new(LEADERLESS).next_look(waited, slowness) else {
            let (waited, lost) = (waited.as_secs(), &leaderless.reason);
            let reason = format!(
                "its agent did not connect within {waited} s after the leading gateway of its site had been lost: {lost}"
            );
            let failure = Failure::at_node(&node.site, &node.name, reason);
            return self.gateway_is_lost(failure, now);
        };
        if let Some(leaderless) = &mut self.sites[at].leaderless {
            leaderless.look = leaderless.since + later;
        }
    }

    fn check_closed(&mut self) {
        if self.phase == Phase::Closing
            && self.unclosed.is_empty()
            && self.sites.iter().all(|site| site.closed.is_some())
        {
            self.phase = Phase::Over;
        }
    }
}

/// Names the ranks that were lost with an agent.
fn with(ranks: &Range<u32>) -> String {
    match ranks.len() {
        0 => String::new(),
        1 => format!(" with rank {}", ranks.start),
        _ => format!(" with ranks {} to {}", ranks.start, ranks.end - 1),
    }
}
