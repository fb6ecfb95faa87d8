//! Names and addresses of a lab's hosts, and the files made from them. Pure.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::options::{Families, LabOptions};

/// The port of every gateway.
pub(crate) const GATEWAY_PORT: u16 = 7700;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostRole {
    Node,
    Gateway,
}

/// One machine of the lab. `site` counts from 0, `index` from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Host {
    pub site: usize,
    pub role: HostRole,
    pub index: usize,
}

pub(crate) fn site_name(site: usize) -> char {
    char::from(b'a' + site as u8)
}

impl Host {
    /// The name inside its site: `n1`, `gw1`.
    pub(crate) fn short_name(self) -> String {
        match self.role {
            HostRole::Node => format!("n{}", self.index),
            HostRole::Gateway => format!("gw{}", self.index),
        }
    }

    /// The host name: `a-n1`, `a-gw1`.
    pub(crate) fn name(self) -> String {
        format!("{}-{}", site_name(self.site), self.short_name())
    }

    /// The last byte of the LAN address: gateways come after 100 nodes.
    fn number(self) -> u8 {
        match self.role {
            HostRole::Node => self.index as u8,
            HostRole::Gateway => 100 + self.index as u8,
        }
    }

    fn site_number(self) -> u8 {
        self.site as u8 + 1
    }

    /// The name of this host's port on the site's switch.
    pub(crate) fn lan_port(self) -> String {
        format!("l-{}", self.name())
    }

    pub(crate) fn wan_port(self) -> String {
        format!("w-{}", self.name())
    }

    pub(crate) fn lan_mac(self) -> [u8; 6] {
        [0x02, b'L', b'b', self.site_number(), 0, self.number()]
    }

    pub(crate) fn wan_mac(self) -> [u8; 6] {
        [0x02, b'L', b'w', self.site_number(), 0, self.number()]
    }

