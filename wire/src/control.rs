//! What launchers and gateways say to each other: opening, watching and closing jobs. Rare, so JSON.

use serde::{Deserialize, Serialize};
use types::{Identity, JobId, Roster};

use crate::{Secret, View, WireError};

/// The longest control message in bytes (a roster of tens of thousands of nodes fits).
pub const MAX_CONTROL: usize = crate::frame::MAX_PAYLOAD as usize;

/// The payload of a `Control` frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Control {
    /// Launcher → a gateway of its site → gateways of the job's other sites: admit this job.
    JobOpen {
        /// The job.
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
    JobHere {
        /// The job.
        job: JobId,
        /// All of the site's ranks are connected here.
        whole: bool,
    },
    /// Gateway that nobody can dial → one that it has dialled: let me meet this one, which nobody can dial either.
    Meet {
        /// The site of the one to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// For which link of the trunk between the two, from 0.
        link: u16,
    },
    /// The answer, to both: dial me for [`Purpose::Meet`](crate::handshake::Purpose::Meet).
    MeetHere {
        /// The site of the one to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// For which link of the trunk between the two.
        link: u16,
        /// The meeting's number.
        meeting: JobId,
        /// What the receiver of this message proves there; the other has another one.
        secret: Secret,
    },
    /// The answer to the one that asked: why not.
    MeetNot {
        /// The site of the one to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// For which link of the trunk between the two.
        link: u16,
        /// Why, for the user.
        reason: String,
    },
    /// The other gateway of such a trunk, when it has dialled the place → the place → the one that asks: it can come now.
    MeetMe {
        /// On the way to the place: the site of the one that asks. From there: the site of the one that can come.
        site: String,
        /// Its gateway's name.
        gateway: String,
    },
    /// Launcher → its gateway → the site's gateway: find nodes for this job, before it is opened.
    Allocate {
        /// The job.
        job: JobId,
        /// The site whose nodes are wanted.
        site: String,
        /// The site of the launcher.
        home: String,
        /// What is wanted.
        ask: NodeAsk,
    },
    /// How far a site is in finding nodes; said again as it changes. To the launcher.
    Allocating {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
        /// For the user, such as `Slurm job 12 waits (Priority)`.
        state: String,
    },
    /// A site has nodes for a job. They are kept until the job is closed. To the launcher.
    Allocated {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
        /// The nodes, in the order of ranks.
        nodes: Vec<AllocatedNode>,
    },
    /// A site has admitted the job and started its agents. To the launcher.
    JobOpened {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
        /// Bytes (headers and payloads) that each member may have in flight in all, at first;
        /// the launcher hands the least of all sites to the ranks.
        window: u32,
    },
    /// A site cannot take part. To the launcher.
    JobRefused {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
        /// Why, for the user.
        reason: String,
    },
    /// The agent of a node could not be started, or ended. To the launcher.
    AgentLost {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
        /// The node.
        node: String,
        /// Why, for the user.
        reason: String,
    },
    /// A member's connection ended without goodbye. To the launcher.
    MemberLost {
        /// The job.
        job: JobId,
        /// Who.
        member: Identity,
        /// Why, for the user.
        reason: String,
    },
    /// The gateway that led the job at a site is lost; others are there. To the launcher.
    LeadLost {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
        /// Why, for the user.
        reason: String,
    },
    /// From this gateway no route to a site is left. To the launcher.
    SiteLost {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
        /// The site of whoever says so.
        seen_from: String,
        /// Why, for the user.
        reason: String,
    },
    /// From this gateway, which said that a site was lost, there is a route to it again. To the launcher.
    SiteFound {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
    },
    /// Launcher → its gateway → all: end the job; whatever of it still runs is to be ended.
    JobClose {
        /// The job.
        job: JobId,
    },
    /// A gateway of a site has nothing of the job any more; its last message of the job. To the launcher.
    JobClosed {
        /// The job.
        job: JobId,
        /// The site.
        site: String,
        /// What the gateway counted.
        traffic: Traffic,
        /// Whether it led the job there; else it has only been one more way.
        led: bool,
    },
    /// Client → gateway: try a trunk to this site.
    Probe {
        /// The site.
        site: String,
    },
    /// The answer to a probe.
    Probed {
        /// The site.
        site: String,
        /// What went wrong, for the user; `None` when the trunk works.
        problem: Option<String>,
        /// Round trip over the trunk, in nanoseconds, when it works.
        rtt_ns: u64,
    },
    /// Client → a gateway of its site → a gateway of `from`: measure the way between two sites.
    Measure {
        /// The site that sends.
        from: String,
        /// The site that is sent to.
        to: String,
        /// How much it carries too, by a short transfer; else only the round trip.
        transfer: bool,
    },
    /// The answer to [`Control::Measure`].
    Measured {
        /// The site that sent.
        from: String,
        /// The site that was sent to.
        to: String,
        /// What was found.
        found: Measurement,
    },
    /// Client → gateway: what do you see?
    Observe,
    /// The answer to [`Control::Observe`].
    Observed {
        /// All that it shows.
        view: Box<View>,
    },
    /// Client → gateway: let a site that shows a ticket join, once.
    Invite {
        /// How long the ticket is good, in seconds.
        seconds: u32,
    },
    /// The answer to [`Control::Invite`].
    Invited {
        /// The ticket's number.
        ticket: JobId,
        /// What its holder proves.
        secret: Secret,
    },
    /// A site that has proved a ticket → gateway: take this entry into your sites file.
    Join {
        /// The entry, as a sites file with this site alone.
        entry: String,
    },
    /// The answer to [`Control::Join`].
    Joined {
        /// The sites file, with the new site in it; `None`: it was not taken in.
        sites: Option<String>,
        /// Why not, for the user.
        problem: String,
    },
    /// Client → gateway: how do you stand?
    Status {
        /// First read the sites file again, and take up sites that were added to it.
        reload: bool,
    },
    /// The answer to [`Control::Status`].
    Standing {
        /// Jobs that are open here.
        jobs: u32,
        /// The trunks, in the order of the sites file.
        trunks: Vec<TrunkStanding>,
        /// Why the gateway does not do what its sites file says now, if so: only a restart helps.
        stale: Option<String>,
    },
}

