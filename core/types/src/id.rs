//! Identities of processes: job, site, node, rank, instance, and their encodings as socket addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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

/// The destination of a frame inside a site: an endpoint of a rank, an agent, a service, the launcher, or the gateway
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

/// A process inside a job, as frames identify it: without an IP address.
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
pub const ADDRESS_LEN: usize = 28;
/// Length of the short form of an [`Address`] in bytes, for IPv4 alone.
pub const SHORT_ADDRESS_LEN: usize = 16;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// An endpoint's address: 28 bytes in the shape of `struct sockaddr_in6`, or, for IPv4 alone, 16 bytes in the shape of
/// `struct sockaddr_in`.
///
/// | bytes | content |
/// |---|---|
/// | 0–1 | `AF_INET6`, native order |
/// | 2–3 | TCP port, network order |
/// | 4–7 | slot, little endian (the structure's flow label) |
/// | 8–23 | IP address on the site's LAN; IPv4 as mapped address, `::ffff:a.b.c.d` |
/// | 24–25 | [`JobId::tag`], little endian (the first half of the structure's scope) |
/// | 26–27 | site, little endian |
///
/// | bytes of the short form | content |
/// |---|---|
/// | 0–1 | `AF_INET`, native order |
/// | 2–3 | TCP port, network order |
/// | 4–7 | IPv4 address on the site's LAN |
/// | 8–9 | [`JobId::tag`], little endian |
/// | 10–11 | site, little endian |
/// | 12–15 | slot, little endian |
///
/// Inside a site, ranks dial the IP and port; between sites, only site and slot count. Outside a job, tag, site and
/// slot are zero, so a plain `sockaddr_in6` or `sockaddr_in` resolved from `host:port` is a valid address. A link-local
/// IPv6 address is not valid: it needs a scope, for which no room is left.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The socket on its site's LAN that the endpoint listens on, in the form of [`plain`].
    pub socket: SocketAddr,
    /// [`JobId::tag`] (a check against mixing jobs, not a secret); zero outside a job.
    pub job: u16,
    /// The endpoint's identity.
    pub identity: Identity,
}

/// No socket address: 0.0.0.0:0.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The canonical form of a socket address, in which equal addresses compare equal. An IPv4-mapped IPv6 address, which a
/// dual-stack socket reports for an IPv4 peer, becomes the IPv4 address; flow label and scope are dropped.
pub fn plain(socket: SocketAddr) -> SocketAddr {
    SocketAddr::new(socket.ip().to_canonical(), socket.port())
}