    /// The WAN addresses, IPv4 and IPv6; only gateways have them.
    fn wans(self) -> [IpAddr; 2] {
        let (site, index) = (self.site_number(), self.index as u8);
        let ipv6 = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, site.into(), index.into());
        [Ipv4Addr::new(198, 18, site, index).into(), ipv6.into()]
    }
}

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The source of a lab's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    /// Namespaces, one private range per site.
    Ranges,
    /// Namespaces, the same private range at every site.
    SameRange,
    /// 127.S.`lab`.N on this machine.
    Loopback { lab: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LabLayout {
    pub sites: usize,
    pub nodes: usize,
    pub gateways: usize,
    pub ground: Ground,
    /// The address families of each site; entries beyond the last site repeat its families.
    pub families: [Families; MOST_SITES],
}

/// The most sites of a lab: one for each letter.
pub(crate) const MOST_SITES: usize = 26;

impl LabLayout {
    pub(crate) fn new(options: &LabOptions, loopback: Option<u8>) -> LabLayout {
        let ground = match loopback {
            Some(lab) => Ground::Loopback { lab },
            None if options.same_range => Ground::SameRange,
            None => Ground::Ranges,
        };
        LabLayout {
            sites: options.sites,
            nodes: options.nodes,
            gateways: options.gateways,
            ground,
            families: std::array::from_fn(|site| options.families(site)),
        }
    }

    pub(crate) fn gateways_of(&self, site: usize) -> impl Iterator<Item = Host> + use<> {
        (1..=self.gateways).map(move |index| Host { site, role: HostRole::Gateway, index })
    }

    pub(crate) fn nodes_of(&self, site: usize) -> impl Iterator<Item = Host> + use<> {
        (1..=self.nodes).map(move |index| Host { site, role: HostRole::Node, index })
    }

    pub(crate) fn hosts_of(&self, site: usize) -> impl Iterator<Item = Host> + use<> {
        self.nodes_of(site).chain(self.gateways_of(site))
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = Host> + use<> {
        let layout = *self;
        (0..self.sites).flat_map(move |site| layout.hosts_of(site))
    }

    /// Every gateway of the lab.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = Host> + use<> {
        let layout = *self;
        (0..self.sites).flat_map(move |site| layout.gateways_of(site))
    }

    /// True if a host of the lab has an IPv6 address.
    pub(crate) fn any_ipv6(&self) -> bool {
        (0..self.sites).any(|site| self.families[site].ipv6())
    }

    /// The addresses inside the site, one per address family of the site.
    pub(crate) fn lans(&self, host: Host) -> Vec<IpAddr> {
        let ipv4 = match self.ground {
            Ground::Ranges => Ipv4Addr::new(10, host.site_number(), 0, host.number()),
            Ground::SameRange => Ipv4Addr::new(10, 0, 0, host.number()),
            Ground::Loopback { lab } => Ipv4Addr::new(127, host.site_number(), lab, host.number()),
        };
        let range = if self.ground == Ground::SameRange { 0 } else { host.site_number().into() };
        let ipv6 = Ipv6Addr::new(0x2001, 0xdb8, 0, range, 0, 0, 0, host.number().into());
        chosen(self.families[host.site], [ipv4.into(), ipv6.into()])
    }

    /// The first address inside the site.
    pub(crate) fn lan(&self, host: Host) -> IpAddr {
        self.lans(host)[0]
    }

    /// A gateway's addresses on the WAN, one for each family that any site has.
    pub(crate) fn wans(&self, gateway: Host) -> Vec<IpAddr> {
        let has = |family: fn(Families) -> bool| (0..self.sites).any(|site| family(self.families[site]));
        let families = match (has(Families::ipv4), has(Families::ipv6)) {
            (_, false) => Families::Ipv4,
            (false, true) => Families::Ipv6,
            (true, true) => Families::Both,
        };
        chosen(families, gateway.wans())
    }

    /// The address at which the site's own ranks reach this gateway.
    pub(crate) fn inside(&self, gateway: Host) -> String {
        match self.families[gateway.site] {
            Families::Both => format!("{}:{GATEWAY_PORT}", gateway.name()),
            _ => SocketAddr::new(self.lan(gateway), GATEWAY_PORT).to_string(),
        }
    }

    fn advertise(&self, gateway: Host) -> SocketAddr {
        match self.ground {
            Ground::Loopback { .. } => self.listen(gateway),
            // Sites with one family are dialled by it, sites with both by IPv6.
            _ => {
                SocketAddr::new(chosen(self.families[gateway.site], gateway.wans()).pop().unwrap_or(ANY), GATEWAY_PORT)
            }
        }
    }

    pub(crate) fn listen(&self, gateway: Host) -> SocketAddr {
        match self.ground {
            Ground::Loopback { .. } => SocketAddr::new(self.lan(gateway), GATEWAY_PORT),
            _ if self.any_ipv6() => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), GATEWAY_PORT),
            _ => SocketAddr::new(ANY, GATEWAY_PORT),
        }
    }

    /// `/etc/hosts` of one site; it contains no names of other sites.
    pub(crate) fn hosts_file(&self, site: usize) -> String {
        let mut text = String::from("127.0.0.1 localhost\n");
        if self.families[site].ipv6() {
            text.push_str("::1 localhost\n");
        }
        for host in self.hosts_of(site) {
            for address in self.lans(host) {
                let _ = writeln!(text, "{address} {} {}", host.name(), host.short_name());
            }
        }
        text
    }

    /// The sites file. `fingerprints` has one entry per site; `program` is this program's path.
    pub(crate) fn sites_file(&self, fingerprints: &[String], program: &Path, options: &LabOptions) -> String {
        let (memory, pool) = (&options.gateway_memory, options.pool.as_deref());
        let links = options.links.map_or(String::new(), |links| format!("links = {links}\n"));
        let mut text = String::new();
        for (site, fingerprint) in fingerprints.iter().enumerate() {
            let name = site_name(site);
            let _ =
                writeln!(text, "[[site]]\nname = \"{name}\"\nkey = \"{name}.key\"\nfingerprint = \"{fingerprint}\"");
            if let Some(pool) = pool {
                let _ = writeln!(text, "memory = {}", quoted(&pool.to_string_lossy()));
            }
            text.push('\n');
            for gateway in self.gateways_of(site) {
                let _ = writeln!(
                    text,
                    "[[site.gateway]]\nname = \"{}\"\nadvertise = \"{}\"\ninside = \"{}\"\nlisten = \"{}\"\nmemory \
                     = {}\n{links}",
                    gateway.short_name(),
                    self.advertise(gateway),
                    self.inside(gateway),
                    self.listen(gateway),
                    quoted(memory),
                );
            }
            for node in self.nodes_of(site) {
                let _ = writeln!(text, "[[site.node]]\nname = \"{}\"", node.short_name());
                // With both families the address is left out: it is the one from which the node reaches its gateway.
                let _ = match self.families[site] {
                    Families::Both => writeln!(text),
                    _ => writeln!(text, "address = \"{}\"\n", self.lan(node)),
                };
            }
            let _ = match self.ground {
                Ground::Loopback { .. } => writeln!(text, "[site.starter]\nkind = \"local\"\n"),
                _ => {
                    let program = quoted(&program.to_string_lossy());
                    let command = format!("{program}, \"lab\", \"enter\", \"{name}-{{node}}\", \"--\"");
                    writeln!(text, "[site.starter]\nkind = \"template\"\ncommand = [{command}]\n")
                }
            };
        }
        text
    }
}

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The addresses of these families, out of an IPv4 and an IPv6 address.
fn chosen(families: Families, [ipv4, ipv6]: [IpAddr; 2]) -> Vec<IpAddr> {
    match families {
        Families::Ipv4 => vec![ipv4],
        Families::Ipv6 => vec![ipv6],
        Families::Both => vec![ipv4, ipv6],
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests;