/// What a gateway is to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// It leads the job at its site: starts the agents, and speaks for the site.
    Lead,
    /// It is one more way for frames.
    Relay {
        /// Bytes that each member may have in flight in all, at first, as [`Control::JobOpened`] has it.
        window: u32,
    },
}

/// What a measurement of the way between two sites found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Measurement {
    /// How far it is, and what it carries.
    Done {
        /// Round trip over the trunk, in nanoseconds.
        rtt_ns: u64,
        /// Bytes of frames that arrived; 0 if there was to be no transfer.
        bytes: u64,
        /// In so many nanoseconds.
        transfer_ns: u64,
    },
    /// The gateway measures something else at the moment: try again soon.
    Busy,
    /// There is no way, or it could not be measured.
    Failed {
        /// Why, for the user.
        problem: String,
    },
}

/// How a trunk stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkStanding {
    /// The site at its other end.
    pub site: String,
    /// Whether a link of it is up.
    pub up: bool,
    /// What went wrong last, for the user; empty when nothing did.
    pub problem: String,
}

/// Nodes that a job needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAsk {
    /// How many ranks. 0: only say whether there would be nodes, as [`Control::Allocating`], and grant none.
    pub ranks: u32,
    /// How many of them on one node. `None`: as the batch system likes.
    pub per_node: Option<u32>,
    /// How long to wait for them, in seconds.
    pub wait_s: u32,
    /// The batch job that the user has already: its nodes are taken, and it is left alone afterwards.
    pub held: Option<HeldAllocation>,
}

/// A batch job that is the user's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAllocation {
    /// Its number or name in the batch system.
    pub id: String,
    /// Its nodes.
    pub nodes: Vec<AllocatedNode>,
}

/// A node of a batch job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedNode {
    /// Its name in the batch system.
    pub name: String,
    /// Most ranks it may run.
    pub slots: u32,
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

