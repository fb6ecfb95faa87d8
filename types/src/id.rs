//! Identities of processes: job, site, node, rank, instance, and their 16-byte encoding.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One launch of a program across sites. Chosen at random by the launcher; zero means "outside any job".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub u32);

/// A site's index in the roster of a job (its order in the sites file).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SiteId(pub u16);

/// A node's index among the nodes of its site that take part in a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A service's index among the services of its job at a site: members that are neither ranks nor agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServiceId(pub u32);

/// A rank of `MPI_COMM_WORLD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// Number of an endpoint of a rank: an MPI library may open several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Instance(pub u8);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl JobId {
    /// The 16 bits of the id that an [`Address`] carries; never zero for a job.
    pub fn tag(self) -> u16 {
        if self.0 == 0 { 0 } else { (self.0 as u16).max(1) }
    }
}

impl FromStr for JobId {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u32::from_str_radix(text, 16).map(JobId)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a frame is addressed to inside a site: an endpoint of a rank, an agent, a service, the launcher, or the gateway
/// itself.
///
/// 32 bits: a 24-bit number and an 8-bit instance. Numbers up to [`Slot::MAX_RANK`] are ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot(pub u32);

const AGENT_BASE: u32 = 0xF0_0000;
const SERVICE_BASE: u32 = 0xFE_0000;
const LAUNCHER: u32 = 0xFF_FFFE;
const GATEWAY: u32 = 0xFF_FFFF;

impl Slot {
    /// The highest rank a job can have.
    pub const MAX_RANK: u32 = AGENT_BASE - 1;
    /// The launcher of a job (the `landbridge run` the user typed).
    pub const LAUNCHER: Slot = Slot(LAUNCHER << 8);
    /// The gateway program itself.
    pub const GATEWAY: Slot = Slot(GATEWAY << 8);

    /// The slot of one endpoint of a rank. `None` when the rank is above [`Slot::MAX_RANK`].
    pub fn rank(rank: Rank, instance: Instance) -> Option<Slot> {
        (rank.0 <= Self::MAX_RANK).then_some(Slot(rank.0 << 8 | u32::from(instance.0)))
    }

    /// The slot of the agent of a node. `None` when the node number does not fit.
    pub fn agent(node: NodeId) -> Option<Slot> {
        (node.0 < SERVICE_BASE - AGENT_BASE).then_some(Slot((AGENT_BASE + node.0) << 8))
    }

    /// The slot of a service of a job. `None` when the number does not fit.
    pub fn service(service: ServiceId) -> Option<Slot> {
        (service.0 < LAUNCHER - SERVICE_BASE).then_some(Slot((SERVICE_BASE + service.0) << 8))
    }

    pub fn kind(self) -> SlotKind {
        match self.0 >> 8 {
            GATEWAY => SlotKind::Gateway,
            LAUNCHER => SlotKind::Launcher,
            service if service >= SERVICE_BASE => SlotKind::Service(ServiceId(service - SERVICE_BASE)),
            agent if agent >= AGENT_BASE => SlotKind::Agent(NodeId(agent - AGENT_BASE)),
            rank => SlotKind::Rank(Rank(rank), Instance(self.0 as u8)),
        }
    }
}

/// A decoded [`Slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// One endpoint of a rank.
    Rank(Rank, Instance),
    Agent(NodeId),
    /// A member that is neither rank nor agent. No such member exists in this version; the numbers are reserved.
    Service(ServiceId),
    Launcher,
    /// The gateway itself.
    Gateway,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            SlotKind::Rank(rank, Instance(0)) => write!(f, "rank {rank}"),
            SlotKind::Rank(rank, instance) => write!(f, "rank {rank} endpoint {}", instance.0),
            SlotKind::Agent(node) => write!(f, "agent of node {}", node.0),
            SlotKind::Service(service) => write!(f, "service {}", service.0),
            SlotKind::Launcher => f.write_str("launcher"),
            SlotKind::Gateway => f.write_str("gateway"),
        }
    }
}

/// A process inside a job, as frames name it: it contains no IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    pub site: SiteId,
    /// The member's slot at that site.
    pub slot: Slot,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at site #{}", self.slot, self.site.0)
    }
}

/// Length of an [`Address`] in bytes.
pub const ADDRESS_LEN: usize = 16;
const AF_INET: u16 = 2;

