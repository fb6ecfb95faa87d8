use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::SimulationError;
use crate::time::Time;
use crate::topology::{LinkId, NodeId, NodeRole, Topology};

/// The shortest paths from one node, by propagation delay (Dijkstra, O(E log N)). Among equal paths the one through the
/// lower node wins. Hosts do not relay, so no path leads through a host.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    from: NodeId,
    /// The last link of the path to each node.
    last: Vec<Option<LinkId>>,
}

impl Routes {
    pub(crate) fn from(topology: &Topology, from: NodeId) -> Routes {
        let mut distance = vec![Time::NEVER; topology.len()];
        let mut last = vec![None; topology.len()];
        let mut waiting = BinaryHeap::from([Reverse((Time::ZERO, from))]);
        distance[from.0 as usize] = Time::ZERO;
        while let Some(Reverse((here, node))) = waiting.pop() {
            let is_end = node != from && topology.role(node) == NodeRole::Host;
            if here > distance[node.0 as usize] || is_end {
                continue;
            }
            for &id in topology.leaving(node) {
                let link = &topology.links()[id.0 as usize];
                let there = here + link.cable.delay;
                let known = &mut distance[link.to.0 as usize];
                if there < *known {
                    *known = there;
                    last[link.to.0 as usize] = Some(id);
                    waiting.push(Reverse((there, link.to)));
                }
            }
        }
        Routes { from, last }
    }

    /// The links from the source to a node, in order.
    pub(crate) fn path(&self, topology: &Topology, to: NodeId) -> Result<Vec<LinkId>, SimulationError> {
        let mut path = Vec::new();
        let mut node = to;
        while node != self.from {
            let Some(link) = self.last[node.0 as usize] else {
                return Err(SimulationError::Unreachable { from: self.from.0, to: to.0 });
            };
            path.push(link);
            node = topology.links()[link.0 as usize].from;
        }
        path.reverse();
        Ok(path)
    }
}
