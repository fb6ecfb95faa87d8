//! The interface to batch systems. Each is a folder beside this file; [`crate::batch_system`] knows them all.

use std::error::Error;
use std::pin::Pin;

use wire::control::AllocatedNode;

/// Reads a variable of the environment; `None` if it is not set or empty.
pub(crate) type Variables<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// The nodes of a job, or the problem of its environment.
pub(crate) type JobNodes<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<AllocatedNode>, Box<dyn Error + Send + Sync>>> + 'a>>;

/// A batch system, as the script of one of its jobs sees it.
pub(crate) trait BatchSystem {
    /// The number of the job around this process, if there is one.
    fn job(&self, variables: Variables<'_>) -> Option<String>;

    /// The nodes of the job around this process.
    fn nodes<'a>(&'a self, variables: Variables<'a>) -> JobNodes<'a>;
}

/// Nodes in the order of their first mention, each with the sum of its slots.
pub(crate) fn sum_of_slots<'a>(mentions: impl Iterator<Item = (&'a str, u32)>) -> Vec<AllocatedNode> {
    let mut nodes: Vec<AllocatedNode> = Vec::new();
    for (name, slots) in mentions {
        match nodes.iter_mut().find(|node| node.name == name) {
            Some(node) => node.slots = node.slots.saturating_add(slots),
            None => nodes.push(AllocatedNode::new(name, slots)),
        }
    }
    nodes
}
