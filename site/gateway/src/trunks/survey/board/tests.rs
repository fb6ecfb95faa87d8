use std::collections::BTreeMap;

use super::*;

fn name(site: &str, gateway: &str) -> GatewayName {
    GatewayName { site: site.into(), gateway: gateway.into() }
}

fn sites(counts: &[(&str, usize)]) -> Vec<(String, Vec<String>)> {
    let gateways = |count: usize| (1..=count).map(|number| format!("gw{number}")).collect();
    counts.iter().map(|(site, count)| ((*site).to_owned(), gateways(*count))).collect()
}

fn rate(bytes_s: u64, at_ms: i64) -> Option<RowRate> {
    Some(RowRate { bytes_s, at_ms, active: false })
}

fn row(milliseconds: u64, bytes_s: u64, at_ms: i64) -> Row {
    Row { round_trip: Some(Duration::from_millis(milliseconds)), rate: rate(bytes_s, at_ms) }
}

/// Gateways that send each other their news once a second over trunks with a delay.
struct Net {
    boards: BTreeMap<GatewayName, Board>,
    now_ms: i64,
    /// Messages in flight: time of arrival, receiver, sender, message.
    flying: Vec<(i64, GatewayName, GatewayName, LinksMessage)>,
    messages: usize,
    rows: usize,
}

const DELAY_MS: i64 = 150;

impl Net {
    fn new(counts: &[(&str, usize)]) -> Net {
        let all = sites(counts);
        let names = all.iter().flat_map(|(site, gateways)| gateways.iter().map(|gateway| name(site, gateway)));
        let boards = names.map(|own| (own.clone(), Board::new(own, all.clone()))).collect();
        Net { boards, now_ms: 0, flying: Vec::new(), messages: 0, rows: 0 }
    }

    fn run(&mut self, seconds: usize) {
        for _ in 0..seconds * 10 {
            self.now_ms += 100;
            let (due, left): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.flying).into_iter().partition(|(at, ..)| *at <= self.now_ms);
            self.flying = left;
            for (_, to, from, message) in due {
                let LinksMessage::Figures { version, rows } = message else { panic!("{message:?}") };
                self.boards.get_mut(&to).unwrap().take(&from, version, rows, self.now_ms).unwrap();
            }
            if self.now_ms % 1000 == 0 {
                let names: Vec<GatewayName> = self.boards.keys().cloned().collect();
                for from in &names {
                    for to in names.iter().filter(|to| to.site != from.site) {
                        if let Some(message) = self.boards.get_mut(from).unwrap().news(to, self.now_ms) {
                            let LinksMessage::Figures { rows, .. } = &message else { panic!("{message:?}") };
                            (self.messages, self.rows) = (self.messages + 1, self.rows + rows.len());
                            self.flying.push((self.now_ms + DELAY_MS, to.clone(), from.clone(), message));
                        }
                    }
                }
            }
        }
    }

    fn measured(&mut self, from: &GatewayName, to: &GatewayName, row: Row) {
        self.boards.get_mut(from).unwrap().measured(to, row);
    }

    /// The figures of a pair, which are the same on all boards except for ages.
    fn pair(&self, from: &str, to: &str) -> PathFigures {
        let mut known: Vec<PathFigures> = self.boards.values().map(|board| board.pair(from, to)).collect();
        let first = known.pop().unwrap();
        for other in known {
            assert_eq!(other.round_trip, first.round_trip, "{from} to {to}");
            assert_eq!(other.rate.map(|rate| rate.bytes_s), first.rate.map(|rate| rate.bytes_s), "{from} to {to}");
            let (one, two) = (other.age_ms(self.now_ms), first.age_ms(self.now_ms));
            assert!(one.unwrap_or(0).abs_diff(two.unwrap_or(0)) <= AGAIN_MS as u64 + 1000, "{one:?} {two:?}");
        }
        first
    }
}

