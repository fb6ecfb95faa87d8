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
    assert_eq!(site.gateways[0].listen, "[::]:7700");
    assert_eq!(site.gateways[0].memory, 256 << 20);
    assert_eq!((site.gateways[0].links, site.gateways[0].meeting), (Links::ByRoundTrip, true));
    assert_eq!(site.gateways[0].page, None);
    assert_eq!(site.starter, Starter::Local);
    assert_eq!(site.fingerprint.to_string(), FINGERPRINT);
    assert_eq!(site.memory, Memory::Node);
}

#[test]
fn every_field_is_read() {
    let text = file(
        "key = \"a.key\"\nnext = \"sha256:1111111111111111111111111111111111111111111111111111111111111111\"\nmemory = \"/run/pool\"\nfabric = \"verbs;ofi_rxm\"\nlibfabric = \"/opt/libfabric.so.1\"\n[[site.gateway]]\nname = \"gw1\"\nadvertise = \"h:1\"\ninside = \"i:2\"\nlisten = \"0.0.0.0:3\"\n\
         memory = \"64MiB\"\nlinks = 4\nmeeting = false\npage = \"[::1]:7780\"\n[[site.node]]\nname = \"n1\"\naddress = \"10.0.0.1\"\nslots = 8\n\
         [site.starter]\nkind = \"ssh\"\nuser = \"u\"\nport = 22\nidentity = \"id\"\noptions = [\"-J\", \"login\"]\n\
         landbridge = \"/opt/landbridge\"\n",
    );
    let sites = SitesFile::parse(&text, "x.toml").unwrap();
    let site = &sites.sites[0];
    assert_eq!(site.key.as_deref(), Some("a.key"));
    assert_eq!(site.memory, Memory::Pool("/run/pool".into()));
    let gateway = &site.gateways[0];
    assert_eq!((gateway.inside.as_str(), gateway.memory, gateway.links), ("i:2", 64 << 20, Links::Fixed(4)));
    assert_eq!(gateway.page, Some("[::1]:7780".parse().unwrap()));
    assert!(!gateway.meeting);
    let keys = site.keys();
    assert!(keys.accept(Some(site.fingerprint)) && keys.accept(Some(Fingerprint([0x11; 32]))));
    assert!(!keys.accept(None) && !keys.accept(Some(Fingerprint([0x12; 32]))));
    assert_eq!(site.nodes[0].slots, Some(8));
    let fabric = Fabric { provider: "verbs;ofi_rxm".into(), library: Some("/opt/libfabric.so.1".into()) };
    assert_eq!(site.fabric, Some(fabric));
    let ssh = Ssh {
        user: Some("u".into()),
        port: Some(22),
        identity: Some("id".into()),
        options: vec!["-J".into(), "login".into()],
        landbridge: Some("/opt/landbridge".into()),
    };
    assert_eq!(site.starter, Starter::Ssh(ssh));
}

