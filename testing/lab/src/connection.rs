//! Finds and resets TCP connections of one network namespace through the kernel's `sock_diag` (man 7 `sock_diag`).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// The criteria for a connection to reset: the first one that matches all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Wanted {
    /// The peer: `ADDRESS`, `HOST`, `ADDRESS:PORT` or `HOST:PORT`; `HOST` is a host of the same site. Default: any.
    pub to: Option<String>,
    /// The name of the owning process (as `ps -o comm` shows it), or its process id on that host. Default: any.
    pub of: Option<String>,
}

/// One established TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpConnection {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// The process that owns it, if any: its name and its process id on that host. If there are several, the requested
    /// one, or else the one with the lowest id.
    pub process: Option<(String, u32)>,
}

impl fmt::Display for TcpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.local, self.peer)?;
        self.process.as_ref().map_or(Ok(()), |(name, pid)| write!(f, " ({name}, process {pid})"))
    }
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// The state mask with only TCP_ESTABLISHED (1) set.
const ESTABLISHED: u32 = 1 << 1;
/// `struct inet_diag_sockid`: ports, addresses, interface, cookie.
const ID: usize = 48;

/// A connection with its identifiers in the kernel.
struct Found {
    connection: TcpConnection,
    family: u8,
    id: [u8; ID],
    inode: u32,
    owners: Vec<(String, u32)>,
}

/// Resets the first matching connection of this network namespace. `hosts_file` names the site's hosts.
pub(crate) fn reset(host: &str, wanted: &Wanted, hosts_file: &Path) -> Result<TcpConnection, LabError> {
    let to = wanted.to.as_deref().map(|text| peer(text, hosts_file)).transpose()?;
    let mut all = established().map_err(|e| unavailable("listing connections by sock_diag", &e))?;
    name_processes(&mut all);
    all.sort_by_key(|found| (found.connection.peer, found.connection.local));
    let owned = |(name, pid): &&(String, u32)| wanted.of.as_ref().is_none_or(|of| name == of || pid.to_string() == *of);
    let suits = |found: &&Found| {
        let peer = found.connection.peer;
        let to = to.is_none_or(|(address, port)| peer.ip() == address && port.is_none_or(|port| peer.port() == port));
        to && (wanted.of.is_none() || found.owners.iter().any(|owner| owned(&owner)))
    };
    let Some(found) = all.iter().find(suits) else {
        let to = wanted.to.as_ref().map_or(String::new(), |to| format!(" to {to}"));
        let of = wanted.of.as_ref().map_or(String::new(), |of| format!(" of process {of}"));
        let there: Vec<String> = all.iter().map(|found| found.connection.to_string()).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return Err(LabError::Options(format!("{host} has no established TCP connection{to}{of}; it has {there}")));
    };
    destroy(found).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) => LabError::setup(host, format!("{} has just ended by itself", found.connection)),
        _ => unavailable("SOCK_DESTROY", &e),
    })?;
    Ok(TcpConnection { process: found.owners.iter().find(owned).cloned(), ..found.connection })
}

fn unavailable(what: &str, error: &io::Error) -> LabError {
    LabError::Unavailable {
        what: format!("{what}: {error}"),
        remedy: "the kernel needs CONFIG_INET_DIAG and CONFIG_INET_DIAG_DESTROY (modules inet_diag and tcp_diag)"
            .to_owned(),
    }
}

/// Parses `--to`: an address and optionally a port.
fn peer(text: &str, hosts_file: &Path) -> Result<(IpAddr, Option<u16>), LabError> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok((address.ip(), Some(address.port())));
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let (name, port) = match text.rsplit_once(':') {
        None => (text, None),
        Some((name, port)) => {
            let wrong = || LabError::Options(format!("{text:?} is not HOST:PORT: {port:?} is not a port"));
            (name, Some(port.parse::<u16>().map_err(|_| wrong())?))
        }
    };
    let hosts = std::fs::read_to_string(hosts_file).unwrap_or_default();
    let address = hosts.lines().find_map(|line| {
        let (address, names) = line.split_once(' ')?;
        if address == name || names.split(' ').any(|each| each == name) { address.parse().ok() } else { None }
    });
    let names: Vec<&str> = hosts.lines().skip(1).filter_map(|line| line.split(' ').nth(1)).collect();
    let unknown = || {
        LabError::Options(format!(
            "{name:?} is neither an address nor a host of this site; those are {}",
            names.join(", ")
        ))
    };
    Ok((address.ok_or_else(unknown)?, port))
}

/// Every established connection, IPv4 and IPv6.
fn established() -> io::Result<Vec<Found>> {
    let mut all = Vec::new();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        let socket = talk(&request(SOCK_DIAG_BY_FAMILY, REQUEST | DUMP, family, &[0; ID]))?;
        let mut over = false;
        while !over {
            over = receive(&socket, |body| all.extend(parse(body)))?;
        }
    }
    Ok(all)
}