/// An endpoint's address: 16 bytes shaped as `struct sockaddr_in`, which every MPI library accepts.
///
/// | bytes | content |
/// |---|---|
/// | 0–1 | `AF_INET`, native order |
/// | 2–3 | TCP port, network order |
/// | 4–7 | IPv4 address on the site's LAN |
/// | 8–9 | [`JobId::tag`], little endian |
/// | 10–11 | site, little endian |
/// | 12–15 | slot, little endian |
///
/// Inside a site the IP and port are dialled; between sites only site and slot count. Outside a job the last eight
/// bytes are zero, so that a plain `sockaddr_in` resolved from `host:port` is a valid address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Where the endpoint listens on its site's LAN.
    pub socket: SocketAddrV4,
    /// [`JobId::tag`] (a check against mixing jobs, not a secret); zero outside a job.
    pub job: u16,
    /// The endpoint's identity.
    pub identity: Identity,
}

impl Address {
    /// The address of an endpoint outside any job.
    pub fn standalone(socket: SocketAddrV4) -> Address {
        Address { socket, job: 0, identity: Identity { site: SiteId(0), slot: Slot(0) } }
    }

    /// What distinguishes endpoints: in a job the identity alone (the socket address is only for dialling), outside a
    /// job the socket address.
    pub fn key(self) -> Address {
        if self.job == 0 { self } else { Address { socket: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0), ..self } }
    }

    /// The 16 bytes.
    pub fn to_bytes(self) -> [u8; ADDRESS_LEN] {
        let mut out = [0; ADDRESS_LEN];
        out[0..2].copy_from_slice(&AF_INET.to_ne_bytes());
        out[2..4].copy_from_slice(&self.socket.port().to_be_bytes());
        out[4..8].copy_from_slice(&self.socket.ip().octets());
        out[8..10].copy_from_slice(&self.job.to_le_bytes());
        out[10..12].copy_from_slice(&self.identity.site.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.identity.slot.0.to_le_bytes());
        out
    }

    /// Reads the 16 bytes. `None` when the family is not `AF_INET`.
    pub fn from_bytes(bytes: &[u8; ADDRESS_LEN]) -> Option<Address> {
        let u16_at = |at: usize| [bytes[at], bytes[at + 1]];
        if u16::from_ne_bytes(u16_at(0)) != AF_INET {
            return None;
        }
        let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
        Some(Address {
            socket: SocketAddrV4::new(ip, u16::from_be_bytes(u16_at(2))),
            job: u16::from_le_bytes(u16_at(8)),
            identity: Identity {
                site: SiteId(u16::from_le_bytes(u16_at(10))),
                slot: Slot(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])),
            },
        })
    }

    /// The same as a standard socket address.
    pub fn socket_addr(self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(*self.socket.ip()), self.socket.port())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.socket, self.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_survives_its_bytes() {
        let address = Address {
            socket: "10.1.0.7:40001".parse().unwrap(),
            job: 0xBEEF,
            identity: Identity { site: SiteId(3), slot: Slot::rank(Rank(70_000), Instance(2)).unwrap() },
        };
        assert_eq!(Address::from_bytes(&address.to_bytes()), Some(address));
    }

    #[test]
    fn a_plain_sockaddr_in_is_a_standalone_address() {
        let mut bytes = [0u8; 16];
        bytes[0..2].copy_from_slice(&2u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&7000u16.to_be_bytes());
        bytes[4..8].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(Address::from_bytes(&bytes), Some(Address::standalone("127.0.0.1:7000".parse().unwrap())));
    }

    #[test]
    fn another_family_is_refused() {
        assert_eq!(Address::from_bytes(&[0x0A; 16]), None);
    }

    #[test]
    fn slots_do_not_overlap() {
        assert_eq!(Slot::rank(Rank(Slot::MAX_RANK + 1), Instance(0)), None);
        assert_eq!(Slot::rank(Rank(5), Instance(1)).unwrap().kind(), SlotKind::Rank(Rank(5), Instance(1)));
        assert_eq!(Slot::agent(NodeId(9)).unwrap().kind(), SlotKind::Agent(NodeId(9)));
        let most_nodes = SERVICE_BASE - AGENT_BASE;
        assert_eq!(Slot::agent(NodeId(most_nodes - 1)).unwrap().kind(), SlotKind::Agent(NodeId(most_nodes - 1)));
        assert_eq!(Slot::agent(NodeId(most_nodes)), None);
        let most_services = LAUNCHER - SERVICE_BASE;
        for number in [0, most_services - 1] {
            assert_eq!(Slot::service(ServiceId(number)).unwrap().kind(), SlotKind::Service(ServiceId(number)));
        }
        assert_eq!(Slot::service(ServiceId(most_services)), None);
        assert_eq!(Slot::LAUNCHER.kind(), SlotKind::Launcher);
        assert_eq!(Slot::GATEWAY.kind(), SlotKind::Gateway);
    }
}