#[test]
fn wrong_entries_are_named() {
    let gateway = |line: &str| file(&REST.replace("[[site.node]]", &format!("{line}\n[[site.node]]")));
    let starter = |kind: &str, line: &str| file(REST) + &format!("[site.starter]\nkind = \"{kind}\"\n{line}\n");
    for (text, expected) in [
        (String::new(), "x.toml: site: a sites file needs at least one"),
        (file(""), "x.toml: site a: needs at least one [[site.gateway]]"),
        (file(&format!("fabric = \"\"\n{REST}")), "x.toml: site a: fabric: `` is not a libfabric provider"),
        (file(&format!("fabric = \"landbridge\"\n{REST}")), "fabric: `landbridge` is not a libfabric provider"),
        (file(&format!("libfabric = \"/x\"\n{REST}")), "libfabric: `/x` has no effect without `fabric`"),
        (file(&format!("fabric = \"tcp\"\nlibfabric = \"x\"\n{REST}")), "libfabric: `x` is not an absolute path"),
        (
            file(&format!("fabric = \"shm\"\n{REST}[[site.node]]\nname = \"n2\"\n")),
            "fabric: `shm` reaches no other node, and this site has 2",
        ),
        (
            file(&format!("inside = \"encrypted\"\nfabric = \"verbs\"\n{REST}")),
            "x.toml: site a: inside: `encrypted` cannot be combined with `fabric` = `verbs`",
        ),
        (file(&format!("inside = \"10.0.0.1:7700\"\n{REST}")), "site a: inside: `10.0.0.1:7700` is neither"),
        (gateway("inside = \"encrypted\""), "gateway gw1: inside: `encrypted` belongs to the [[site]], above"),
        (gateway("memory = \"1KiB\""), "x.toml: site a: gateway gw1: memory: `1KiB` is less than"),
        (gateway("memory = \"lots\""), "site a: gateway gw1: memory: `lots` is not a size"),
        (gateway("inside = \"nohost\""), "site a: gateway gw1: inside: `nohost` is not host:port"),
        (gateway("inside = \"h h:1\""), "site a: gateway gw1: inside: `h h:1` is not host:port"),
        (gateway("inside = \"$(id):1\""), "site a: gateway gw1: inside: `$(id):1` is not host:port"),
        (gateway("inside = \"-oX:1\""), "site a: gateway gw1: inside: `-oX:1` is not host:port"),
        (gateway("inside = \":1\""), "site a: gateway gw1: inside: `:1` is not host:port"),
        (file(&REST.replace("198.18.1.1", "a/b")), "site a: gateway gw1: advertise: `a/b:7700` is not host:port"),
        (gateway("listen = \"gw.example:7700\""), "gateway gw1: listen: `gw.example:7700` is not an IP address and"),
        (gateway("listen = \"0.0.0.0:0\""), "gateway gw1: listen: `0.0.0.0:0` is not an IP address and a port"),
        (file(&format!("key = \"\"\n{REST}")), "x.toml: site a: key: `` is not a path"),
        (gateway("links = 0"), "links: `0` is not between"),
        (
            gateway("inside = \"2001:db8::7:7700\""),
            "`2001:db8::7:7700` is not host:port: an IPv6 address is in brackets",
        ),
        (
            file(&REST.replace("198.18.1.1:", "[fe80::1%eth0]:")),
            "gateway gw1: advertise: `[fe80::1%eth0]:7700` is not host:port",
        ),
        (file(REST) + "address = \"fe80::1\"\n", "site a: node n1: address: `fe80::1` is link-local"),
        (
            gateway("page = \"0.0.0.0:7780\""),
            "x.toml: site a: gateway gw1: page: `0.0.0.0:7780` is not an address and port that only this machine \
             reaches",
        ),
        (gateway("page = \"198.18.1.1:7780\""), "page: `198.18.1.1:7780` is not"),
        (gateway("page = \"127.0.0.1:0\""), "such as 127.0.0.1:7780; to open it from elsewhere: ssh -L 7780:127.0.0.1"),
        (gateway("page = \"7780\""), "page: `7780` is not"),
        (gateway("lniks = 2"), "unknown field `lniks`"),
        (file(&format!("memory = \"pool\"\n{REST}")), "x.toml: site a: memory: `pool` is neither the absolute path"),
        (file(REST).replace("sha256:00", "sha256:zz"), "is not a fingerprint"),
        (file(REST).replace("\"a\"", "\"a b\""), "`a b` is not a name"),
        (file(REST).replace("\"a\"", "\"-x\""), "`-x` is not a name: letters, digits, `.`, `_` and `-`, at most 64, a"),
        (file(REST).replace("\"a\"", "\"..\""), "`..` is not a name"),
        (file(REST).replace("\"n1\"", "\"-x\""), "site a: node name: `-x` is not a name"),
        (format!("{}{}", file(REST), file(REST)), "site: `a` appears twice"),
        (file(REST) + "slots = 0\n", "site a: node n1: slots: 0 slots"),
        (starter("pigeon", ""), "unknown variant `pigeon`"),
        (file(&REST.replace("[[site.node]]\nname = \"n1\"\n", "")), "site a: needs at least one [[site.node]]"),
        (starter("slurm", ""), "site a: node n1: a site with this starter gets its nodes from batch jobs"),
        (starter("slurm", "time = \"\""), "site a: starter: time: `` is not a single word"),
        (starter("local", "via = []"), "unknown field `via`"),
        (starter("ssh", "prot = 1"), "unknown field `prot`"),
        (starter("ssh", "port = 0"), "site a: starter: port: `0` is not a port"),
        (starter("ssh", "user = \"a b\""), "site a: starter: user: `a b` is not the name"),
        (file(&format!("ssh = \"\"\n{REST}")), "x.toml: site a: ssh: `` is not [USER@]HOST[:PORT]"),
        (file(&format!("ssh = \"-oX\"\n{REST}")), "x.toml: site a: ssh: `-oX` is not [USER@]HOST[:PORT]"),
        (file(&format!("folder = \"a/b\"\n{REST}")), "x.toml: site a: folder: `a/b` must begin with / or ~/"),
        (file(&format!("folder = \"/a\\nb\"\n{REST}")), "has a control character in it"),
        (starter("ssh", "identity = \"\""), "site a: starter: identity: `` is not a path"),
        (starter("template", ""), "missing field `command`"),
        (starter("template", "command = []"), "site a: starter: command: is empty"),
        (
            starter("template", "command = [\"x\", \"{nodes}\"]"),
            "unknown placeholder `{nodes}` in `{nodes}`; there are {node}",
        ),
        (starter("template", "command = [\"x\", \"{user}@{node}\"]"), "`{user}@{node}` needs `user`"),
        ("[[site]\n".into(), "x.toml: "),
    ] {
        let error = SitesFile::parse(&text, "x.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n  should contain: {expected}");
    }
}

#[test]
fn the_nodes_of_a_batch_system_are_not_in_the_file() {
    let nodeless = REST.replace("[[site.node]]\nname = \"n1\"\n", "");
    let text = file(&nodeless) + "[site.starter]\nkind = \"slurm\"\npartition = \"p\"\noptions = [\"--exclusive\"]\n";
    let sites = SitesFile::parse(&text, "x.toml").unwrap();
    let slurm = Slurm { partition: Some("p".into()), options: vec!["--exclusive".into()], ..Slurm::default() };
    assert_eq!(sites.sites[0].starter, Starter::Slurm(slurm));
    for kind in ["pbs", "gridengine"] {
        let starter = format!("[site.starter]\nkind = \"{kind}\"\nuser = \"u\"\n");
        assert!(SitesFile::parse(&(file(&nodeless) + &starter), "x.toml").unwrap().sites[0].starter.allocates());
        let error = SitesFile::parse(&(file(REST) + &starter), "x.toml").unwrap_err().to_string();
        assert!(error.contains("node"), "{kind}: {error}");
    }
}
