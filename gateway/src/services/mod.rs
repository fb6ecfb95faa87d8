//! What a gateway does besides relaying: nodes and agents, sites that join, what it shows of itself.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::sync::Notify;
use types::sites::{Fabric, Memory, Node};

use crate::config::GatewayConfig;
use crate::services::agents::Agents;
use crate::services::join::{Doorkeeper, Tickets};
use crate::services::load::Load;
use crate::services::nodes::Nodes;
use crate::services::starter::AgentStarter;

pub(crate) mod agents;
pub(crate) mod join;
pub(crate) mod load;
pub(crate) mod metrics;
pub(crate) mod nodes;
pub(crate) mod observe;
pub(crate) mod page;
pub(crate) mod standing;
pub(crate) mod starter;

/// What they keep.
pub(crate) struct Services {
    pub starter: Arc<dyn AgentStarter>,
    pub agents: Agents,
    /// What the batch system gave or is asked for.
    pub nodes: Nodes,
    /// An agent or an allocation ended.
    pub gone: Notify,
    pub tickets: RefCell<Tickets>,
    pub doorkeeper: Option<Arc<dyn Doorkeeper>>,
    /// What the sites file says that agents are started with.
    pub entries: Vec<Node>,
    pub shared_memory: Memory,
    pub fabric: Option<Fabric>,
    pub inside: String,
    /// How slow this machine is for the gateway.
    pub load: Load,
}

impl Services {
    pub(crate) fn new(config: &GatewayConfig, starter: Arc<dyn AgentStarter>) -> Services {
        let site = config.own_site();
        Services {
            starter,
            agents: Agents::default(),
            nodes: Nodes::default(),
            gone: Notify::new(),
            tickets: RefCell::default(),
            doorkeeper: config.doorkeeper.clone(),
            entries: site.nodes.clone(),
            shared_memory: site.memory.clone(),
            fabric: site.fabric.clone(),
            inside: config.own().inside.clone(),
            load: Load::default(),
        }
    }
}
