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
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use super::*;
    use types::sites::Starter;

    fn layout(ground: Ground) -> LabLayout {
        LabLayout { sites: 26, nodes: 100, gateways: 100, ground, families: Default::default() }
    }

    #[test]
    fn names_addresses_and_interfaces_are_unique_and_fit() {
        let layout = layout(Ground::Ranges);
        let mut seen = HashSet::new();
        for host in layout.hosts() {
            assert!(seen.insert(host.name()));
            assert!(seen.insert(layout.lan(host).to_string()));
            assert!(seen.insert(mac_text(host.lan_mac())));
            assert!(seen.insert(mac_text(host.wan_mac())));
            assert!(host.lan_port().len() <= 15, "IFNAMSIZ");
            assert!(host.lan_mac()[0] & 1 == 0, "not a multicast address");
        }
        assert_eq!(layout.hosts().count(), 26 * 200);
    }

    #[test]
    fn a_small_sites_file() {
        let layout =
            LabLayout { sites: 1, nodes: 1, gateways: 1, ground: Ground::Ranges, families: Default::default() };
        let text = layout.sites_file(&["sha256:00".to_owned()], Path::new("/opt/land\"bridge"), &LabOptions::default());
        let expected = r#"[[site]]
name = "a"
key = "a.key"
fingerprint = "sha256:00"

[[site.gateway]]
name = "gw1"
advertise = "198.18.1.1:7700"
inside = "10.1.0.101:7700"
listen = "0.0.0.0:7700"
memory = "256MiB"

[[site.node]]
name = "n1"
address = "10.1.0.1"

[site.starter]
kind = "template"
command = ["/opt/land\"bridge", "lab", "enter", "a-{node}", "--"]

"#;
        assert_eq!(text, expected.replace("land\"bridge", "land\\\"bridge"));
    }

    #[test]
    fn the_sites_file_is_one_that_the_parser_takes() {
        let fingerprints = ["sha256:".to_owned() + &"0a".repeat(32), "sha256:".to_owned() + &"ff".repeat(32)];
        for ground in [Ground::Ranges, Ground::SameRange, Ground::Loopback { lab: 9 }] {
            let layout = LabLayout { sites: 2, nodes: 3, gateways: 2, ground, families: Default::default() };
            let options = LabOptions {
                gateway_memory: "64MiB".into(),
                links: Some(4),
                pool: Some("/run/pool".into()),
                ..LabOptions::default()
            };
            let text = layout.sites_file(&fingerprints, Path::new("/opt/a b\\c\"\n/landbridge"), &options);
            let parsed = types::sites::SitesFile::parse(&text, "sites.toml").unwrap();
            assert_eq!(parsed.names(), "a, b");
            let site = &parsed.sites[1];
            assert_eq!(site.fingerprint.to_string(), fingerprints[1]);
            assert_eq!(site.gateways.len(), 2);
            assert_eq!((site.gateways[1].memory, site.gateways[1].links), (64 << 20, types::sites::Links::Fixed(4)));
            assert_eq!(site.memory, types::sites::Memory::Pool("/run/pool".into()));
            assert_eq!(
                site.nodes[2].address.map(|a| a.to_string()),
                Some(layout.lan(layout.nodes_of(1).nth(2).unwrap()).to_string())
            );
            match (ground, &site.starter) {
                (Ground::Loopback { .. }, starter) => assert_eq!(starter, &Starter::Local),
                (_, Starter::Template(template)) => {
                    assert_eq!(template.command, ["/opt/a b\\c\"\n/landbridge", "lab", "enter", "b-{node}", "--"]);
                }
                (_, other) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn grounds_differ_in_addresses_only() {
        let gateway = Host { site: 1, role: HostRole::Gateway, index: 2 };
        assert_eq!(layout(Ground::Ranges).inside(gateway).to_string(), "10.2.0.102:7700");
        assert_eq!(layout(Ground::SameRange).inside(gateway).to_string(), "10.0.0.102:7700");
        assert_eq!(layout(Ground::Loopback { lab: 3 }).listen(gateway).to_string(), "127.2.3.102:7700");
        assert_eq!(layout(Ground::Ranges).advertise(gateway).to_string(), "198.18.2.2:7700");
        assert!(!layout(Ground::SameRange).hosts_file(0).contains("b-"));
    }

    #[test]
    fn sites_have_the_families_that_they_are_given() {
        let families = vec![Families::Ipv4, Families::Both, Families::Ipv6];
        let options = LabOptions { sites: 4, families, ..LabOptions::default() };
        let layout = LabLayout::new(&options, None);
        let gateway = |site| Host { site, role: HostRole::Gateway, index: 1 };
        let texts: Vec<[String; 3]> = (0..4)
            .map(gateway)
            .map(|host| [layout.inside(host), layout.advertise(host).to_string(), layout.listen(host).to_string()])
            .collect();
        assert_eq!(texts[0], ["10.1.0.101:7700", "198.18.1.1:7700", "[::]:7700"]);
        assert_eq!(texts[1], ["b-gw1:7700", "[2001:db8:ffff::2:1]:7700", "[::]:7700"]);
        assert_eq!(texts[2], ["[2001:db8:0:3::65]:7700", "[2001:db8:ffff::3:1]:7700", "[::]:7700"]);
        assert_eq!(texts[3][0], "[2001:db8:0:4::65]:7700", "the last entry counts for further sites");
        assert_eq!(layout.wans(gateway(0)).len(), 2, "a site with IPv4 can dial the others too");
        let hosts = layout.hosts_file(1);
        assert!(hosts.contains("10.2.0.1 b-n1 n1\n2001:db8:0:2::1 b-n1 n1\n"), "{hosts}");
        let key = "sha256:".to_owned() + &"0a".repeat(32);
        let text = layout.sites_file(&[key.clone(), key.clone(), key.clone(), key], Path::new("/x"), &options);
        let parsed = types::sites::SitesFile::parse(&text, "sites.toml").unwrap();
        assert_eq!(parsed.sites[1].nodes[0].address, None);
        assert_eq!(parsed.sites[2].nodes[0].address, "2001:db8:0:3::1".parse().ok());
    }
}
