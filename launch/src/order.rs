//! What a starter tells an agent: one line of JSON on its standard input, which then stays open.
//!
//! Standard input because the order holds the job's secret, which must not show in a process list. When it is closed,
//! the starter is gone and the agent ends.

use std::io::BufRead;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use types::sites::{Fabric, Memory};
use types::{Identity, JobId, NodeId, SiteId, Slot};
use wire::Secret;

const MAX_ORDER: u64 = 64 << 10;

/// Everything an agent must know to join its job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The job.
    pub job: JobId,
    /// Its secret.
    pub secret: Secret,
    /// The launcher's site in the job's roster.
    pub home: SiteId,
    /// The agent's site in the job's roster.
    pub site_id: SiteId,
    /// Name of that site.
    pub site: String,
    /// The node in the roster of its site.
    pub node_id: NodeId,
    /// Name of the node.
    pub node: String,
    /// The IP its ranks listen on, if the sites file says so.
    pub node_address: Option<IpAddr>,
    /// The site's own network, if the sites file names one.
    pub fabric: Option<Fabric>,
    /// `host:port` of the gateway, as the node dials it.
    pub gateway_address: String,
    /// Where the site's ranks share memory.
    #[serde(default)]
    pub memory: Memory,
}

/// An order that cannot be followed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OrderError {
    /// None came.
    #[error("no order on standard input: agents are started by a gateway, not by hand")]
    Missing,
    /// It could not be read.
    #[error("standard input: {0}")]
    Io(#[from] std::io::Error),
    /// It is not an order.
    #[error("unreadable order: {0}: is this landbridge the same release as the gateway's?")]
    Format(#[from] serde_json::Error),
    /// A node number beyond what addresses can name.
    #[error("node number {0} is too large")]
    Node(u32),
}

impl Order {
    /// The line, newline included.
    ///
    /// # Errors
    /// [`OrderError::Format`], never in practice.
    pub fn line(&self) -> Result<Vec<u8>, OrderError> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads an order and not one byte more than its line, if the reader does not buffer.
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

    /// Who the agent is.
    ///
    /// # Errors
    /// [`OrderError::Node`].
    pub fn identity(&self) -> Result<Identity, OrderError> {
        let slot = Slot::agent(self.node_id).ok_or(OrderError::Node(self.node_id.0))?;
        Ok(Identity { site: self.site_id, slot })
    }

    /// Who the launcher is.
    pub fn launcher(&self) -> Identity {
        Identity { site: self.home, slot: Slot::LAUNCHER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_and_nonsense_does_not() {
        let order = Order {
            job: JobId(7),
            secret: Secret::new([3; 32]),
            home: SiteId(0),
            site_id: SiteId(1),
            site: "b".into(),
            node_id: NodeId(2),
            node: "n3".into(),
            node_address: Some("10.0.0.3".parse().unwrap()),
            fabric: None,
            gateway_address: "gw:7700".into(),
            memory: Memory::Pool("/run/pool".into()),
        };
        let read = Order::read(&order.line().unwrap()[..]).unwrap();
        assert_eq!((read.job, read.secret, read.node), (order.job, order.secret, order.node));
        assert_eq!(read.memory, order.memory);
        assert!(matches!(Order::read(&b""[..]), Err(OrderError::Missing)));
        assert!(matches!(Order::read(&b"hello\n"[..]), Err(OrderError::Format(_))));
    }
}
