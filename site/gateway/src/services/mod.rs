//! Services of a gateway besides relaying: agents and nodes of jobs, sites that join, the sites file.

use std::rc::Rc;
use std::sync::Arc;

use gateway_tasks::AgentStarter;
use tokio::sync::Notify;

use crate::config::GatewayConfig;
use crate::services::agents::Agents;
use crate::services::join::Joining;
use crate::services::nodes::Nodes;
use crate::trunks::Trunks;

pub(crate) mod agents;
pub(crate) mod join;
pub(crate) mod nodes;
pub(crate) mod standing;

/// State of the services.
pub(crate) struct Services {
    pub agents: Rc<Agents>,
    /// Allocations that the batch system has granted or was asked for.
    pub nodes: Rc<Nodes>,
    pub joining: Joining,
    /// Notified when an agent or an allocation ended.
    pub gone: Rc<Notify>,
}

impl Services {
    /// `starter` starts agents on the site's nodes.
    pub(crate) fn new(config: &GatewayConfig, starter: &Arc<dyn AgentStarter>, trunks: &Rc<Trunks>) -> Services {
        let gone = Rc::new(Notify::new());
        let (path, sites) = (trunks.path.clone(), trunks.sites.clone());
        Services {
            agents: Rc::new(Agents::new(config, starter.clone(), path, sites, gone.clone())),
            nodes: Rc::new(Nodes::new(starter.clone(), trunks.list.clone(), gone.clone())),
            joining: Joining::new(config.doorkeeper.clone(), trunks.clone()),
            gone,
        }
    }
}
