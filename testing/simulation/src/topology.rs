use crate::error::{SimulationError, check};
use crate::time::Time;

/// A node: a router, or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One direction of a cable. The two directions of a cable differ in the lowest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl LinkId {
    /// The other direction of the same cable.
    #[must_use]
    pub fn reverse(self) -> LinkId {
        LinkId(self.0 ^ 1)
    }
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// A router of a transit domain.
    Transit,
    /// A router of a stub domain.
    Stub,
    /// A host: begins and ends flows, relays no packets of other nodes.
    Host,
}

/// A cable between two nodes, with the same properties in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cable {
    /// Bytes per second.
    pub rate: f64,
    /// Propagation, one way.
    pub delay: Time,
    /// Bytes that may wait at each end; a packet that finds no room is dropped (drop-tail).
    pub queue_bytes: u32,
    /// Probability that a packet is lost on the wire.
    pub loss: f64,
}

impl Cable {
    /// 50 packets of 1,500 bytes, the limit of a queue in ns-2.
    pub const QUEUE_BYTES: u32 = 75_000;

    /// A cable without loss and with [`Cable::QUEUE_BYTES`] of queue; rate in bytes per second, delay in seconds.
    #[must_use]
    pub fn new(rate: f64, delay_seconds: f64) -> Cable {
        Cable { rate, delay: Time::from_seconds(delay_seconds), queue_bytes: Cable::QUEUE_BYTES, loss: 0.0 }
    }
}

/// One direction of a cable in a [`Topology`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedLink {
    /// The node at which packets enter.
    pub from: NodeId,
    /// The node at which packets come out.
    pub to: NodeId,
    /// The cable.
    pub cable: Cable,
}

/// Nodes and the cables between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    roles: Vec<NodeRole>,
    links: Vec<SimulatedLink>,
    leaving: Vec<Vec<LinkId>>,
}

impl Topology {
    /// A topology without nodes.
    #[must_use]
    pub fn new() -> Topology {
        Topology::default()
    }

    /// Adds a node.
    pub fn add(&mut self, role: NodeRole) -> NodeId {
        self.roles.push(role);
        self.leaving.push(Vec::new());
        NodeId(self.roles.len() as u32 - 1)
    }

    /// Adds a cable between two nodes. Returns its direction from the first to the second.
    ///
    /// # Errors
    /// [`SimulationError::Parameter`] for a rate that is not positive and finite, or a loss that is not in [0, 1).
    pub fn join(&mut self, one: NodeId, other: NodeId, cable: Cable) -> Result<LinkId, SimulationError> {
        check("rate", cable.rate, 1.0, 1e15, "bytes per second, from 1 to 1e15")?;
        check("loss", cable.loss, 0.0, 0.999, "a probability, from 0 to 0.999")?;
        for node in [one, other] {
            let last = self.roles.len() as f64 - 1.0;
            check("node", f64::from(node.0), 0.0, last, "a node of this topology")?;
        }
        let id = LinkId(self.links.len() as u32);
        for (link, from, to) in [(id, one, other), (id.reverse(), other, one)] {
            self.links.push(SimulatedLink { from, to, cable });
            self.leaving[from.0 as usize].push(link);
        }
        Ok(id)
    }

    /// Adds a host behind a router.
    ///
    /// # Errors
    /// See [`Topology::join`].
    pub fn attach(&mut self, router: NodeId, cable: Cable) -> Result<NodeId, SimulationError> {
        let host = self.add(NodeRole::Host);
        self.join(host, router, cable)?;
        Ok(host)
    }

    /// The number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.roles.len()
    }

    /// True if there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.roles.is_empty()
    }

    /// The role of a node.
    ///
    /// # Panics
    /// If the node belongs to another topology.
    #[must_use]
    pub fn role(&self, node: NodeId) -> NodeRole {
        self.roles[node.0 as usize]
    }

    /// All nodes of a role, ascending.
    pub fn of_role(&self, role: NodeRole) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.roles.len()).filter(move |&node| self.roles[node] == role).map(|node| NodeId(node as u32))
    }

    /// All links, indexed by [`LinkId`].
    #[must_use]
    pub fn links(&self) -> &[SimulatedLink] {
        &self.links
    }

    /// The links that leave a node.
    ///
    /// # Panics
    /// If the node belongs to another topology.
    #[must_use]
    pub fn leaving(&self, node: NodeId) -> &[LinkId] {
        &self.leaving[node.0 as usize]
    }
}
