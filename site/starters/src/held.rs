//! The batch job in which `run` was started, if any. The user already has its nodes.

use std::error::Error;

use thiserror::Error;
use types::SitesFile;
use types::sites::{Node, Site};
use wire::control::{AllocatedNode, HeldAllocation};

use crate::batch_system;

/// A batch job whose environment is not usable.
#[derive(Debug, Error)]
#[error("site {site}: this is batch job {id}, but {problem}")]
pub struct HeldError {
    site: String,
    id: String,
    problem: Box<dyn Error + Send + Sync>,
}

/// A variable of this process; `None` if it is not set or empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The batch job around this process, if it belongs to the site's batch system.
///
/// # Errors
/// There is such a job, but its nodes cannot be determined.
pub async fn find(site: &Site) -> Result<Option<HeldAllocation>, HeldError> {
    let Some(system) = batch_system(&site.starter) else { return Ok(None) };
    let Some(id) = system.job(&variable) else { return Ok(None) };
    match system.nodes(&variable).await {
        Ok(nodes) => Ok(Some(HeldAllocation { id, nodes })),
        Err(problem) => Err(HeldError { site: site.name.clone(), id, problem }),
    }
}

/// The number of the batch job around this process whose nodes Landbridge reaches over ssh: the end of such a job ends
/// no process that has left its session.
pub fn found_over_ssh(site: &Site) -> Option<String> {
    batch_system(&site.starter).filter(|_| !site.starter.makes_jobs())?.job(&variable)
}

/// Makes the nodes of the user's batch job the nodes of its site.
pub fn fill(file: &mut SitesFile, site: &str, held: &HeldAllocation) {
    for entry in file.sites.iter_mut().filter(|entry| entry.name == site) {
        entry.nodes = as_nodes(&held.nodes);
    }
}

/// Converts nodes of a batch job into nodes of a site.
pub fn as_nodes(nodes: &[AllocatedNode]) -> Vec<Node> {
    nodes.iter().map(|node| Node { name: node.name.clone(), address: None, slots: Some(node.slots) }).collect()
}
