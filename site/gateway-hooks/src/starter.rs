//! How a gateway starts agents without knowing how: the program that runs it passes in an [`AgentStarter`].

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use types::sites::{Fabric, Forward, Inside, Keys, Memory};
use types::{JobId, NodeId, SiteId};
use wire::Secret;
use wire::control::{AllocatedNode, NodeAsk};

/// Everything that a node's agent needs to know to join its job.
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
    /// Whether its ranks use TLS, to each other and to the gateways.
    pub inside: Inside,
    /// All gateways of the site, first the one that leads the job.
    pub gateways: Vec<GatewayAddress>,
    /// The site's keys: agents connect only to gateways that hold one of them.
    pub keys: Keys,
    /// The batch job that the node belongs to, if the starter allocated it: `12`, or `12+1` for component 1 of Slurm's
    /// heterogeneous job 12.
    pub allocation: Option<String>,
    /// Where the site's ranks share memory.
    pub memory: Memory,
    /// The ports that this agent connects to for `landbridge forward`. `None`: it runs ranks.
    pub forward: Option<Forward>,
    /// Its ranks are movers of `landbridge stage`, in the agent's own environment, and nothing else.
    #[serde(default)]
    pub only_movers: bool,
}

/// Where a node dials a gateway of its site.
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
    /// What it needs.
    pub ask: NodeAsk,
}

/// What happened to an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationNews {
    /// It is queued; the reason, for the user.
    Waiting(String),
    /// It was granted.
    Granted {
        /// Its number or name in the batch system.
        id: String,
        nodes: Vec<AllocatedNode>,
    },
    /// It was refused, or has ended; the reason, for the user. This is the last news.
    Ended(String),
}

/// Why an agent could not be started; shown to the user after the names of site and node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct StartError(pub String);

/// Starts agents on the nodes of one site.
///
/// The gateway calls it on its one thread, inside its tokio runtime. An agent must not outlive the gateway, even when
/// the gateway is killed: the starter ensures that.
pub trait AgentStarter: std::fmt::Debug + Send + Sync {
    /// Starts the agent of one node. Returns at once; a later failure shows as the handle's exit.
    ///
    /// # Errors
    /// Why it could not be started.
    fn start(&self, order: AgentOrder) -> Result<Box<dyn AgentHandle>, StartError>;

    /// Asks for nodes, where a site's nodes come from a batch system. Returns at once. Whatever it creates is gone
    /// after [`AllocationHandle::release`]. If the gateway is killed, or ends without having dropped the handle, it is
    /// gone with the last agent that runs in it.
    ///
    /// # Errors
    /// Why it cannot even be tried.
    fn allocate(&self, order: AllocationOrder) -> Result<Box<dyn AllocationHandle>, StartError> {
        let AllocationOrder { .. } = order;
        Err(StartError("its nodes are listed in the sites file, so there is nothing to allocate".into()))
    }
}

/// Requested nodes.
pub trait AllocationHandle {
    /// The next news of it. Cancel-safe, and may be called again.
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>>;

    /// Gives it back, whether it is queued or granted. Returns at once; [`AllocationNews::Ended`] follows soon.
    fn release(&mut self);
}

/// A started agent.
pub trait AgentHandle {
    /// Waits until the agent and what it started are gone; returns how it ended (`exit status 1`, `killed by signal 9`,
    /// with the last lines of its standard error if there are any). Cancel-safe, and may be called again.
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>>;

    /// Kills it and what it started. Returns at once; [`AgentHandle::wait`] then ends soon.
    fn kill(&mut self);

    /// Ends what leads from here to the agent, such as ssh, without an order to the agent: if it still runs and is
    /// connected to other gateways, it goes on. Returns at once; [`AgentHandle::wait`] then ends soon.
    fn let_go(&mut self);
}
