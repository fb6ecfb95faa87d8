//! The order that a starter gives to an agent: one line of JSON on its standard input, which then stays open.
//!
//! It goes through standard input because it contains the job's secret, which must not appear in a process list. When
//! standard input is closed, the starter is gone, and the agent ends.

use std::io::BufRead;
use std::ops::Deref;

use gateway_tasks::AgentOrder;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use types::{Identity, Slot};

const MAX_ORDER: u64 = 64 << 10;

/// Everything that an agent needs to join its job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Order(pub AgentOrder);

impl Deref for Order {
    type Target = AgentOrder;

    fn deref(&self) -> &AgentOrder {
        &self.0
    }
}

/// Reasons why an agent has no usable order.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OrderError {
    /// Standard input ended without an order.
    #[error("no order on standard input: agents are started by a gateway, not by hand")]
    Missing,
    /// Standard input could not be read.
    #[error("standard input: {0}")]
    Io(#[from] std::io::Error),
    /// The line is not an order.
    #[error("unreadable order: {0}: is this landbridge the same release as the gateway's?")]
    Format(#[from] serde_json::Error),
    /// A node number larger than addresses can hold.
    #[error("node number {0} is too large")]
    Node(u32),
}

impl Order {
    /// The order as a line, with its newline.
    ///
    /// # Errors
    /// [`OrderError::Format`], never in practice.
    pub fn line(&self) -> Result<Vec<u8>, OrderError> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads an order. Reads no byte after the line, if the reader does not buffer.
    ///
    /// # Errors
    /// [`OrderError`].
    pub fn read(input: impl BufRead) -> Result<Order, OrderError> {
        let mut line = String::new();
        input.take(MAX_ORDER).read_line(&mut line)?;
        if line.is_empty() {
            return Err(OrderError::Missing);
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// The agent's identity.
    ///
    /// # Errors
    /// [`OrderError::Node`].
    pub fn identity(&self) -> Result<Identity, OrderError> {
        let slot = Slot::agent(self.node_id).ok_or(OrderError::Node(self.node_id.0))?;
        Ok(Identity { site: self.site_id, slot })
    }

    /// A gateway of the site, for dialling at this address.
    pub fn gateway(&self, name: &str, address: String) -> client::Gateway {
        client::Gateway { site: self.site.clone(), name: name.to_owned(), address, keys: Some(self.keys) }
    }

    /// The launcher's identity.
    pub fn launcher(&self) -> Identity {
        Identity { site: self.home, slot: Slot::LAUNCHER }
    }
}

/// An order for tests of agents: for the node with this number, counted from 0, of site b.
#[cfg(any(test, feature = "examples"))]
pub fn example(memory: types::sites::Memory, node: u32) -> Order {
    Order(AgentOrder {
        job: types::JobId(std::process::id()),
        secret: wire::Secret::new([1; 32]),
        home: types::SiteId(0),
        site_id: types::SiteId(1),
        site: "b".into(),
        node_id: types::NodeId(node),
        node: format!("n{}", node + 1),
        node_address: None,
        fabric: None,
        inside: types::sites::Inside::Clear,
        gateways: vec![gateway_tasks::GatewayAddress { name: "gw1".into(), address: "gw:7700".into() }],
        keys: types::sites::Keys { current: types::sites::Fingerprint([7; 32]), next: None },
        allocation: None,
        memory,
        forward: None,
        only_movers: false,
    })
}

#[cfg(test)]
mod tests {
    use types::sites::Memory;

    use super::*;

    #[test]
    fn orders_survive_and_nonsense_does_not() {
        let mut order = example(Memory::Pool("/run/pool".into()), 2);
        order.0.node_address = Some("10.0.0.3".parse().unwrap());
        let read = Order::read(&order.line().unwrap()[..]).unwrap();
        assert_eq!((read.job, &read.secret, &read.node), (order.job, &order.secret, &order.node));
        assert_eq!((&read.gateways, read.keys), (&order.gateways, order.keys));
        assert_eq!((&read.memory, read.node_address), (&order.memory, order.node_address));
        assert!(matches!(Order::read(&b""[..]), Err(OrderError::Missing)));
        assert!(matches!(Order::read(&b"hello\n"[..]), Err(OrderError::Format(_))));
    }
}
