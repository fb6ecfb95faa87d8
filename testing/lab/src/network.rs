//! The `ip` and `tc` commands that wire a lab, as text, and their execution.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::LabError;
use crate::layout::{Host, HostRole, LabLayout, mac_text, site_name};
use crate::units::Rate;

/// The commands for one network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Script {
    pub ip: String,
    pub tc: String,
}

/// The shaping of a network interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nic {
    pub rate: Rate,
    /// Size of its token bucket, as time at its rate. A real network card never sends faster than its rate. With larger
    /// buckets short messages arrive at once, and BBR took the rate it measured there (50 to 200 times the card's) for
    /// the rate of the path. If no core is free, the interface catches up afterwards, at most by its bucket.
    pub burst: Duration,
}

impl Nic {
    fn is_shaped(self) -> bool {
        self.rate != Rate::UNLIMITED
    }

    /// The bucket in bytes, at least two packets and at most 4 MB.
    fn burst_bytes(self) -> u64 {
        let burst_ns = self.burst.as_nanos().try_into().unwrap_or(u64::MAX);
        self.rate.bytes(burst_ns).clamp(2 * 1514, 4_000_000)
    }

    /// The queue limit in bytes: 5 ms at the rate, at least `least`, plus the bucket.
    fn limit_bytes(self, least: u64) -> u64 {
        self.rate.bytes(5_000_000).max(least) + self.burst_bytes()
    }

    /// The largest super-packet: one larger than the bucket would be cut in software before tbf, which is slower.
    fn most_at_once(self) -> u64 {
        (self.burst_bytes() - self.burst_bytes() / 10).min(65_536)
    }
}

/// Buffer of a port of a plain switch. A smaller one drops the first burst of every connection, which then waits for
/// TCP's timer.
const PORT_BYTES: u64 = 128 << 10;
/// Linux's queue before a network card: 1,000 packets (`txqueuelen`). A host does not lose its own packets where a
/// switch port would.
const CARD_BYTES: u64 = 1000 * 1514;

fn shape(tc: &mut String, device: &str, nic: Nic, least: u64) {
    if nic.is_shaped() {
        let (rate, burst, limit) = (nic.rate.0, nic.burst_bytes(), nic.limit_bytes(least));
        let _ = writeln!(tc, "qdisc add dev {device} root tbf rate {rate}bit burst {burst} limit {limit}");
    }
}

/// The switches and the cables, in the namespace that holds them. `pids` has one entry per host of the layout.
pub(crate) fn fabric(layout: &LabLayout, nic: impl Fn(Host) -> Nic, pids: &[u32]) -> Script {
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
        if host.role == HostRole::Gateway {
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

/// The commands inside one host: addresses, neighbours (so that no test waits for ARP or neighbour discovery) and, with
/// `route_directly`, routes.
pub(crate) fn host(layout: &LabLayout, nic: Nic, host: Host, route_directly: bool) -> Script {
    let mut script = Script { ip: "link set lo up\n".to_owned(), tc: String::new() };
    let mut device = |name: &str, addresses: Vec<String>, neighbours: Vec<(String, [u8; 6])>| {
        for address in addresses {
            // No other host has this address, and detecting duplicates takes a second.
            let nodad = if address.contains(':') { " nodad" } else { "" };
            let _ = writeln!(script.ip, "addr add {address} dev {name}{nodad}");
        }
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
    let neighbours = |addresses: Vec<IpAddr>, mac: [u8; 6]| addresses.into_iter().map(move |at| (at.to_string(), mac));
    let with_mask = |address: IpAddr, bits: u8| format!("{address}/{}", if address.is_ipv4() { bits } else { 64 });
    let on_lan = others.flat_map(|other| neighbours(layout.lans(other), other.lan_mac())).collect();
    device("eth0", layout.lans(host).into_iter().map(|address| with_mask(address, 24)).collect(), on_lan);
    if host.role == HostRole::Gateway {
        let others = layout.gateways().filter(|other| other.site != host.site);
        let on_wan = others.flat_map(|other| neighbours(layout.wans(other), other.wan_mac())).collect();
        device("wan0", layout.wans(host).into_iter().map(|address| with_mask(address, 15)).collect(), on_wan);
    }
    if route_directly {
        match host.role {
            HostRole::Node => {
                let gateway = Host { site: host.site, role: HostRole::Gateway, index: 1 };
                let _ = writeln!(script.ip, "route add default via {} dev eth0", layout.lan(gateway));
            }
            HostRole::Gateway => {
                for site in (0..layout.sites).filter(|site| *site != host.site) {
                    let gateway = Host { site, role: HostRole::Gateway, index: 1 };
                    let range = format!("10.{}.0.0/24", site + 1);
                    let _ = writeln!(script.ip, "route add {range} via {} dev wan0", layout.wans(gateway)[0]);
                }
            }
        }
    }
    script
}

/// Unplugs a host's cable from its site's switch, or plugs it in again. The port stays up, so the host's end keeps its
/// carrier and its routes: packets vanish, and TCP is not notified.
pub(crate) fn cable(host: Host, plugged: bool) -> Script {
    let switch = if plugged { format!("master sw-{}", site_name(host.site)) } else { "nomaster".to_owned() };
    Script { ip: format!("link set {} {switch}\n", host.lan_port()), tc: String::new() }
}

/// Finds a program of iproute2, also in directories that a user's PATH lacks.
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
        // A failure to write means that the program ended early; its stderr below gives the reason.
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

/// True if a TCP socket listens on the port of `address`, there or on every address, in this network namespace.
pub(crate) fn listens(address: SocketAddr) -> bool {
    let port = address.port();
    let any = ["00000000", "00000000000000000000000000000000"];
    let exact = match address.ip() {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    let wanted: Vec<String> = any.into_iter().chain([&*exact]).map(|ip| format!("{ip}:{port:04X}")).collect();
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(table).unwrap_or_default().lines().skip(1).any(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            let state = words.nth(1).unwrap_or_default();
            state == "0A" && wanted.iter().any(|wanted| wanted == local)
        })
    })
}

/// An IP address as the kernel prints it in these tables: 32-bit words in native byte order.
fn words(octets: &[u8]) -> String {
    octets.as_chunks().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::*;
    use crate::layout::Ground;

    fn nic(mbit: u64, burst_us: u64) -> Nic {
        Nic { rate: Rate(mbit * 1_000_000), burst: Duration::from_micros(burst_us) }
    }

    #[test]
    fn only_direct_routing_has_routes() {
        let layout =
            LabLayout { sites: 2, nodes: 1, gateways: 1, ground: Ground::Ranges, families: Default::default() };
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
        let layout =
            LabLayout { sites: 1, nodes: 1, gateways: 1, ground: Ground::Ranges, families: Default::default() };
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
        for (at, elsewhere) in [("127.0.0.1", "127.9.9.9"), ("[::1]", "[2001:db8::1]"), ("[::]", "")] {
            let listener = TcpListener::bind(format!("{at}:0")).unwrap();
            let address = listener.local_addr().unwrap();
            assert!(listens(address));
            if !elsewhere.is_empty() {
                assert!(!listens(format!("{elsewhere}:{}", address.port()).parse().unwrap()));
            }
            drop(listener);
            assert!(!listens(address));
        }
    }
}
