use super::*;

fn address(port: u16) -> Address {
    Address::standalone(SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, port)))
}

#[test]
fn numbers_are_reused_and_the_lowest_names_a_sender() {
    let mut table = AddressTable::default();
    assert_eq!([1, 2, 1, 3].map(|port| table.insert(address(port))), [0, 1, 2, 3]);
    assert_eq!(table.numbers[&address(1)], [0, 2]);
    assert!(table.remove(0));
    assert!(!table.remove(0), "already removed");
    assert!(!table.remove(u64::MAX), "never there");
    assert_eq!(table.numbers[&address(1)], [2]);
    assert_eq!(table.insert(address(4)), 0);
    assert_eq!(table.insert(address(1)), 4);
    assert!(table.remove(2) && table.remove(4));
    assert!(!table.numbers.contains_key(&address(1)));
}

#[test]
fn symmetric_names_count_up() {
    assert_eq!(symmetric("node09", 2).as_deref(), Some("node11"));
    assert_eq!(symmetric("7000", 3).as_deref(), Some("7003"));
    assert_eq!(symmetric("10.0.0.255", 1).as_deref(), Some("10.0.1.0"));
    assert_eq!(symmetric("2001:db8::ff", 1).as_deref(), Some("2001:db8::100"));
    assert_eq!(symmetric("localhost", 0).as_deref(), Some("localhost"));
    assert_eq!(symmetric("localhost", 1), None);
}

#[test]
fn names_resolve_to_both_families() {
    let resolve = |node, service| resolve(node, service, IpAddr::from([127, 0, 0, 1]));
    assert_eq!(resolve("127.0.0.1", "80"), "127.0.0.1:80".parse().ok());
    assert_eq!(resolve("127.0.0.1", ""), "127.0.0.1:0".parse().ok());
    assert_eq!(resolve("127.0.0.1", "70000"), None);
    assert_eq!(resolve("::1", "80"), "[::1]:80".parse().ok());
    assert_eq!(resolve("[::1]", "80"), "[::1]:80".parse().ok());
    assert_eq!(resolve("::ffff:127.0.0.1", "80"), "127.0.0.1:80".parse().ok());
    assert_eq!(resolve("fe80::1", "80"), None);
}