impl Control {
    /// The job it is about, if it is about one.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Control::JobOpen { job, .. }
            | Control::JobHere { job, .. }
            | Control::Allocate { job, .. }
            | Control::Allocating { job, .. }
            | Control::Allocated { job, .. }
            | Control::JobOpened { job, .. }
            | Control::JobRefused { job, .. }
            | Control::AgentLost { job, .. }
            | Control::MemberLost { job, .. }
            | Control::LeadLost { job, .. }
            | Control::SiteLost { job, .. }
            | Control::SiteFound { job, .. }
            | Control::JobClose { job }
            | Control::JobClosed { job, .. } => Some(*job),
            Control::Probe { .. } | Control::Probed { .. } | Control::Status { .. } | Control::Standing { .. } => None,
            Control::Observe | Control::Observed { .. } | Control::Measure { .. } | Control::Measured { .. } => None,
            Control::Invite { .. } | Control::Invited { .. } | Control::Join { .. } | Control::Joined { .. } => None,
            Control::Meet { .. } | Control::MeetHere { .. } | Control::MeetNot { .. } | Control::MeetMe { .. } => None,
        }
    }

    /// The payload.
    ///
    /// # Errors
    /// The message is longer than [`MAX_CONTROL`].
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let invalid = |e: serde_json::Error| WireError::Invalid { what: "control message", problem: e.to_string() };
        let bytes = serde_json::to_vec(self).map_err(invalid)?;
        if bytes.len() > MAX_CONTROL {
            let limit = MAX_CONTROL as u64;
            return Err(WireError::TooLong { what: "control message", length: bytes.len() as u64, limit });
        }
        Ok(bytes)
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// It is not one of these messages.
    pub fn decode(bytes: &[u8]) -> Result<Control, WireError> {
        serde_json::from_slice(bytes)
            .map_err(|e| WireError::Invalid { what: "control message", problem: e.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive() {
        let message = Control::JobOpen {
            job: JobId(9),
            secret: Secret::new([5; 32]),
            roster: "a:n1*2;b:n1*2".parse().unwrap(),
            home: "a".into(),
            part: Part::Relay { window: 1 << 20 },
        };
        assert_eq!(message.job(), Some(JobId(9)));
        let nodes = vec![AllocatedNode { name: "n1".into(), slots: 2 }];
        let held = Some(HeldAllocation { id: "12".into(), nodes });
        let ask = NodeAsk { ranks: 2, per_node: None, wait_s: 60, held };
        let asked = Control::Allocate { job: JobId(9), site: "b".into(), home: "a".into(), ask };
        assert_eq!(Control::decode(&asked.encode().unwrap()), Ok(asked));
        let (site, gateway, meeting) = ("b".to_owned(), "gw1".to_owned(), JobId(9));
        let meet = Control::MeetHere { site, gateway, link: 3, meeting, secret: Secret::new([6; 32]) };
        assert_eq!((meet.job(), Control::decode(&meet.encode().unwrap())), (None, Ok(meet)));
        assert_eq!(Control::Probe { site: "a".into() }.job(), None);
        for found in [Measurement::Done { rtt_ns: 1, bytes: 2, transfer_ns: 3 }, Measurement::Busy] {
            let measured = Control::Measured { from: "a".into(), to: "b".into(), found };
            assert_eq!((measured.job(), Control::decode(&measured.encode().unwrap())), (None, Ok(measured)));
        }
        assert_eq!(Control::decode(&message.encode().unwrap()), Ok(message));
        assert!(Control::decode(b"{\"JobOpen\":{}}").is_err());
    }

    #[test]
    fn a_roster_that_nobody_could_have_made_is_refused() {
        let message = |node: &str, ranks: u32| {
            let secret = "05".repeat(32);
            let roster = format!(
                r#"{{"sites":[{{"name":"a","nodes":[{{"name":"{node}","ranks":{ranks}}},{{"name":"m","ranks":1}}]}}]}}"#
            );
            format!(r#"{{"JobOpen":{{"job":9,"secret":"{secret}","roster":{roster},"home":"a","part":"Lead"}}}}"#)
        };
        assert!(Control::decode(message("n", 3).as_bytes()).is_ok());
        for (node, ranks) in [("n", u32::MAX), ("n;x", 3)] {
            let error = Control::decode(message(node, ranks).as_bytes()).unwrap_err().to_string();
            assert!(error.contains("ranks") || error.contains("n;x"), "{error}");
        }
    }
}
