//! Asks batch systems for nodes before a job starts.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use types::roster::FORWARDER;
use types::sites::{LEAST_SHARE, Site};
use types::{Roster, SitesFile};
use wire::Control;
use wire::control::{AllocatedNode, AllocationMessage, HeldAllocation, JobMessage, NodeAsk};

use super::early::Early;
use super::observer::Teller;
use super::outcome::Failure;
use super::session::{Connection, SessionError};
use crate::spread::{Wish, counts, spread};
use starters::held::as_nodes;

/// Time after a site's limit in which its own message about the limit may still arrive.
pub const REPLY_GRACE: Duration = Duration::from_secs(10);

/// A request for nodes of one site.
pub(super) struct Ask {
    site: String,
    ask: NodeAsk,
}

/// The requests for nodes that this wish needs. `held`: the batch job at the user's own site `home`; `file` already
/// contains its nodes.
pub(super) fn asks(
    file: &SitesFile,
    home: &str,
    wish: &Wish,
    wait: Duration,
    held: Option<&HeldAllocation>,
) -> Result<Vec<Ask>, Failure> {
    let counts = counts(file, wish).map_err(|e| Failure::new(e.to_string()))?;
    check_memory(file, home, &counts)?;
    let others = |than: &str| {
        let others = file.sites.iter().zip(&counts).filter(|(site, _)| site.name != than);
        u32::try_from(others.map(|(_, ranks)| u64::from(*ranks)).sum::<u64>()).unwrap_or(u32::MAX)
    };
    let wait_s = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
    let beside = |site: &Site| !site.nodes.is_empty() && site.nodes.iter().all(|node| node.name == FORWARDER);
    let asked = |site: &Site| site.starter.allocates() && !beside(site);
    let sites = file.sites.iter().zip(&counts).filter(|(site, ranks)| **ranks > 0 && asked(site));
    Ok(sites
        .map(|(site, &ranks)| {
            let held = held.filter(|_| site.name == home).cloned().or_else(|| named(site));
            let ask = NodeAsk {
                ranks,
                per_node: wish.ranks_per_node,
                elsewhere: others(&site.name),
                beyond_home: others(home),
                wait_s,
                held,
            };
            Ask { site: site.name.clone(), ask }
        })
        .collect())
}

/// The nodes that the user has named at a site with a node service (see [`crate::hosts`]).
fn named(site: &Site) -> Option<HeldAllocation> {
    site.starter.node_service()?;
    let nodes = site.nodes.iter().filter(|node| node.name != FORWARDER);
    let nodes = nodes.map(|node| AllocatedNode::new(&node.name, node.slots.unwrap_or(1)));
    let nodes: Vec<AllocatedNode> = nodes.collect();
    (!nodes.is_empty()).then(|| HeldAllocation { id: HeldAllocation::NODE_SERVICE.to_owned(), nodes })
}

/// Refuses a job that does not fit into some gateway's memory, even if it is the only job there. Called before any site
/// queues or starts anything.
pub(super) fn check_memory(file: &SitesFile, home: &str, counts: &[u32]) -> Result<(), Failure> {
    let total: u64 = counts.iter().map(|ranks| u64::from(*ranks)).sum();
    for (site, ranks) in file.sites.iter().zip(counts).filter(|(site, ranks)| **ranks > 0 || site.name == home) {
        let elsewhere = total - u64::from(*ranks);
        let needed = 2 * LEAST_SHARE * elsewhere;
        if let Some(gateway) = site.gateways.iter().find(|gateway| gateway.memory < needed) {
            let (has, least) = (gateway.memory >> 20, needed.div_ceil(1 << 20));
            return Err(Failure::at_site(
                &site.name,
                format!(
                    "gateway {} has {has} MiB of memory, too little for {elsewhere} ranks at other sites: set \
                     `memory = \"{least}MiB\"` or more for it in the sites file and restart it, or ask for fewer ranks",
                    gateway.name
                ),
            ));
        }
    }
    Ok(())
}

/// Sends the requests and waits until every site has granted its nodes. Returns the roster with these nodes.
///
/// If the future is dropped early, the nodes are given back when the connection closes.
pub(super) async fn allocate(
    connection: &mut Connection,
    asks: Vec<Ask>,
    file: &SitesFile,
    home: &str,
    wish: &Wish,
    teller: &Teller,
) -> Result<Roster, Failure> {
    // The requests have fixed the number of ranks at each site.
    let counts = counts(file, wish).map_err(|e| Failure::new(e.to_string()))?;
    let per_site = file.sites.iter().zip(counts).filter(|(_, ranks)| *ranks > 0);
    let per_site = per_site.map(|(site, ranks)| (site.name.clone(), ranks)).collect();
    let settled = Wish { ranks: None, ranks_per_node: wish.ranks_per_node, fill: wish.fill, per_site };
    let longest = asks.iter().map(|ask| ask.ask.wait_s).max().unwrap_or(0);
    let mut waiting: Vec<(String, String)> =
        asks.iter().map(|ask| (ask.site.clone(), "asked for nodes".to_owned())).collect();
    for Ask { site, ask } in asks {
        connection.ask(&site, ask).await.map_err(|e| failure(home, &e))?;
    }
    let mut file = file.clone();
    let mut early = Early::new();
    let deadline = Instant::now() + Duration::from_secs(longest.into()) + REPLY_GRACE;
    while let Some((first, _)) = waiting.first() {
        teller.progress(Some(format!("waiting for nodes: {}", states(&waiting))));
        let control = tokio::select! {
            control = connection.next() => control.map_err(|e| failure(home, &e))?,
            () = sleep_until(early.next().unwrap_or(deadline)), if early.next().is_some() => {
                early.remind(&names(&waiting), Instant::now()).into_iter().for_each(|text| teller.note(text));
                continue;
            }
            () = sleep_until(deadline) => {
                return Err(Failure::at_site(first, "did not answer about nodes in time: look at its gateway's log"));
            }
        };
        match control {
            Control::Allocation(AllocationMessage::Waiting { site, state, .. }) => {
                teller.note(format!("site {site}: {state}"));
                waiting.iter_mut().filter(|(name, _)| *name == site).for_each(|(_, now)| now.clone_from(&state));
            }
            Control::Allocation(AllocationMessage::Granted { site, nodes, .. }) => {
                waiting.retain(|(name, _)| *name != site);
                let told = early.granted(&site, nodes.len(), &names(&waiting), Instant::now());
                told.into_iter().for_each(|text| teller.note(text));
                take(&mut file, &site, &nodes);
            }
            Control::Job(JobMessage::Refused { site, reason, .. } | JobMessage::SiteLost { site, reason, .. }) => {
                return Err(Failure::at_site(&site, reason));
            }
            _ => {}
        }
    }
    spread(&file, home, &settled).map_err(|e| Failure::new(e.to_string()))
}

fn take(file: &mut SitesFile, site: &str, nodes: &[AllocatedNode]) {
    // For a batch job of the user, the file already has the nodes that take part.
    for entry in file.sites.iter_mut().filter(|entry| entry.name == site && entry.nodes.is_empty()) {
        entry.nodes = as_nodes(nodes);
    }
}

fn names(waiting: &[(String, String)]) -> Vec<&str> {
    waiting.iter().map(|(site, _)| site.as_str()).collect()
}

fn states(waiting: &[(String, String)]) -> String {
    waiting.iter().map(|(site, state)| format!("site {site}: {state}")).collect::<Vec<_>>().join("; ")
}

fn failure(home: &str, error: &SessionError) -> Failure {
    Failure::at_site(home, super::without_site(home, error))
}