fn destroy(found: &Found) -> io::Result<()> {
    let socket = talk(&request(SOCK_DESTROY, REQUEST | ACK, found.family, &found.id))?;
    while !receive(&socket, |_| {})? {}
    Ok(())
}

/// A `struct nlmsghdr` followed by a `struct inet_diag_req_v2`.
fn request(kind: u16, flags: u16, family: u8, id: &[u8; ID]) -> Vec<u8> {
    let length = 16 + 8 + ID;
    let mut bytes = (length as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence and sender's port are 0: each request has its own socket.
    bytes.extend([0; 8]);
    bytes.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(ESTABLISHED.to_ne_bytes());
    bytes.extend(id);
    bytes
}

fn talk(request: &[u8]) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(std::time::Duration::from_secs(2)),
    )?;
    rustix::net::send(&socket, request, SendFlags::empty())?;
    Ok(socket)
}

/// Reads one datagram and passes each answer in it to `take`. Returns true after the last datagram.
fn receive(socket: &OwnedFd, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
    let mut buffer = vec![0u8; 64 << 10];
    let (_, length) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
    let mut rest = &buffer[..length.min(64 << 10)];
    while let (Some(length), Some(kind)) = (number(rest, 0), rest.get(4..6)) {
        let length = length as usize;
        let Some(body) = rest.get(16..length) else { break };
        match u16::from_ne_bytes([kind[0], kind[1]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                return match number(body, 0).unwrap_or_default() as i32 {
                    0 => Ok(true),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
            _ => take(body),
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses a `struct inet_diag_msg`.
fn parse(body: &[u8]) -> Option<Found> {
    let family = *body.first()?;
    let id: [u8; ID] = body.get(4..4 + ID)?.try_into().ok()?;
    let inode = number(body, 4 + ID + 16)?;
    let port = |at: usize| u16::from_be_bytes([id[at], id[at + 1]]);
    let address = |at: usize| {
        let bytes: [u8; 16] = id[at..at + 16].try_into().unwrap_or_default();
        let [a, b, c, d, ..] = bytes;
        if i32::from(family) == libc::AF_INET {
            IpAddr::from([a, b, c, d])
        } else {
            Ipv6Addr::from(bytes).to_canonical()
        }
    };
    let connection = TcpConnection {
        local: SocketAddr::new(address(4), port(0)),
        peer: SocketAddr::new(address(20), port(2)),
        process: None,
    };
    Some(Found { connection, family, id, inode, owners: Vec::new() })
}

/// Finds the owners of these sockets in `/proc`. A process's children inherit them.
fn name_processes(all: &mut [Found]) {
    let mut owners: HashMap<String, Vec<(String, u32)>> = HashMap::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that has just ended owns nothing.
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        for file in std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            if let Ok(target) = std::fs::read_link(file.path()) {
                let owners = owners.entry(target.to_string_lossy().into_owned()).or_default();
                owners.push((name.trim_end().to_owned(), pid));
            }
        }
    }
    for found in all {
        found.owners = owners.remove(&format!("socket:[{}]", found.inode)).unwrap_or_default();
        found.owners.sort_by_key(|(_, pid)| *pid);
        found.connection.process = found.owners.first().cloned();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn hosts() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "127.0.0.1 localhost\n10.1.0.102 a-gw2 gw2\n").unwrap();
        file
    }

    #[test]
    fn peers_are_addresses_or_hosts_with_or_without_a_port() {
        let hosts = hosts();
        let gateway: IpAddr = "10.1.0.102".parse().unwrap();
        for (text, port) in
            [("10.1.0.102", None), ("10.1.0.102:7700", Some(7700)), ("a-gw2:7700", Some(7700)), ("gw2", None)]
        {
            assert_eq!(peer(text, hosts.path()), Ok((gateway, port)), "{text}");
        }
        let complaint = peer("b-gw1:7700", hosts.path()).unwrap_err().to_string();
        assert!(complaint.contains("\"b-gw1\"") && complaint.ends_with("those are a-gw2"), "{complaint}");
        assert!(peer("a-gw2:http", hosts.path()).unwrap_err().to_string().contains("\"http\" is not a port"));
    }

    #[test]
    fn connections_are_listed_with_their_owners() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut all = match established() {
            Err(error) => panic!("{error}: tests need the kernel's sock_diag"),
            Ok(all) => all,
        };
        name_processes(&mut all);
        let found = all.iter().find(|found| found.connection.local == ours.local_addr().unwrap()).unwrap();
        assert_eq!(found.connection.peer, ours.peer_addr().unwrap());
        assert_eq!(found.connection.process.as_ref().unwrap().1, std::process::id());
    }

    #[test]
    fn what_is_not_there_is_named_beside_what_is() {
        let wanted = Wanted { to: Some("192.0.2.1:9".to_owned()), of: Some("nobody".to_owned()) };
        let complaint = reset("a-n1", &wanted, hosts().path()).unwrap_err().to_string();
        let expected = "a-n1 has no established TCP connection to 192.0.2.1:9 of process nobody; it has ";
        assert!(complaint.contains(expected), "{complaint}");
    }
}
