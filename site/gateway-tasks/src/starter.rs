//! The interface through which a gateway starts agents: the program that runs the gateway passes in an
//! [`AgentStarter`].

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use types::sites::{Fabric, Forward, Inside, Keys, Memory};
use types::{JobId, NodeId, SiteId};
use wire::Secret;
use wire::control::{AllocatedNode, NodeAsk};

/// Everything that a node's agent needs to join its job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentOrder {
    pub job: JobId,
    /// The secret that the agent proves to the gateway, and passes to its ranks.
    pub secret: Secret,
    /// Index of the launcher's site in the job's roster: the agent reports to the launcher there.
    pub home: SiteId,
    /// This site's index in the job's roster.
    pub site_id: SiteId,
    /// This site's name.
    pub site: String,
    /// The node's index among the site's nodes in the roster.
    pub node_id: NodeId,
    /// The node's name in the sites file.
    pub node: String,
    /// The IP address its ranks listen on, if the sites file has one.
    pub node_address: Option<IpAddr>,
    /// The site's own network, if the sites file names one.
    pub fabric: Option<Fabric>,
    /// TLS or not, for its ranks' connections to each other and to the gateways.
    pub inside: Inside,
    /// All gateways of the site, the one that leads the job first.
    pub gateways: Vec<GatewayAddress>,
    /// The site's keys: agents connect only to gateways that hold one of them.
    pub keys: Keys,
    /// The batch job that the node belongs to, if the starter allocated it: `12`, or `12+1` for component 1 of Slurm's
    /// heterogeneous job 12.
    pub allocation: Option<String>,
    /// Shared-memory setting of the site's ranks.
    pub memory: Memory,
    /// The ports that this agent connects to for `landbridge forward`. `None`: it runs ranks.
    pub forward: Option<Forward>,
    /// Its ranks are only movers of `landbridge stage`, in the agent's own environment.
    #[serde(default)]
    pub only_movers: bool,
}

/// The address at which a node dials a gateway of its site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayAddress {
    /// The gateway's name.
    pub name: String,
    /// `host:port`.
    pub address: String,
}

/// Nodes that a job needs from a batch system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationOrder {
    pub job: JobId,
    /// The requested nodes.
    pub ask: NodeAsk,
}

/// A change in the state of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationNews {
    /// It is queued; contains the reason, for the user.
    Waiting(String),
    /// It was granted.
    Granted {
        /// Its number or name in the batch system.
        id: String,
        nodes: Vec<AllocatedNode>,
    },
    /// It was refused, or has ended; contains the reason, for the user. This is the last news.
    Ended(String),
}

/// The reason why an agent could not be started; shown to the user after the names of site and node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct StartError(pub String);

/// Starts agents on the nodes of one site.
///
/// The gateway calls it on its only thread, inside its tokio runtime. The starter ensures that an agent does not
/// outlive the gateway, even when the gateway is killed.
pub trait AgentStarter: std::fmt::Debug + Send + Sync {
    /// Starts the agent of one node. Returns at once; a later failure shows as the handle's exit.
    ///
    /// # Errors
    /// The reason why it could not be started.
    fn start(&self, order: AgentOrder) -> Result<Box<dyn AgentHandle>, StartError>;

    /// Asks for nodes, if a site's nodes come from a batch system. Returns at once. After
    /// [`AllocationHandle::release`], the allocation is removed. If the gateway is killed, or ends without having
    /// dropped the handle, the allocation ends with the last agent that runs in it.
    ///
    /// # Errors
    /// The reason why the request cannot even be made.
    fn allocate(&self, order: AllocationOrder) -> Result<Box<dyn AllocationHandle>, StartError> {
        let AllocationOrder { .. } = order;
        Err(StartError("its nodes are listed in the sites file, so there is nothing to allocate".into()))
    }
}

/// Requested nodes.
pub trait AllocationHandle {
    /// Waits for the next news of the allocation. Cancel-safe, and may be called again.
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>>;

    /// Gives the allocation back, whether queued or granted. Returns at once; [`AllocationNews::Ended`] follows soon.
    fn release(&mut self);
}

/// A started agent.
pub trait AgentHandle {
    /// Waits until the agent and its processes are gone; returns the reason for the agent's end (`exit status 1` or
    /// `killed by signal 9`, with the last lines of its standard error if there are any). Cancel-safe, and may be
    /// called again.
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>>;

    /// Kills the agent and its processes. Returns at once; [`AgentHandle::wait`] then ends soon.
    fn kill(&mut self);

    /// Ends the local program that connects to the agent, such as ssh, without an order to the agent: if the agent
    /// still runs and is connected to other gateways, it goes on. Returns at once; [`AgentHandle::wait`] then ends
    /// soon.
    fn let_go(&mut self);
}