#[test]
fn every_gateway_learns_all_pairs_and_changes_only_are_sent() {
    let mut net = Net::new(&[("a", 2), ("b", 2), ("c", 1)]);
    let names: Vec<GatewayName> = net.boards.keys().cloned().collect();
    let of = |from: &GatewayName, to: &GatewayName| {
        let number =
            |name: &GatewayName| u64::from(name.site.as_bytes()[0] - b'a') * 2 + u64::from(name.gateway == "gw2");
        row(10 * (number(from) + 1), 1_000_000 * (number(from) * 5 + number(to) + 1), 0)
    };
    for from in &names {
        for to in names.iter().filter(|to| to.site != from.site) {
            net.measured(from, to, of(from, to));
        }
    }
    net.run(5);
    // Each gateway with the one of the same number: a/gw1 to b/gw1 (numbers 0 and 2), a/gw2 to b/gw2 (1 and 3).
    let pair = net.pair("a", "b");
    assert_eq!(pair.rate.map(|rate| rate.bytes_s), Some((2 + 1) * 1_000_000 + (5 + 3 + 1) * 1_000_000));
    assert_eq!(pair.round_trip, Some(Duration::from_millis(10)), "the shortest");
    // Without a partner: a/gw1 and a/gw2 both use c's only gateway.
    assert_eq!(net.pair("a", "c").rate.map(|rate| rate.bytes_s), Some((4 + 1) * 1_000_000 + (5 + 4 + 1) * 1_000_000));
    assert_eq!(net.pair("c", "a").rate.map(|rate| rate.bytes_s), Some((20 + 1) * 1_000_000));
    assert_eq!(net.pair("a", "a"), PathFigures::default());
    assert_eq!(net.pair("a", "x"), PathFigures::default());
    let (messages, rows) = (net.messages, net.rows);
    net.run(60);
    assert_eq!((net.messages, net.rows), (messages, rows), "nothing has changed");

    let (from, to) = (name("b", "gw2"), name("a", "gw2"));
    let before = of(&from, &to);
    let changed = |part: f64| {
        let bytes_s = (before.rate.unwrap().bytes_s as f64 * part) as u64;
        Row { rate: rate(bytes_s, 60_000), ..before }
    };
    net.measured(&from, &to, Row { rate: rate(changed(1.1).rate.unwrap().bytes_s, 0), ..before });
    net.run(3);
    assert_eq!(net.rows, rows, "less than 15 % is not sent");
    net.measured(&from, &to, changed(1.2));
    net.run(3);
    // To the three gateways of other sites. Of these, a/gw2, the trunk's other end, forwards it to b/gw2's sibling.
    assert_eq!(net.rows, rows + 3 + 1);
    assert_eq!(net.pair("b", "a").rate.map(|rate| rate.bytes_s), Some(11_000_000 + changed(1.2).rate.unwrap().bytes_s));
    net.run(30);
    assert_eq!(net.rows, rows + 4);
}

#[test]
fn what_is_measured_again_stays_fresh_everywhere() {
    let mut net = Net::new(&[("a", 1), ("b", 1), ("c", 1)]);
    let (a, b) = (name("a", "gw1"), name("b", "gw1"));
    for _ in 0..100 {
        net.measured(&a, &b, row(10, 5_000_000, net.now_ms));
        net.run(1);
    }
    let age = net.boards[&name("c", "gw1")].pair("a", "b").age_ms(net.now_ms).unwrap();
    assert!(age <= AGAIN_MS as u64 + 1000, "{age} ms");
    assert!(net.messages <= 2 * (100_000 / AGAIN_MS as usize + 1), "{} messages", net.messages);
    net.run(299);
    assert!(net.pair("a", "b").is_stale(net.now_ms));
    assert_eq!(net.pair("a", "b").rate.map(|rate| rate.bytes_s), Some(5_000_000), "the last value is kept");
}

#[test]
fn a_restarted_gateway_learns_everything_again() {
    let mut net = Net::new(&[("a", 1), ("b", 1)]);
    let (a, b) = (name("a", "gw1"), name("b", "gw1"));
    net.measured(&a, &b, row(10, 5_000_000, 0));
    net.measured(&b, &a, row(10, 6_000_000, 0));
    net.run(2);
    *net.boards.get_mut(&b).unwrap() = Board::new(b.clone(), sites(&[("a", 1), ("b", 1)]));
    net.boards.get_mut(&a).unwrap().restarted(&b);
    net.measured(&b, &a, row(10, 9_000_000, net.now_ms));
    net.run(2);
    assert_eq!(net.pair("a", "b").rate.map(|rate| rate.bytes_s), Some(5_000_000));
    assert_eq!(net.pair("b", "a").rate.map(|rate| rate.bytes_s), Some(9_000_000));
}

fn stated(from: &GatewayName, to: &GatewayName, rtt_us: u64, bytes_s: u64) -> LinkRow {
    let rate = Some(RateRow { bytes_s, age_ms: 0, active: false });
    LinkRow { from: from.clone(), to: to.clone(), rtt_us: Some(rtt_us), rate }
}

