//! What launchers and gateways say of a job: opening it, closing it, and what is lost in between.
//!
//! While nodes are sought for a job that is not open yet, [`JobMessage::Refused`], [`JobMessage::Close`] and
//! [`JobMessage::Closed`] are about those nodes.

use serde::{Deserialize, Serialize};
use types::{Identity, JobId, Roster};

use crate::Secret;

/// Between a launcher and gateways, and between gateways, about one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobMessage {
    /// Launcher → a gateway of its site → gateways of the job's other sites: admit this job.
    Open {
        job: JobId,
        /// What its members prove.
        secret: Secret,
        /// Its sites, nodes and ranks. Site names are those of the sites file.
        roster: Roster,
        /// The site of the launcher.
        home: String,
        /// What the gateway is to the job.
        part: Part,
    },
    /// Gateway → gateway, when both may serve a job: it is open here, and frames of its members are welcome. Said again when the
    /// last of the site's ranks has come.
    Here {
        job: JobId,
        /// All of the site's ranks are connected here.
        whole: bool,
    },
    /// Gateway → the gateways that asked it to open the job: nobody is connected to it here, so is it still wanted? Who has no such
    /// job answers [`JobMessage::Close`], others nothing.
    Wanted { job: JobId },
    /// A site has admitted the job and started its agents. To the launcher.
    Opened {
        job: JobId,
        site: String,
        /// Bytes (headers and payloads) that each member may have in flight in all, at first;
        /// the launcher hands the least of all sites to the ranks.
        window: u32,
    },
    /// A site cannot take part. To the launcher.
    Refused {
        job: JobId,
        site: String,
        /// Why, for the user.
        reason: String,
    },
    /// The agent of a node could not be started, or ended. To the launcher.
    AgentLost {
        job: JobId,
        site: String,
        node: String,
        /// Why, for the user.
        reason: String,
    },
    /// A member's connection ended without goodbye. To the launcher.
    MemberLost {
        job: JobId,
        /// Who.
        member: Identity,
        /// Why, for the user.
        reason: String,
    },
    /// The gateway that led the job at a site is lost; others are there. To the launcher.
    LeadLost {
        job: JobId,
        site: String,
        /// Why, for the user.
        reason: String,
    },
    /// From this gateway no route to a site is left. To the launcher.
    SiteLost {
        job: JobId,
        site: String,
        /// The site of whoever says so.
        seen_from: String,
        /// Why, for the user.
        reason: String,
    },
    /// From this gateway, which said that a site was lost, there is a route to it again. To the launcher.
    SiteFound { job: JobId, site: String },
    /// Launcher → its gateway → all: end the job; whatever of it still runs is to be ended.
    Close { job: JobId },
    /// A gateway of a site has nothing of the job any more; its last message of the job. To the launcher.
    Closed {
        job: JobId,
        site: String,
        /// What the gateway counted.
        traffic: Traffic,
        /// Whether it led the job there; else it has only been one more way.
        led: bool,
    },
}

/// What a gateway is to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// It leads the job at its site: starts the agents, and speaks for the site.
    Lead,
    /// It is one more way for frames.
    Relay {
        /// Bytes that each member may have in flight in all, at first, as [`JobMessage::Opened`] has it.
        window: u32,
    },
}

/// What a gateway counted for a job, in bytes of frames (headers included).
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
    /// The job it is about.
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
            | JobMessage::Close { job, .. }
            | JobMessage::Closed { job, .. } => *job,
        }
    }
}