/// Returns true if an address needs an interface to have a meaning: an IPv6 link-local address, `fe80::/10`.
pub fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl Address {
    /// The address of an endpoint outside any job.
    pub fn standalone(socket: SocketAddr) -> Address {
        Address { socket: plain(socket), job: 0, identity: Identity { site: SiteId(0), slot: Slot(0) } }
    }

    /// The part that distinguishes endpoints: in a job, the identity alone (the socket address is only for dialling);
    /// outside a job, the socket address.
    pub fn key(self) -> Address {
        if self.job == 0 { self } else { Address { socket: NOWHERE, ..self } }
    }

    /// The 28 bytes.
    pub fn to_bytes(self) -> [u8; ADDRESS_LEN] {
        let ip = match self.socket.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut out = [0; ADDRESS_LEN];
        out[0..2].copy_from_slice(&AF_INET6.to_ne_bytes());
        out[2..4].copy_from_slice(&self.socket.port().to_be_bytes());
        out[4..8].copy_from_slice(&self.identity.slot.0.to_le_bytes());
        out[8..24].copy_from_slice(&ip.octets());
        out[24..26].copy_from_slice(&self.job.to_le_bytes());
        out[26..28].copy_from_slice(&self.identity.site.0.to_le_bytes());
        out
    }

    /// Reads the 28 bytes. `None` when the family is not `AF_INET6`, or the IP address is link-local.
    pub fn from_bytes(bytes: &[u8; ADDRESS_LEN]) -> Option<Address> {
        let u16_at = |at: usize| [bytes[at], bytes[at + 1]];
        let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
        let ip = IpAddr::V6(Ipv6Addr::from(ip));
        if u16::from_ne_bytes(u16_at(0)) != AF_INET6 || is_link_local(ip) {
            return None;
        }
        Some(Address {
            socket: plain(SocketAddr::new(ip, u16::from_be_bytes(u16_at(2)))),
            job: u16::from_le_bytes(u16_at(24)),
            identity: Identity {
                site: SiteId(u16::from_le_bytes(u16_at(26))),
                slot: Slot(u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])),
            },
        })
    }

    /// The 16 bytes of the short form. `None` when the IP address is an IPv6 address.
    pub fn to_short_bytes(self) -> Option<[u8; SHORT_ADDRESS_LEN]> {
        let IpAddr::V4(ip) = self.socket.ip().to_canonical() else { return None };
        let mut out = [0; SHORT_ADDRESS_LEN];
        out[0..2].copy_from_slice(&AF_INET.to_ne_bytes());
        out[2..4].copy_from_slice(&self.socket.port().to_be_bytes());
        out[4..8].copy_from_slice(&ip.octets());
        out[8..10].copy_from_slice(&self.job.to_le_bytes());
        out[10..12].copy_from_slice(&self.identity.site.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.identity.slot.0.to_le_bytes());
        Some(out)
    }

    /// Reads the 16 bytes of the short form. `None` when the family is not `AF_INET`.
    pub fn from_short_bytes(bytes: &[u8; SHORT_ADDRESS_LEN]) -> Option<Address> {
        let u16_at = |at: usize| [bytes[at], bytes[at + 1]];
        if u16::from_ne_bytes(u16_at(0)) != AF_INET {
            return None;
        }
        let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
        Some(Address {
            socket: SocketAddr::new(IpAddr::V4(ip), u16::from_be_bytes(u16_at(2))),
            job: u16::from_le_bytes(u16_at(8)),
            identity: Identity {
                site: SiteId(u16::from_le_bytes(u16_at(10))),
                slot: Slot(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])),
            },
        })
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

    fn in_a_job(socket: &str) -> Address {
        let identity = Identity { site: SiteId(3), slot: Slot::rank(Rank(70_000), Instance(2)).unwrap() };
        Address { socket: socket.parse().unwrap(), job: 0xBEEF, identity }
    }

    #[test]
    fn address_survives_its_bytes() {
        for socket in ["10.1.0.7:40001", "[2001:db8::7]:40001", "[::1]:1", "0.0.0.0:0", "[::]:0"] {
            let address = in_a_job(socket);
            assert_eq!(Address::from_bytes(&address.to_bytes()), Some(address));
            let short = address.to_short_bytes();
            assert_eq!(short.is_some(), address.socket.is_ipv4(), "{socket}");
            assert_eq!(short.and_then(|short| Address::from_short_bytes(&short)), short.map(|_| address));
        }
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let mapped: SocketAddr = "[::ffff:10.1.0.7]:40001".parse().unwrap();
        let address = Address::standalone("10.1.0.7:40001".parse().unwrap());
        assert_eq!(Address::standalone(mapped), address);
        assert_eq!(Address::from_bytes(&Address { socket: mapped, ..address }.to_bytes()), Some(address));
        assert_eq!(Address { socket: mapped, ..address }.to_short_bytes(), address.to_short_bytes());
        assert_eq!(format!("{address:?}"), "10.1.0.7:40001 (rank 0 at site #0)");
    }

    #[test]
    fn a_plain_sockaddr_is_a_standalone_address() {
        let mut bytes = [0u8; 16];
        bytes[0..2].copy_from_slice(&2u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&7000u16.to_be_bytes());
        bytes[4..8].copy_from_slice(&[127, 0, 0, 1]);
        let expected = Address::standalone("127.0.0.1:7000".parse().unwrap());
        assert_eq!(Address::from_short_bytes(&bytes), Some(expected));
        let mut bytes = [0u8; 28];
        bytes[0..2].copy_from_slice(&10u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&7000u16.to_be_bytes());
        bytes[23] = 1;
        assert_eq!(Address::from_bytes(&bytes), Some(Address::standalone("[::1]:7000".parse().unwrap())));
    }

    #[test]
    fn other_families_and_link_local_addresses_are_refused() {
        assert_eq!(Address::from_bytes(&[0x0B; 28]), None);
        assert_eq!(Address::from_short_bytes(&[0x0A; 16]), None);
        assert_eq!(Address::from_bytes(&in_a_job("[fe80::1]:7").to_bytes()), None);
        assert!(is_link_local("fe80::1".parse().unwrap()));
        assert!(["::1", "fd00::1", "169.254.0.1"].iter().all(|ip| !is_link_local(ip.parse().unwrap())));
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
