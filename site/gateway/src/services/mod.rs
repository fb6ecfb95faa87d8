//! Services of a gateway besides relaying: nodes and agents, sites that join, couplings, status.

use std::cell::RefCell;
use std::sync::Arc;

use gateway_hooks::{AgentStarter, Doorkeeper};
use tokio::sync::Notify;

use crate::config::GatewayConfig;
use crate::services::agents::Agents;
use crate::services::couplings::Couplings;
use crate::services::join::Tickets;
use crate::services::load::Load;
use crate::services::nodes::Nodes;

pub(crate) mod agents;
pub(crate) mod couplings;
pub(crate) mod join;
pub(crate) mod load;
pub(crate) mod metrics;
pub(crate) mod nodes;
pub(crate) mod observe;
pub(crate) mod page;
pub(crate) mod standing;

/// State of the services.
pub(crate) struct Services {
    /// Starts agents on the site's nodes.
    pub starter: Arc<dyn AgentStarter>,
    /// Starts agents on the gateway's own machine, if agents may run there.
    pub beside: Option<Arc<dyn AgentStarter>>,
    pub agents: Agents,
    /// Allocations that the batch system has granted or was asked for.
    pub nodes: Nodes,
    /// Notified when an agent or an allocation ended.
    pub gone: Notify,
    pub tickets: RefCell<Tickets>,
    pub couplings: Couplings,
    pub doorkeeper: Option<Arc<dyn Doorkeeper>>,
    /// Slowness of this machine for the gateway.
    pub load: Load,
}

impl Services {
    pub(crate) fn new(config: &GatewayConfig, starter: Arc<dyn AgentStarter>) -> Services {
        Services {
            starter,
            beside: config.beside.clone(),
            agents: Agents::default(),
            nodes: Nodes::default(),
            gone: Notify::new(),
            tickets: RefCell::default(),
            couplings: Couplings::new(&config.own().name),
            doorkeeper: config.doorkeeper.clone(),
            load: Load::default(),
        }
    }
}
