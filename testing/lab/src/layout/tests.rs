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
    let layout = LabLayout { sites: 1, nodes: 1, gateways: 1, ground: Ground::Ranges, families: Default::default() };
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
