//! Messages between launchers and gateways about a job: opening it, closing it, and losses in between.
//!
//! While nodes are requested for a job that is not open yet, [`JobMessage::Refused`], [`JobMessage::Close`] and
//! [`JobMessage::Closed`] concern those nodes.

use serde::{Deserialize, Serialize};
use types::{Identity, JobId, Roster};

use crate::proof::Secret;

/// Between a launcher and gateways, and between gateways, about one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobMessage {
    /// Launcher → a gateway of its site → gateways of the job's other sites: admit this job.
    Open {
        job: JobId,
        /// The secret that its members prove.
        secret: Secret,
        /// Its sites, nodes and ranks. Site names are as in the sites file.
        roster: Roster,
        /// The site of the launcher.
        home: String,
        /// The gateway's part in the job.
        part: Part,
    },
    /// Gateway → gateway, when both may serve a job: it is open here, and frames of its members are accepted. Sent
    /// again when the last of the site's ranks has connected.
    Here {
        job: JobId,
        /// All of the site's ranks are connected here.
        whole: bool,
    },
    /// Gateway → the gateways that asked it to open the job: no member is connected to it here; is it still wanted? A
    /// gateway that does not have the job answers [`JobMessage::left`]; others do not answer.
    Wanted { job: JobId },
    /// A site has admitted the job and started its agents. To the launcher.
    Opened {
        job: JobId,
        site: String,
        /// Bytes (headers and payloads) that each member may initially have in flight to all peers; the launcher passes
        /// the smallest of all sites to the ranks.
        window: u32,
    },
    /// A site cannot take part. To the launcher.
    Refused {
        job: JobId,
        site: String,
        /// The reason, for the user.
        reason: String,
    },
    /// The agent of a node could not be started, or has ended. To the launcher.
    AgentLost {
        job: JobId,
        site: String,
        node: String,
        /// The reason, for the user.
        reason: String,
    },
    /// A member's connection ended without a goodbye. To the launcher.
    MemberLost {
        job: JobId,
        member: Identity,
        /// The reason, for the user.
        reason: String,
    },
    /// The gateway that led the job at a site is lost; others remain. To the launcher.
    LeadLost {
        job: JobId,
        site: String,
        /// The reason, for the user.
        reason: String,
    },
    /// This gateway has lost its last route to a site. To the launcher.
    SiteLost {
        job: JobId,
        site: String,
        /// The site of the gateway that sends this.
        seen_from: String,
        /// The reason, for the user.
        reason: String,
    },
    /// This gateway, which had reported a site as lost, has a route to it again. To the launcher.
    SiteFound { job: JobId, site: String },
    /// Launcher → its gateways: its process is about to stop (Ctrl-Z) and will be silent, or is running again. Each
    /// answers with the same message.
    Stopped { job: JobId, stopped: bool },
    /// Launcher → its gateways → all: end the job and all its remaining processes. Made by [`JobMessage::close`] and
    /// [`JobMessage::left`].
    Close {
        job: JobId,
        /// True: the launcher has ended, or ordered it. False: only the sending gateway has no part of the job, and the
        /// others go on without it; its own cable may have been pulled.
        everywhere: bool,
    },
    /// A gateway has nothing left of the job: its last message about it. To the launcher.
    Closed {
        job: JobId,
        site: String,
        /// The gateway's counters.
        traffic: Traffic,
        /// True if it led the job there; otherwise it only relayed.
        led: bool,
    },
}

/// A gateway's part in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// It leads the job at its site: it starts the agents, and reports for the site.
    Lead,
    /// As [`Part::Lead`], for a job without agents, whose ranks already run: a coupling.
    LeadWithoutAgents,
    /// It only relays frames.
    Relay {
        /// Bytes that each member may initially have in flight, as in [`JobMessage::Opened`].
        window: u32,
    },
    /// As [`Part::Relay`], for a job without agents.
    RelayWithoutAgents { window: u32 },
}

impl Part {
    pub fn leads(self) -> bool {
        self.window().is_none()
    }

    /// Returns true if the job has agents, which look after its ranks.
    pub fn has_agents(self) -> bool {
        matches!(self, Part::Lead | Part::Relay { .. })
    }

    /// The corresponding part of a gateway that only relays.
    pub fn relay(self, window: u32) -> Part {
        if self.has_agents() { Part::Relay { window } } else { Part::RelayWithoutAgents { window } }
    }

    /// The window, if the gateway only relays.
    pub fn window(self) -> Option<u32> {
        match self {
            Part::Lead | Part::LeadWithoutAgents => None,
            Part::Relay { window } | Part::RelayWithoutAgents { window } => Some(window),
        }
    }
}

/// A gateway's counters for a job, in bytes of frames (headers included).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// From the site's ranks into trunks.
    pub sent: u64,
    /// From trunks to the site's ranks.
    pub received: u64,
    /// Between members of the site itself, through the gateway.
    pub local: u64,
}

impl JobMessage {
    /// Orders the end of a job everywhere.
    pub fn close(job: JobId) -> JobMessage {
        JobMessage::Close { job, everywhere: true }
    }

    /// Gateway → gateway: the sender has no part of the job, but others may.
    pub fn left(job: JobId) -> JobMessage {
        JobMessage::Close { job, everywhere: false }
    }

    /// The message's job.
    pub fn job(&self) -> JobId {
        match self {
            JobMessage::Open { job, .. }
            | JobMessage::Here { job, .. }
            | JobMessage::Wanted { job }
            | JobMessage::Opened { job, .. }
            | JobMessage::Refused { job, .. }
            | JobMessage::AgentLost { job, .. }
            | JobMessage::MemberLost { job, .. }
            | JobMessage::LeadLost { job, .. }
            | JobMessage::SiteLost { job, .. }
            | JobMessage::SiteFound { job, .. }
            | JobMessage::Stopped { job, .. }
            | JobMessage::Close { job, .. }
            | JobMessage::Closed { job, .. } => *job,
        }
    }
}
