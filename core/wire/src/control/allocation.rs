//! Nodes of a batch system for a job that will be opened next. Refusals, the return of nodes and its confirmation are
//! messages of the job: [`Refused`](super::JobMessage::Refused), [`Close`](super::JobMessage::Close) and
//! [`Closed`](super::JobMessage::Closed).

use serde::{Deserialize, Serialize};
use types::JobId;

/// Between a launcher and the gateways of the sites from which it requests nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocationMessage {
    /// Launcher → its gateway → the site's gateway: find nodes for this job, before it is opened.
    Ask {
        job: JobId,
        /// The site whose nodes are requested.
        site: String,
        /// The site of the launcher.
        home: String,
        /// The request.
        ask: NodeAsk,
    },
    /// A site's progress in finding nodes; sent again whenever it changes. To the launcher.
    Waiting {
        job: JobId,
        site: String,
        /// For the user, such as `Slurm job 12 waits (Priority)`.
        state: String,
    },
    /// A site has nodes for a job, and keeps them until the job is closed. To the launcher.
    Granted {
        job: JobId,
        site: String,
        /// The nodes, in the order of ranks.
        nodes: Vec<AllocatedNode>,
    },
}

/// Nodes that a job needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAsk {
    /// Number of ranks. 0: only report whether nodes would be available, as [`AllocationMessage::Waiting`], and grant
    /// none.
    pub ranks: u32,
    /// Number of ranks per node. `None`: the batch system decides.
    pub per_node: Option<u32>,
    /// Number of the job's ranks at sites other than the requested one, whose gateway holds their frames.
    pub elsewhere: u32,
    /// Number of the job's ranks at sites other than the launcher's.
    pub beyond_home: u32,
    /// Time limit for finding them, in seconds.
    pub wait_s: u32,
    /// The user's own batch job: its nodes are used, and it is left running afterwards. Or nodes without a batch job
    /// ([`HeldAllocation::NODE_SERVICE`]).
    pub held: Option<HeldAllocation>,
}

/// A batch job that belongs to the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAllocation {
    /// Its number or name in the batch system.
    pub id: String,
    pub nodes: Vec<AllocatedNode>,
}

impl HeldAllocation {
    /// The id of nodes without a batch job: the site's node service starts movers there.
    pub const NODE_SERVICE: &str = "node-service";
}

/// A node of a batch job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedNode {
    /// Its name in the batch system.
    pub name: String,
    /// Most ranks it may run.
    pub slots: u32,
    /// The node's component, if the batch job is a heterogeneous job of Slurm's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<u32>,
}

impl AllocatedNode {
    /// A node of a batch job without components.
    pub fn new(name: impl Into<String>, slots: u32) -> AllocatedNode {
        AllocatedNode { name: name.into(), slots, component: None }
    }

    /// The batch job to name when starting a program on this node, in Slurm's notation: `12`, or `12+1` for component 1
    /// of job 12.
    pub fn job(&self, id: &str) -> String {
        self.component.map_or_else(|| id.to_owned(), |component| format!("{id}+{component}"))
    }
}

impl AllocationMessage {
    /// The message's job.
    pub fn job(&self) -> JobId {
        match self {
            AllocationMessage::Ask { job, .. }
            | AllocationMessage::Waiting { job, .. }
            | AllocationMessage::Granted { job, .. } => *job,
        }
    }
}
