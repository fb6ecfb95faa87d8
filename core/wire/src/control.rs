//! Messages between launchers, users' commands and gateways: one enum per protocol. They are rare, so they are JSON.

use serde::{Deserialize, Serialize};
use types::JobId;

use crate::error::WireError;

pub mod allocation;
pub mod coupling;
pub mod job;
pub mod joining;
pub mod links;
pub mod measurement;
pub mod meeting;
pub mod observation;

pub use allocation::{AllocatedNode, AllocationMessage, HeldAllocation, NodeAsk};
pub use coupling::{Coupling, CouplingMessage};
pub use job::{JobMessage, Part, Traffic};
pub use joining::JoiningMessage;
pub use links::LinksMessage;
pub use measurement::{Measurement, MeasurementMessage};
pub use meeting::MeetingMessage;
pub use observation::{ObservationMessage, TrunkStanding};

/// The longest control message in bytes (a roster of tens of thousands of nodes fits).
pub const MAX_CONTROL: usize = crate::frame::MAX_PAYLOAD as usize;

/// The payload of a `Control` frame: a message of one of these protocols.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Opening, watching and closing a job.
    Job(JobMessage),
    /// Nodes for a job.
    Allocation(AllocationMessage),
    /// Meetings of gateways that cannot be dialled.
    Meeting(MeetingMessage),
    /// Measurements of the network to another site.
    Measurement(MeasurementMessage),
    /// A gateway's view of itself.
    Observation(ObservationMessage),
    /// Sites that join by a ticket.
    Joining(JoiningMessage),
    /// Round trips and rates between sites.
    Links(LinksMessage),
    /// Programs that look for each other to exchange arrays.
    Coupling(CouplingMessage),
}

impl Control {
    /// The message's job, if it concerns one.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Control::Job(message) => Some(message.job()),
            Control::Allocation(message) => Some(message.job()),
            Control::Meeting(_)
            | Control::Measurement(_)
            | Control::Observation(_)
            | Control::Joining(_)
            | Control::Links(_)
            | Control::Coupling(_) => None,
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

impl From<JobMessage> for Control {
    fn from(message: JobMessage) -> Control {
        Control::Job(message)
    }
}

impl From<AllocationMessage> for Control {
    fn from(message: AllocationMessage) -> Control {
        Control::Allocation(message)
    }
}

impl From<MeetingMessage> for Control {
    fn from(message: MeetingMessage) -> Control {
        Control::Meeting(message)
    }
}

impl From<MeasurementMessage> for Control {
    fn from(message: MeasurementMessage) -> Control {
        Control::Measurement(message)
    }
}

impl From<ObservationMessage> for Control {
    fn from(message: ObservationMessage) -> Control {
        Control::Observation(message)
    }
}

impl From<JoiningMessage> for Control {
    fn from(message: JoiningMessage) -> Control {
        Control::Joining(message)
    }
}

impl From<LinksMessage> for Control {
    fn from(message: LinksMessage) -> Control {
        Control::Links(message)
    }
}

impl From<CouplingMessage> for Control {
    fn from(message: CouplingMessage) -> Control {
        Control::Coupling(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::Secret;

    #[test]
    fn messages_survive() {
        let message = Control::Job(JobMessage::Open {
            job: JobId(9),
            secret: Secret::new([5; 32]),
            roster: "a:n1*2;b:n1*2".parse().unwrap(),
            home: "a".into(),
            part: Part::Lead.relay(1 << 20),
        });
        assert_eq!(message.job(), Some(JobId(9)));
        let nodes = vec![AllocatedNode::new("n1", 2)];
        let held = Some(HeldAllocation { id: "12".into(), nodes });
        let ask = NodeAsk { ranks: 2, elsewhere: 3, beyond_home: 2, per_node: None, wait_s: 60, held };
        let asked =
            Control::Allocation(AllocationMessage::Ask { job: JobId(9), site: "b".into(), home: "a".into(), ask });
        assert_eq!(Control::decode(&asked.encode().unwrap()), Ok(asked));
        let (site, gateway, meeting) = ("b".to_owned(), "gw1".to_owned(), JobId(9));
        let meet =
            Control::Meeting(MeetingMessage::Call { site, gateway, link: 3, meeting, secret: Secret::new([6; 32]) });
        assert_eq!((meet.job(), Control::decode(&meet.encode().unwrap())), (None, Ok(meet)));
        assert_eq!(Control::Measurement(MeasurementMessage::Probe { site: "a".into() }).job(), None);
        for found in [Measurement::Done { rtt_ns: 1, bytes: 2, transfer_ns: 3 }, Measurement::Busy] {
            let measured =
                Control::Measurement(MeasurementMessage::Measured { from: "a".into(), to: "b".into(), found });
            assert_eq!((measured.job(), Control::decode(&measured.encode().unwrap())), (None, Ok(measured)));
        }
        assert_eq!(Control::decode(&message.encode().unwrap()), Ok(message));
        assert!(Control::decode(b"{\"Job\":{\"Open\":{}}}").is_err());
    }

    #[test]
    fn a_roster_that_nobody_could_have_made_is_refused() {
        let message = |node: &str, ranks: u32| {
            let secret = "05".repeat(32);
            let roster = format!(
                r#"{{"sites":[{{"name":"a","nodes":[{{"name":"{node}","ranks":{ranks}}},{{"name":"m","ranks":1}}]}}]}}"#
            );
            format!(
                r#"{{"Job":{{"Open":{{"job":9,"secret":"{secret}","roster":{roster},"home":"a","part":"Lead"}}}}}}"#
            )
        };
        assert!(Control::decode(message("n", 3).as_bytes()).is_ok());
        for (node, ranks) in [("n", u32::MAX), ("n;x", 3)] {
            let error = Control::decode(message(node, ranks).as_bytes()).unwrap_err().to_string();
            assert!(error.contains("ranks") || error.contains("n;x"), "{error}");
        }
    }
}
