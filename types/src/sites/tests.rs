use super::*;

const FINGERPRINT: &str = "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn file(site: &str) -> String {
    format!("[[site]]\nname = \"a\"\nfingerprint = \"{FINGERPRINT}\"\n{site}")
}

const REST: &str = "[[site.gateway]]\nname = \"gw1\"\nadvertise = \"198.18.1.1:7700\"\n[[site.node]]\nname = \"n1\"\n";

#[test]
fn the_shortest_file_gets_its_defaults() {
    let sites = SitesFile::parse(&file(REST), "x.toml").unwrap();
    let site = &sites.sites[0];
    assert_eq!(site.gateways[0].inside, "198.18.1.1:7700");
    assert_eq!(site.gateways[0].listen, "0.0.0.0:7700");
    assert_eq!(site.gateways[0].memory, 256 << 20);
    assert_eq!(site.gateways[0].links, 1);
    assert_eq!(site.starter, Starter::Local { via: vec![] });
    assert_eq!(site.fingerprint.to_string(), FINGERPRINT);
}

#[test]
fn every_field_is_read() {
    let text = file(
        "key = \"a.key\"\n[[site.gateway]]\nname = \"gw1\"\nadvertise = \"h:1\"\ninside = \"i:2\"\nlisten = \"0.0.0.0:3\"\n\
         memory = \"64MiB\"\nlinks = 4\n[[site.node]]\nname = \"n1\"\naddress = \"10.0.0.1\"\nslots = 8\n\
         [site.starter]\nkind = \"local\"\nvia = [\"ssh\", \"{node}\"]\n",
    );
    let sites = SitesFile::parse(&text, "x.toml").unwrap();
    let site = &sites.sites[0];
    assert_eq!(site.key.as_deref(), Some("a.key"));
    let gateway = &site.gateways[0];
    assert_eq!((gateway.inside.as_str(), gateway.memory, gateway.links), ("i:2", 64 << 20, 4));
    assert_eq!(site.nodes[0].slots, Some(8));
    assert_eq!(site.starter, Starter::Local { via: vec!["ssh".into(), "{node}".into()] });
}

#[test]
fn wrong_entries_are_named() {
    let gateway = |line: &str| file(&REST.replace("[[site.node]]", &format!("{line}\n[[site.node]]")));
    for (text, expected) in [
        (String::new(), "x.toml: site: a sites file needs at least one"),
        (file(""), "x.toml: site a: needs at least one [[site.gateway]]"),
        (gateway("memory = \"1KiB\""), "x.toml: site a: gateway gw1: memory: `1KiB` is under"),
        (gateway("memory = \"lots\""), "site a: gateway gw1: memory: `lots` is not a size"),
        (gateway("inside = \"nohost\""), "site a: gateway gw1: inside: `nohost` is not host:port"),
        (gateway("links = 0"), "links: `0` is not between"),
        (gateway("lniks = 2"), "unknown field `lniks`"),
        (file(REST).replace("sha256:00", "sha256:zz"), "is not a fingerprint"),
        (file(REST).replace("\"a\"", "\"a b\""), "`a b` is not a name"),
        (format!("{}{}", file(REST), file(REST)), "site: `a` appears twice"),
        (file(REST) + "slots = 0\n", "site a: node n1: slots: 0 slots"),
        (file(REST) + "[site.starter]\nkind = \"pigeon\"\n", "unknown variant `pigeon`"),
        ("[[site]\n".into(), "x.toml: "),
    ] {
        let error = SitesFile::parse(&text, "x.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n  should have said: {expected}");
    }
}
