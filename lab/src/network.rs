//! The commands for `ip` and `tc` that wire a lab, as text, and the running of them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::LabError;
use crate::layout::{Host, Layout, Role, mac_text, site_name};
use crate::units::Rate;

/// What one network namespace needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Script {
    pub ip: String,
    pub tc: String,
}

/// How network interfaces are shaped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nic {
    pub rate: Rate,
    /// What its bucket holds, as time at its rate. A network card lets nothing through faster than its rate; with
    /// larger buckets short messages come at once, and BBR took the rate that it saw there (50 to 200 times the card's)
    /// for the path's. What a lab's interface misses because nobody has a core for it, it makes up for as far as its
    /// bucket goes.
    pub burst: Duration,
}

impl Nic {
    fn is_shaped(self) -> bool {
        self.rate != Rate::UNLIMITED
    }

    /// At least two packets.
    fn burst_bytes(self) -> u64 {
        let burst_ns = self.burst.as_nanos().try_into().unwrap_or(u64::MAX);
        self.rate.bytes(burst_ns).clamp(2 * 1514, 4_000_000)
    }

    /// Bytes that may wait: 5 ms, and at least `least`.
    fn limit_bytes(self, least: u64) -> u64 {
        self.rate.bytes(5_000_000).max(least) + self.burst_bytes()
    }

    /// A super-packet larger than the bucket would be cut in software before tbf; this is cheaper.
    fn most_at_once(self) -> u64 {
        (self.burst_bytes() - self.burst_bytes() / 10).min(65_536)
    }
}

/// What a port of a plain switch buffers. Less drops the first burst of every connection, which then waits for TCP's
/// timer.
const PORT_BYTES: u64 = 128 << 10;
/// What Linux queues before a network card: 1,000 packets (`txqueuelen`). A host does not lose its own packets where a
/// port would.
const CARD_BYTES: u64 = 1000 * 1514;

fn shape(tc: &mut String, device: &str, nic: Nic, least: u64) {
    if nic.is_shaped() {
        let (rate, burst, limit) = (nic.rate.0, nic.burst_bytes(), nic.limit_bytes(least));
        let _ = writeln!(tc, "qdisc add dev {device} root tbf rate {rate}bit burst {burst} limit {limit}");
    }
}

/// The switches and the cables, in the namespace that holds them. `pids` has one entry per host of the layout.
pub(crate) fn fabric(layout: &Layout, nic: impl Fn(Host) -> Nic, pids: &[u32]) -> Script {
    let mut script = Script { ip: "link set lo up\n".to_owned(), tc: String::new() };
    for site in 0..layout.sites {
        let name = site_name(site);
        let _ = writeln!(script.ip, "link add sw-{name} type bridge mcast_snooping 0\nlink set sw-{name} up");
    }
    for (host, pid) in layout.hosts().zip(pids) {
        let port = host.lan_port();
        let _ = writeln!(
            script.ip,
            "link add {port} type veth peer name eth0 address {} netns {pid}\nlink set {port} master sw-{} up",
            mac_text(host.lan_mac()),
            site_name(host.site),
        );
        shape(&mut script.tc, &port, nic(host), PORT_BYTES);
        if host.role == Role::Gateway {
            let port = host.wan_port();
            let _ = writeln!(
                script.ip,
                "link add {port} type veth peer name wan0 address {} netns {pid}\nlink set {port} up",
                mac_text(host.wan_mac()),
            );
        }
    }
    script
}

/// The inside of one host: addresses, neighbours (so that no test waits for ARP) and, if asked for, routes.
pub(crate) fn host(layout: &Layout, nic: Nic, host: Host, route_directly: bool) -> Script {
    let mut script = Script { ip: "link set lo up\n".to_owned(), tc: String::new() };
    let mut device = |name: &str, address: String, neighbours: Vec<(String, [u8; 6])>| {
        let _ = writeln!(script.ip, "addr add {address} dev {name}");
        if nic.is_shaped() {
            let _ = writeln!(script.ip, "link set {name} gso_max_size {}", nic.most_at_once());
        }
        let _ = writeln!(script.ip, "link set {name} up");
        for (address, mac) in neighbours {
            let _ = writeln!(script.ip, "neigh add {address} lladdr {} dev {name} nud permanent", mac_text(mac));
        }
        shape(&mut script.tc, name, nic, CARD_BYTES);
    };
    let others = layout.hosts_of(host.site).filter(|other| *other != host);
    let neighbours = others.map(|other| (layout.lan(other).to_string(), other.lan_mac())).collect();
    device("eth0", format!("{}/24", layout.lan(host)), neighbours);
    if host.role == Role::Gateway {
        let others = layout.gateways().filter(|other| other.site != host.site);
        let neighbours = others.map(|other| (other.wan().to_string(), other.wan_mac())).collect();
        device("wan0", format!("{}/15", host.wan()), neighbours);
    }
    if route_directly {
        match host.role {
            Role::Node => {
                let gateway = Host { site: host.site, role: Role::Gateway, index: 1 };
                let _ = writeln!(script.ip, "route add default via {} dev eth0", layout.lan(gateway));
            }
            Role::Gateway => {
                for site in (0..layout.sites).filter(|site| *site != host.site) {
                    let gateway = Host { site, role: Role::Gateway, index: 1 };
                    let range = format!("10.{}.0.0/24", site + 1);
                    let _ = writeln!(script.ip, "route add {range} via {} dev wan0", gateway.wan());
                }
            }
        }
    }
    script
}

