//! The agent's part in fences; see [`job::fence`].

use types::Identity;

use super::Agent;
use super::error::AgentError;
use job::fence::{Fence, FenceError, MAX_DATA};
use job::group::{Group, first_agent};
use job::message::{Down, Entry, Up};

impl Agent {
    /// All ranks of this node that belong to the fence's group have entered it.
    pub(super) fn fence(&mut self, fence: Fence, data: Vec<u8>) -> Result<(), AgentError> {
        if data.len() > MAX_DATA {
            return self.fence_failed(FenceError::TooLong { length: data.len() });
        }
        let here = self.order.site_id;
        if self.stays_here(&fence) && self.fence_agents(&fence.group) == [self.me] {
            return self.fence_out(&fence, data, 0);
        }
        match first_agent(here) {
            first if first == self.me => self.fence_below(self.me, fence, &data),
            first => self.membership.send(first, &Up::FenceIn { fence, data }),
        }
    }

    /// All ranks of a node of this site that belong to the fence's group have entered it. The node may be this one.
    pub(super) fn fence_below(&mut self, from: Identity, fence: Fence, data: &[u8]) -> Result<(), AgentError> {
        let here = self.order.site_id;
        if self.me != first_agent(here) || from.site != here {
            return Err(AgentError::Message { from, problem: "fences go to the first agent of their site" });
        }
        let agents = self.fence_agents(&fence.group);
        let size = self.prepared.as_ref().map_or(0, |prepared| prepared.roster.size());
        let arrived = match fence.group.is_valid(size) {
            true => self.fences.arrived(&fence, &from, data, agents),
            false => Err(FenceError::Group),
        };
        match arrived {
            Ok(None) => Ok(()),
            Ok(Some(data)) if self.stays_here(&fence) => self.fence_out(&fence, data, 0),
            Ok(Some(data)) => self.report(&Up::FenceIn { fence, data }),
            Err(problem) => self.fence_failed(problem),
        }
    }

    /// The whole group has entered the fence: passes the data to the agents that take part.
    pub(super) fn fence_out(&mut self, fence: &Fence, data: Vec<u8>, number: u32) -> Result<(), AgentError> {
        let agents = self.fence_agents(&fence.group);
        if self.me == first_agent(self.order.site_id) {
            for agent in agents.iter().filter(|agent| **agent != self.me) {
                self.membership.send(*agent, &Down::FenceOut { fence: fence.clone(), data: data.clone(), number })?;
            }
        }
        if !agents.contains(&self.me) {
            return Ok(());
        }
        if let Some(pmix) = self.pmix.as_mut() {
            pmix.fence_out(fence, data, number);
            return Ok(());
        }
        let problem = "unreadable entries of a barrier";
        let entries = read_entries(&data).ok_or(AgentError::Message { from: self.me, problem })?;
        let events = self.pmi.as_mut().map(|server| server.barrier_out(entries)).unwrap_or_default();
        self.pmi_events(events)
    }

    /// True if the fence needs neither another site nor the launcher.
    fn stays_here(&self, fence: &Fence) -> bool {
        let sites = self.prepared.as_ref().map(|prepared| fence.group.sites(&prepared.roster));
        fence.name.is_empty() && sites.is_some_and(|sites| sites == [self.order.site_id])
    }

    /// The agents of this site that take part.
    fn fence_agents(&self, group: &Group) -> Vec<Identity> {
        let here = self.order.site_id;
        self.prepared.as_ref().map(|prepared| group.agents(&prepared.roster, here)).unwrap_or_default()
    }

    fn fence_failed(&mut self, problem: FenceError) -> Result<(), AgentError> {
        self.report(&Up::Failed { rank: None, reason: problem.to_string() })
    }
}

/// Encodes PMI-1's entries as the data of a fence.
pub(super) fn write_entries(entries: &[Entry]) -> Vec<u8> {
    postcard::to_stdvec(entries).unwrap_or_default()
}

/// Decodes the entries of all nodes: one list after the other.
fn read_entries(mut data: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    while !data.is_empty() {
        let (some, rest) = postcard::take_from_bytes::<Vec<Entry>>(data).ok()?;
        entries.extend(some);
        data = rest;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_several_nodes_are_read_together() {
        let entry = |key: &str| (key.to_owned(), "v w".to_owned());
        let data =
            [write_entries(&[entry("a"), entry("b")]), write_entries(&[]), write_entries(&[entry("c")])].concat();
        assert_eq!(read_entries(&data), Some(vec![entry("a"), entry("b"), entry("c")]));
        assert_eq!(read_entries(b""), Some(vec![]));
        assert_eq!(read_entries(&[200, 1, 2]), None);
    }
}
