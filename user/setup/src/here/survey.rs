//! Surveys a site's machine: schedulers, file systems, MPI libraries, a free port, the address that nodes reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use job::capture::capture_blocking;

use crate::here::error::HereError;
use crate::here::folders::Folders;
use crate::message::Survey;
use crate::nodes;
use job::host_name;
use types::id::is_link_local;

/// The first port to try for a gateway, unless the user names one.
const FIRST_PORT: u16 = 7700;
const PORTS: u16 = 100;
/// Time limit for Slurm to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Documentation addresses that are assigned to no host (RFC 5737, RFC 3849): the route to them is the default route.
const OUTSIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// Surveys this machine.
///
/// # Errors
/// The requested port is taken, or no port is free.
pub(crate) fn survey(folders: &Folders, site: &str, named: &[String], port: Option<u16>) -> Result<Survey, HereError> {
    let host = host_name();
    let host = host.split('.').next().unwrap_or(&host).to_owned();
    let slurm = slurm();
    let known = if named.is_empty() { slurm.as_deref().unwrap_or(&[]) } else { named };
    let inside = known.iter().filter(|node| **node != host).find_map(|node| way_to_name(node));
    let home = std::env::home_dir().unwrap_or_default();
    let (kind, shared) = file_system(&home);
    Ok(Survey {
        port: free_port(folders, site, port)?,
        inside: inside.or_else(|| OUTSIDE.iter().find_map(|outside| way_to(SocketAddr::new(*outside, 9)))),
        slurm,
        pbs: find("qsub").is_some() && find("pbsnodes").is_some(),
        home: kind,
        shared_home: shared,
        python: find("python3").map(|path| path.display().to_string()),
        mpi: mpi_libraries(),
        host,
    })
}

/// The local address that a packet to `there` would leave from, if others could dial it. Sends nothing.
fn way_to(there: SocketAddr) -> Option<IpAddr> {
    let any = match there {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(there).ok()?;
    let local = socket.local_addr().ok()?.ip();
    (!local.is_unspecified() && !is_link_local(local)).then_some(local)
}

fn way_to_name(node: &str) -> Option<IpAddr> {
    (node, 9).to_socket_addrs().ok()?.find_map(|there| way_to(there).filter(|local| !local.is_loopback()))
}

fn free_port(folders: &Folders, site: &str, wanted: Option<u16>) -> Result<u16, HereError> {
    // The site's own gateway may hold the port already, and keeps it.
    let own = super::read(folders).ok().and_then(|sites| {
        let listen = sites.site(site).ok()?.gateways.first()?.listen.clone();
        listen.rsplit_once(':')?.1.parse::<u16>().ok()
    });
    let try_port = |port: u16| match own == Some(port) {
        true => Ok(port),
        false => is_free(port).map(|()| port),
    };
    let ports = FIRST_PORT..FIRST_PORT + PORTS;
    match wanted {
        Some(port) => try_port(port).map_err(|source| HereError::PortTaken { port, source }),
        None => {
            let none = HereError::NoPort { first: ports.start, last: ports.end - 1 };
            ports.clone().find(|port| try_port(*port).is_ok()).ok_or(none)
        }
    }
}

/// Succeeds if a listener on every address of both families can bind the port.
fn is_free(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => Err(error),
        // On a machine without IPv6.
        _ => Ok(()),
    }
}

/// The nodes that Slurm lists, or `None` if Slurm is missing or does not answer.
fn slurm() -> Option<Vec<String>> {
    let program = find("sinfo")?;
    let mut command = Command::new(program);
    command.args(["--noheader", "--Node", "--format=%N"]);
    let answer = capture_blocking(&mut command, b"", ANSWER).ok()?;
    let text = answer.text();
    let mut names: Vec<String> = Vec::new();
    for name in text.lines().flat_map(|line| nodes::expand(line.trim()).unwrap_or_default()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    answer.status.success().then_some(names)
}

/// The kind of file system that a folder is on, and whether that kind is usually shared with other machines.
fn file_system(folder: &Path) -> (String, bool) {
    let Ok(found) = rustix::fs::statfs(folder) else { return ("unknown".to_owned(), false) };
    let (name, shared) = match found.f_type as u32 {
        0x6969 => ("nfs", true),
        0x0BD0_0BD0 => ("lustre", true),
        0x4750_4653 => ("gpfs", true),
        0x1983_0326 => ("beegfs", true),
        0x00C3_6400 => ("ceph", true),
        0xFF53_4D42 | 0xFE53_4D42 => ("cifs", true),
        0x0102_1994 => ("tmpfs", false),
        0xEF53 => ("ext4", false),
        0x5846_5342 => ("xfs", false),
        0x9123_683E => ("btrfs", false),
        0x794C_7630 => ("overlay", false),
        other => return (format!("of kind {other:#x}"), false),
    };
    (name.to_owned(), shared)
}

/// The real path of each `mpiexec` on the path: one for each MPI library.
fn mpi_libraries() -> Vec<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = Vec::new();
    for folder in std::env::split_paths(&path).filter(|folder| folder.join("mpiexec").is_file()) {
        let program = std::fs::canonicalize(folder.join("mpiexec")).unwrap_or(folder);
        let text = program.display().to_string();
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named_and_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders { configuration: folder.path().into(), state: folder.path().into() };
        for any in ["0.0.0.0:0", "127.0.0.1:0", "[::1]:0"] {
            let taken = TcpListener::bind(any).unwrap();
            let port = taken.local_addr().unwrap().port();
            let error = free_port(&folders, "lyon", Some(port)).unwrap_err().to_string();
            assert!(error.contains(&format!("port {port}")) && error.contains("in use"), "{error}");
            drop(taken);
            assert_eq!(free_port(&folders, "lyon", Some(port)).unwrap(), port);
        }
    }

    #[test]
    fn the_way_to_an_ipv6_address_is_found() {
        assert_eq!(way_to("[::1]:9".parse().unwrap()), "::1".parse().ok());
        assert_eq!(way_to("127.0.0.1:9".parse().unwrap()), "127.0.0.1".parse().ok());
    }

    #[test]
    fn this_machine_has_a_name_and_a_home() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders { configuration: folder.path().into(), state: folder.path().into() };
        let survey = survey(&folders, "lyon", &["no-such-node.invalid".to_owned()], None).unwrap();
        assert!(!survey.host.is_empty() && !survey.host.contains('.') && !survey.home.is_empty());
    }
}