/// Takes a host's cable out of its site's switch, or puts it back. The port stays up, so that the host's end keeps its
/// carrier and its routes: packets vanish, and nothing tells TCP.
pub(crate) fn cable(host: Host, plugged: bool) -> Script {
    let switch = if plugged { format!("master sw-{}", site_name(host.site)) } else { "nomaster".to_owned() };
    Script { ip: format!("link set {} {switch}\n", host.lan_port()), tc: String::new() }
}

/// Finds a program of iproute2, also where a user's PATH does not look.
pub(crate) fn find(program: &str) -> Result<PathBuf, LabError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(extra)
        .map(|dir| dir.join(program))
        .find(|candidate| rustix::fs::access(candidate, rustix::fs::Access::EXEC_OK).is_ok() && candidate.is_file())
        .ok_or_else(|| LabError::Unavailable {
            what: format!("the program {program} is not installed"),
            remedy: "install iproute2".to_owned(),
        })
}

/// Runs both halves of a script in the calling process's namespace. `place` names it in errors.
pub(crate) fn apply(script: &Script, place: &str) -> Result<(), LabError> {
    batch(&find("ip")?, &script.ip, place)?;
    if !script.tc.is_empty() {
        batch(&find("tc")?, &script.tc, place)?;
    }
    Ok(())
}

fn batch(program: &Path, lines: &str, place: &str) -> Result<(), LabError> {
    let wrong = |problem: String| LabError::setup(format!("{place}: {} -batch", program.display()), problem);
    let mut child = Command::new(program)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| wrong(e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A failure to write means that the program ended early; its own output below says more.
        let _ = stdin.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| wrong(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // iproute2 reports "Command failed -:LINE".
    let culprit = complaint
        .rsplit_once("-:")
        .and_then(|(_, number)| number.trim().parse::<usize>().ok())
        .and_then(|number| lines.lines().nth(number.saturating_sub(1)))
        .unwrap_or_default();
    Err(wrong(format!("{complaint} ({culprit})")))
}

/// Whether anything listens on a TCP port of `address` (or of every address) in this network namespace.
pub(crate) fn listens(address: std::net::SocketAddrV4) -> bool {
    let port = address.port();
    let wanted = |table: &str, wildcard: &str| {
        let octets = address.ip().octets();
        // The kernel prints addresses as native words.
        let exact = format!("{:08X}:{port:04X}", u32::from_ne_bytes(octets));
        let any = format!("{wildcard}:{port:04X}");
        std::fs::read_to_string(table).unwrap_or_default().lines().skip(1).any(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            let state = words.nth(1).unwrap_or_default();
            state == "0A" && (local == exact || local == any)
        })
    };
    wanted("/proc/self/net/tcp", "00000000") || wanted("/proc/self/net/tcp6", "00000000000000000000000000000000")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

    use super::*;
    use crate::layout::Ground;

    fn nic(mbit: u64, burst_us: u64) -> Nic {
        Nic { rate: Rate(mbit * 1_000_000), burst: Duration::from_micros(burst_us) }
    }

    #[test]
    fn only_direct_routing_has_routes() {
        let layout = Layout { sites: 2, nodes: 1, gateways: 1, ground: Ground::Ranges };
        for each in layout.hosts() {
            assert!(!host(&layout, nic(0, 400), each, false).ip.contains("route"));
            assert!(host(&layout, nic(0, 400), each, true).ip.contains("route add"));
        }
    }

    #[test]
    fn shaping_follows_the_rate() {
        assert_eq!(nic(200, 400).burst_bytes(), 10_000);
        assert_eq!(nic(2_000, 400).burst_bytes(), 100_000);
        assert_eq!((nic(100, 4_000).burst_bytes(), nic(100, 0).burst_bytes()), (50_000, 3028));
        assert_eq!(nic(2_000, 400).limit_bytes(PORT_BYTES), 1_350_000);
        let layout = Layout { sites: 1, nodes: 1, gateways: 1, ground: Ground::Ranges };
        let script = fabric(&layout, |_| nic(200, 400), &[10, 11]);
        assert_eq!(script.tc.lines().count(), 2);
        assert!(script.tc.contains("rate 200000000bit burst 10000 limit 141072"));
        assert!(fabric(&layout, |_| nic(0, 400), &[10, 11]).tc.is_empty());
        let gateway = layout.gateways().next().unwrap();
        let script = host(&layout, nic(200, 400), gateway, false);
        assert!(script.ip.contains("gso_max_size 9000"));
        assert_eq!(script.tc.lines().count(), 2);
        assert!(script.tc.contains("limit 1524000"), "a host keeps 1,000 packets: {}", script.tc);
    }

    #[test]
    fn a_listener_is_seen_and_its_absence_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        assert!(listens(address));
        assert!(!listens(SocketAddrV4::new(Ipv4Addr::new(127, 9, 9, 9), port)));
        drop(listener);
        assert!(!listens(address));
    }
}
