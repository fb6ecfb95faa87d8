//! Checks that work without a gateway of the own site: dialling other sites' gateways from this machine, and starting
//! agents on the own site's nodes with the starter that its gateway would use.

use std::io;
use std::time::Duration;

use client::dial;
use gateway_tasks::{AgentHandle, AgentOrder, AgentStarter, AllocationNews, AllocationOrder};
use tokio::time::{Instant, timeout, timeout_at};
use types::sites::{Gateway, Node, Site};
use types::{JobId, NodeId, SiteId};
use wire::Secret;
use wire::control::NodeAsk;

use super::batch::{all, nodes_advice};
use super::{AGENTS, CheckError, Finding};
use launcher::Sites;
use starters::starter;

/// Time limit for a connection.
const DIAL: Duration = Duration::from_secs(2);

/// Runs all these checks at once.
pub(super) async fn check(sites: &Sites, own: &Site) -> Vec<Finding> {
    let others = sites.file.sites.iter().filter(|site| site.name != own.name);
    let gateways = others.flat_map(|site| site.gateways.iter().map(move |gateway| (site, gateway)));
    let dialled = all(gateways.map(|(site, gateway)| dial(site, gateway)));
    let nodes = async {
        let starter = starter(&own.starter, &sites.folder);
        match own.starter.allocates() {
            true => vec![Finding::new(&own.name, "nodes", would_give(starter.as_ref(), &own.name).await)],
            false => start_all(starter.as_ref(), own).await,
        }
    };
    let (dialled, nodes) = tokio::join!(dialled, nodes);
    dialled.into_iter().flatten().chain(nodes).collect()
}

/// Connects to another site's gateway, if this machine can dial it. Without a route, as on a node of a private network,
/// there is no finding: only a check from the own gateway's machine would be conclusive.
async fn dial(site: &Site, gateway: &Gateway) -> Option<Finding> {
    let address = gateway.advertise.as_ref().filter(|_| gateway.ssh.is_none())?;
    let connected = timeout(DIAL, dial::dial(address)).await;
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", DIAL.as_secs()));
    let result = match connected.unwrap_or_else(|_| Err(late())) {
        Ok(_) => Ok(format!("{address} accepts connections from this machine")),
        Err(source) if source.kind() == io::ErrorKind::NetworkUnreachable => return None,
        Err(source) => {
            let port = address.rsplit_once(':').map_or("", |(_, port)| port).to_owned();
            Err(CheckError::Undialled { address: address.clone(), port, source })
        }
    };
    Some(Finding::new(&site.name, format!("gateway {}", gateway.name), result))
}

/// Asks the batch system of this machine whether it would grant nodes. Makes no job.
async fn would_give(starter: &dyn AgentStarter, site: &str) -> Result<String, CheckError> {
    let ask =
        NodeAsk { ranks: 0, per_node: None, wait_s: AGENTS.as_secs() as u32, held: None, elsewhere: 0, beyond_home: 0 };
    let order = AllocationOrder { job: JobId(std::process::id().max(1)), ask };
    let mut asked = starter.allocate(order).map_err(|error| CheckError::Reported(error.to_string()))?;
    let mut state = String::new();
    let answer = async {
        loop {
            match asked.news().await {
                AllocationNews::Waiting(text) => state = text,
                AllocationNews::Granted { .. } => return Ok(()),
                AllocationNews::Ended(reason) => {
                    let advice = nodes_advice(site, &reason);
                    return Err(CheckError::Reported(format!("{reason}{advice}")));
                }
            }
        }
    };
    let answer = timeout(2 * AGENTS, answer).await;
    asked.release();
    let end = async { while !matches!(asked.news().await, AllocationNews::Ended(_)) {} };
    // A job that is not given back by then ends with this process.
    let _ = timeout(Duration::from_secs(2), end).await;
    let (what, log, seconds) = ("no answer from the batch system", "its own log", 2 * AGENTS.as_secs());
    answer.unwrap_or(Err(CheckError::Silent { what, seconds, log })).map(|()| state)
}

/// Starts an agent on every node. The agent ends at once, because its order names no gateway.
async fn start_all(starter: &dyn AgentStarter, own: &Site) -> Vec<Finding> {
    let end = Instant::now() + AGENTS;
    let started = own.nodes.iter().enumerate().map(|(index, node)| async move {
        let result = match starter.start(order(own, index, node)) {
            Ok(mut agent) => ended(agent.as_mut(), end).await,
            Err(error) => Err(CheckError::NotStarted(error.to_string())),
        };
        Finding::new(&own.name, format!("node {}", node.name), result)
    });
    all(started).await
}

async fn ended(agent: &mut dyn AgentHandle, end: Instant) -> Result<String, CheckError> {
    let Ok(how) = timeout_at(end, agent.wait()).await else {
        agent.kill();
        let _ = timeout(Duration::from_secs(4), agent.wait()).await;
        let (what, log) = ("its agent did not answer", "the node");
        return Err(CheckError::Silent { what, seconds: AGENTS.as_secs(), log });
    };
    match how == "exit status 0" {
        true => Ok("an agent starts there and finds the provider".to_owned()),
        false => Err(CheckError::NotStarted(how)),
    }
}

fn order(own: &Site, index: usize, node: &Node) -> AgentOrder {
    AgentOrder {
        job: JobId(std::process::id().max(1)),
        secret: Secret::new([0; 32]),
        home: SiteId(0),
        site_id: SiteId(0),
        site: own.name.clone(),
        node_id: NodeId(index as u32),
        node: node.name.clone(),
        node_address: None,
        fabric: None,
        inside: own.inside,
        gateways: Vec::new(),
        keys: own.keys(),
        allocation: None,
        memory: own.memory.clone(),
        forward: None,
        only_movers: false,
    }
}