#[test]
fn a_site_speaks_for_its_own_trunks_only() {
    let all = sites(&[("a", 2), ("b", 2), ("c", 1)]);
    let (a1, a2, b1, b2, c) =
        (name("a", "gw1"), name("a", "gw2"), name("b", "gw1"), name("b", "gw2"), name("c", "gw1"));
    let fresh = || Board::new(a1.clone(), all.clone());
    let take = |board: &mut Board, from: &GatewayName, to: &GatewayName| {
        let version = board.peers.get(&b1).map_or(1, |peer| peer.version + 1);
        board.take(&b1, version, vec![stated(from, to, 1000, 5_000_000)], 0)
    };
    for (from, to) in [(&b1, &a1), (&b1, &c), (&b1, &a2), (&a2, &b1)] {
        let mut board = fresh();
        take(&mut board, from, to).unwrap();
        assert_eq!(board.pair(&from.site, &to.site).rate.map(|rate| rate.bytes_s), Some(5_000_000), "{from:?} {to:?}");
    }
    // Rows of another gateway of its site, of another site, of this gateway, and of a sibling's trunk to another
    // gateway.
    for (from, to) in [(&b2, &a1), (&c, &b1), (&c, &a1), (&a1, &b1), (&a1, &c), (&a2, &c), (&a2, &b2)] {
        let mut board = fresh();
        let error = take(&mut board, from, to).unwrap_err().to_string();
        assert!(error.contains("gateway gw1 of site b may not speak for"), "{error}");
        assert_eq!(board.pairs().count(), 0);
    }
}

#[test]
fn figures_that_cannot_be_right_are_ignored_and_bounded() {
    let all = sites(&[("a", 1), ("b", 1)]);
    let (a, b, x) = (name("a", "gw1"), name("b", "gw1"), name("x", "gw1"));
    let mut board = Board::new(a.clone(), all);
    for (at, (rtt_us, bytes_s)) in
        [(0, 5_000_000), (u64::MAX, 5_000_000), (1000, 0), (1000, 10), (1000, u64::MAX)].into_iter().enumerate()
    {
        board.take(&b, at as u64 + 1, vec![stated(&b, &a, rtt_us, bytes_s)], 0).unwrap();
        assert_eq!(board.pair("b", "a"), PathFigures::default(), "{rtt_us} µs, {bytes_s} B/s");
    }
    // Sites files may differ: figures of sites that are not in this gateway's file are ignored.
    board.take(&b, 10, vec![stated(&b, &x, 1000, 5_000_000), stated(&b, &b, 1000, 5_000_000)], 0).unwrap();
    assert_eq!(board.rows.len(), 0);
    let mut old = stated(&b, &a, 1000, 5_000_000);
    old.rate.as_mut().unwrap().age_ms = u64::MAX;
    board.take(&b, 11, vec![old], 0).unwrap();
    assert!(board.pair("b", "a").is_stale(0));
    // Late messages change nothing.
    board.take(&b, 5, vec![stated(&b, &a, 1000, 9_000_000)], 0).unwrap();
    assert_eq!(board.pair("b", "a").rate.map(|rate| rate.bytes_s), Some(5_000_000));
    let many = vec![stated(&b, &a, 1000, 5_000_000); MAX_ROWS + 1];
    assert!(board.take(&b, 12, many, 0).unwrap_err().to_string().contains("at most 1024"));
}

#[test]
fn a_job_gets_the_table_of_its_sites_in_its_order() {
    let mut board = Board::new(name("a", "gw1"), sites(&[("a", 1), ("b", 1), ("c", 1)]));
    board.measured(&name("c", "gw1"), row(30, 3_000_000, 0));
    let (a, c) = (SiteId(1), SiteId(0));
    let table = board.table(["c", "a"].into_iter());
    assert_eq!(table.get(a, c), LinkFigures { round_trip: Some(0.03), rate: Some(3e6) });
    assert_eq!((table.get(c, a), table.sites()), (LinkFigures::default(), 2));
    // Adding or removing sites leaves the figures of the others unchanged.
    board.adopt(sites(&[("b", 1), ("a", 1), ("c", 1), ("d", 1)]));
    assert_eq!(board.table(["c", "a"].into_iter()), table);
    board.adopt(sites(&[("a", 1), ("b", 1)]));
    assert_eq!(board.pairs().count(), 0);
}
