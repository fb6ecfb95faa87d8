use std::sync::Arc;

use crate::{
    Cable, Network, NodeId, NodeRole, Notice, PacketCounts, Random, Rates, TcpSettings, Time, Topology, TransitStub,
};

const MEGABIT: f64 = 125_000.0;

/// Hosts at both ends of a row of cables, with routers between.
fn line(cables: &[Cable]) -> (Topology, NodeId, NodeId) {
    let mut topology = Topology::new();
    let first = topology.add(NodeRole::Host);
    let mut last = first;
    for (number, &cable) in cables.iter().enumerate() {
        let role = if number + 1 == cables.len() { NodeRole::Host } else { NodeRole::Stub };
        let node = topology.add(role);
        topology.join(last, node, cable).unwrap();
        last = node;
    }
    (topology, first, last)
}

/// `pairs` of hosts whose paths share one cable.
fn dumbbell(pairs: usize, shared: Cable) -> (Topology, Vec<(NodeId, NodeId)>) {
    let mut topology = Topology::new();
    let (left, right) = (topology.add(NodeRole::Stub), topology.add(NodeRole::Stub));
    topology.join(left, right, shared).unwrap();
    let side = Cable::new(1000.0 * MEGABIT, 0.001);
    let pairs =
        (0..pairs).map(|_| (topology.attach(left, side).unwrap(), topology.attach(right, side).unwrap())).collect();
    (topology, pairs)
}

fn wide() -> TcpSettings {
    TcpSettings { window_bytes: 10 << 20, ..TcpSettings::default() }
}

/// Bytes per second that an endless transfer delivers from second `from` to second `to`.
fn goodput(topology: Topology, (a, b): (NodeId, NodeId), settings: TcpSettings, from: f64, to: f64) -> f64 {
    let mut network = Network::new(Arc::new(topology), 7);
    let connection = network.connect(a, b, settings, false).unwrap();
    network.write(connection, u64::MAX);
    network.run(Time::from_seconds(from));
    let before = network.report(connection).delivered_bytes;
    network.run(Time::from_seconds(to));
    (network.report(connection).delivered_bytes - before) as f64 / (to - from)
}

fn close(value: f64, expected: f64, share: f64) {
    assert!((value / expected - 1.0).abs() <= share, "{value} instead of {expected}, ± {share}");
}

#[test]
fn a_train_over_a_line_arrives_when_the_closed_form_says() {
    let rates = [10.0, 2.0, 50.0];
    let cables: Vec<Cable> = rates.iter().map(|rate| Cable::new(rate * MEGABIT, 0.004)).collect();
    let (topology, a, b) = line(&cables);
    let mut network = Network::new(Arc::new(topology), 1);
    let (packets, bytes) = (20_u32, 1500_u32);
    for number in 0..packets {
        network.probe(a, b, bytes, u64::from(number)).unwrap();
    }
    let mut arrivals = Vec::new();
    while let Some(notice) = network.next(Time::from_seconds(10.0)) {
        assert_eq!(notice, Notice::Probe { probe: arrivals.len() as u64, bytes });
        arrivals.push(network.now().seconds());
    }
    let crossing = |rate: &f64| f64::from(bytes) / (rate * MEGABIT);
    let first: f64 = rates.iter().map(crossing).sum::<f64>() + 3.0 * 0.004;
    assert_eq!(arrivals.len(), packets as usize);
    for (number, arrival) in arrivals.iter().enumerate() {
        let expected = first + number as f64 * crossing(&2.0);
        assert!((arrival - expected).abs() < 1e-7, "packet {number} at {arrival}, expected {expected}");
    }
}

#[test]
fn a_ping_takes_both_ways() {
    let (topology, a, b) = line(&[Cable::new(MEGABIT, 0.01), Cable::new(MEGABIT, 0.02)]);
    let mut network = Network::new(Arc::new(topology), 1);
    network.ping(a, b, 100, 5).unwrap();
    let notice = network.next(Time::from_seconds(1.0));
    let round_trip = Time::from_seconds(2.0 * (0.03 + 2.0 * 100.0 / MEGABIT));
    assert_eq!(notice, Some(Notice::Pong { probe: 5, round_trip }));
}

#[test]
fn a_queue_drops_what_finds_no_room() {
    let cable = Cable { queue_bytes: 10_000, ..Cable::new(MEGABIT, 0.0) };
    let (topology, a, b) = line(&[cable]);
    let mut network = Network::new(Arc::new(topology), 1);
    for number in 0..15 {
        network.probe(a, b, 1000, number).unwrap();
    }
    network.run(Time::from_seconds(1.0));
    let expected = PacketCounts { sent: 15, delivered: 10, overflowed: 5, lost: 0, in_flight: 0 };
    assert_eq!(network.counts(), expected);
}

#[test]
fn paths_take_the_least_delay_and_no_host_relays() {
    let mut topology = Topology::new();
    let routers: Vec<NodeId> = (0..3).map(|_| topology.add(NodeRole::Stub)).collect();
    let fast = Cable::new(MEGABIT, 0.001);
    topology.join(routers[0], routers[2], Cable::new(MEGABIT, 0.01)).unwrap();
    topology.join(routers[0], routers[1], fast).unwrap();
    topology.join(routers[1], routers[2], fast).unwrap();
    let host = topology.attach(routers[0], Cable::new(MEGABIT, 0.0)).unwrap();
    // A shortcut through the host, which no path may use.
    topology.join(host, routers[2], Cable::new(MEGABIT, 0.0)).unwrap();
    let lone = topology.add(NodeRole::Stub);
    let mut network = Network::new(Arc::new(topology), 1);
    assert_eq!(network.links_between(routers[0], routers[2]).unwrap().len(), 2);
    assert!(network.links_between(routers[0], lone).is_err());
}

#[test]
fn constant_flows_keep_their_rate_whatever_the_network_does() {
    let (topology, a, b) = line(&[Cable::new(10.0 * MEGABIT, 0.01), Cable::new(4.0 * MEGABIT, 0.01)]);
    let mut network = Network::new(Arc::new(topology), 1);
    let flow = network.constant_flow((a, b), 2.0 * MEGABIT, 500, Time::ZERO, Time::NEVER).unwrap();
    network.run(Time::from_seconds(20.0));
    close(network.flow_delivered_bytes(flow) as f64 / 20.0, 2.0 * MEGABIT, 0.002);
    let other = network.constant_flow((a, b), 6.0 * MEGABIT, 1000, Time::ZERO, Time::NEVER).unwrap();
    network.run(Time::from_seconds(40.0));
    let both = network.flow_delivered_bytes(flow) + network.flow_delivered_bytes(other);
    close((both as f64 - 40.0 * MEGABIT) / 20.0, 4.0 * MEGABIT, 0.01);
    assert!(network.counts().overflowed > 0);
}

#[test]
fn tcp_fills_a_clean_link() {
    for (megabits, delay) in [(10.0, 0.01), (10.0, 0.05), (100.0, 0.02)] {
        // A link stays busy after each halving only if its queue holds as much as the rest of the path.
        let queue_bytes = (megabits * MEGABIT * 3.0 * delay).max(60_000.0) as u32;
        let cable = Cable { queue_bytes, ..Cable::new(megabits * MEGABIT, delay) };
        let (topology, a, b) = line(&[Cable::new(1000.0 * MEGABIT, 0.0001), cable]);
        let rate = goodput(topology, (a, b), wide(), 20.0, 80.0);
        close(rate, megabits * MEGABIT * 1460.0 / 1500.0, 0.05);
    }
}

#[test]
fn a_window_limits_tcp_to_a_window_per_round_trip() {
    let (topology, a, b) = line(&[Cable::new(1000.0 * MEGABIT, 0.05)]);
    let rate = goodput(topology, (a, b), TcpSettings::default(), 2.0, 22.0);
    let whole_segments = 44.0 * 1460.0;
    close(rate, whole_segments / 0.1, 0.02);
}

#[test]
fn tcp_under_loss_follows_the_square_root_law() {
    // Mathis, Semke, Mahdavi, Ott, 1997: MSS / RTT × sqrt(3/2) / sqrt(p) when every segment is acknowledged.
    for loss in [0.0005, 0.002, 0.008] {
        let cable = Cable { loss, queue_bytes: 10 << 20, ..Cable::new(1000.0 * MEGABIT, 0.025) };
        let (topology, a, b) = line(&[cable]);
        let rate = goodput(topology, (a, b), wide(), 20.0, 620.0);
        // Acknowledgements are lost too, but that costs little.
        close(rate, 1460.0 / 0.05 * 1.5_f64.sqrt() / loss.sqrt(), 0.2);
    }
}

#[test]
fn two_flows_share_a_link_fairly() {
    let (topology, pairs) = dumbbell(2, Cable::new(10.0 * MEGABIT, 0.02));
    let mut network = Network::new(Arc::new(topology), 3);
    let mut connections = Vec::new();
    for (number, &(a, b)) in pairs.iter().enumerate() {
        // The second starts when the first one fills the link.
        network.run(Time::from_seconds(10.0 * number as f64 + 0.003));
        let connection = network.connect(a, b, wide(), false).unwrap();
        network.write(connection, u64::MAX);
        connections.push(connection);
    }
    network.run(Time::from_seconds(60.0));
    let delivered = |network: &Network| -> Vec<f64> {
        connections.iter().map(|&connection| network.report(connection).delivered_bytes as f64).collect()
    };
    let before = delivered(&network);
    network.run(Time::from_seconds(660.0));
    let rates: Vec<f64> =
        delivered(&network).iter().zip(before).map(|(after, before)| (after - before) / 600.0).collect();
    let sum = rates[0] + rates[1];
    let jain = sum * sum / (2.0 * (rates[0] * rates[0] + rates[1] * rates[1]));
    assert!(jain > 0.95, "{rates:?}: Jain's index {jain}");
    assert!(sum > 0.9 * 10.0 * MEGABIT * 1460.0 / 1500.0, "{rates:?}");
}

#[test]
fn one_lost_segment_costs_no_timeout() {
    // A queue that holds the window: only the wire loses, about one packet in 2,000.
    let cable = Cable { loss: 0.0005, queue_bytes: 1 << 20, ..Cable::new(10.0 * MEGABIT, 0.01) };
    let (topology, a, b) = line(&[cable]);
    let mut network = Network::new(Arc::new(topology), 11);
    let connection = network.connect(a, b, TcpSettings::default(), false).unwrap();
    network.write(connection, u64::MAX);
    network.run(Time::from_seconds(30.0));
    let report = network.report(connection);
    assert!(report.retransmitted > 5, "{report:?}");
    assert_eq!(report.timeouts, 0, "{report:?}");
}

#[test]
fn every_byte_arrives_however_many_packets_are_lost() {
    for seed in 0..20 {
        let cable = Cable { loss: 0.02 * seed as f64, ..Cable::new(10.0 * MEGABIT, 0.01) };
        let (topology, a, b) = line(&[cable]);
        let mut network = Network::new(Arc::new(topology), seed);
        let connection = network.connect(a, b, TcpSettings::default(), true).unwrap();
        network.write(connection, 300_001);
        let mut delivered = 0;
        let mut is_acknowledged = false;
        let mut drained = 0;
        while let Some(notice) = network.next(Time::from_seconds(20_000.0)) {
            match notice {
                Notice::Delivered { bytes, .. } => {
                    assert!(bytes > delivered && bytes <= 300_001);
                    delivered = bytes;
                }
                Notice::Acknowledged { bytes, .. } => {
                    assert!(bytes <= delivered);
                    is_acknowledged = bytes == 300_001;
                }
                Notice::Drained { .. } => drained += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(is_acknowledged && delivered == 300_001 && drained == 1, "seed {seed}");
        assert_eq!(network.counts().in_flight, 0);
    }
}

/// A topology of 220 nodes with lossy cables and traffic of every kind between random hosts.
fn busy(seed: u64) -> Network {
    let rates = Rates::uniform();
    let mut topology = TransitStub::of_size(220).unwrap().generate(&rates, seed).unwrap();
    let mut random = Random::new(seed, 99);
    let stubs: Vec<NodeId> = topology.of_role(NodeRole::Stub).collect();
    let hosts: Vec<NodeId> = random
        .choose(&stubs, 30)
        .into_iter()
        .map(|stub| topology.attach(stub, Cable { loss: 0.001, ..Cable::new(20.0 * MEGABIT, 0.001) }).unwrap())
        .collect();
    let mut network = Network::new(Arc::new(topology), seed);
    for pair in hosts.chunks(2) {
        network.constant_flow((pair[0], pair[1]), 15.0 * MEGABIT, 1200, Time::ZERO, Time::from_seconds(4.0)).unwrap();
        let connection = network.connect(pair[1], pair[0], wide(), true).unwrap();
        network.write(connection, 3_000_000);
        let connection = network.connect(hosts[0], pair[1], wide(), true).unwrap();
        network.write(connection, 3_000_000);
        network.ping(pair[0], hosts[7], 64, 0).ok();
    }
    network
}

#[test]
fn packets_are_conserved() {
    let mut network = busy(5);
    for tenth in 0..200 {
        network.run(Time::from_seconds(f64::from(tenth) / 10.0));
        let counts = network.counts();
        let found = counts.delivered + counts.overflowed + counts.lost + counts.in_flight;
        assert_eq!(counts.sent, found, "{counts:?} at {}", network.now());
    }
    network.run(Time::from_seconds(600.0));
    let counts = network.counts();
    assert_eq!(counts.in_flight, 0);
    assert!(counts.overflowed > 100 && counts.lost > 100 && counts.delivered > 50_000, "{counts:?}");
}

#[test]
fn a_seed_decides_everything() {
    let history = |mut network: Network| {
        let mut notices = Vec::new();
        while let Some(notice) = network.next(Time::from_seconds(3.0)) {
            notices.push((network.now(), notice));
        }
        (notices, network.counts(), network.events())
    };
    let one = history(busy(5));
    assert_eq!(one, history(busy(5)));
    assert_ne!(one, history(busy(6)));
    let mut network = busy(5);
    network.run(Time::from_seconds(1.0));
    assert_eq!(history(network.clone()), history(network));
}

#[test]
fn topologies_have_their_sizes_and_reach_everywhere() {
    for nodes in TransitStub::SIZES {
        let shape = TransitStub::of_size(nodes).unwrap();
        let topology = shape.generate(&Rates::unlike(), 42).unwrap();
        assert_eq!((topology.len(), shape.nodes()), (nodes, nodes));
        let stubs: Vec<NodeId> = topology.of_role(NodeRole::Stub).collect();
        assert_eq!(stubs.len() + topology.of_role(NodeRole::Transit).count(), nodes);
        let mut network = Network::new(Arc::new(topology), 1);
        for &stub in stubs.iter().skip(1) {
            network.links_between(stubs[0], stub).unwrap();
        }
    }
    assert!(TransitStub::of_size(221).is_err());
}

#[test]
fn a_topologys_shape_depends_on_its_seed_alone() {
    let shape = TransitStub { extra_stub_stub: 3, extra_transit_stub: 4, ..TransitStub::of_size(220).unwrap() };
    let plain = TransitStub::of_size(220).unwrap();
    let ends = |topology: &Topology| topology.links().iter().map(|link| (link.from, link.to)).collect::<Vec<_>>();
    let one = shape.generate(&Rates::uniform(), 1).unwrap();
    assert_eq!(ends(&one), ends(&shape.generate(&Rates::unlike(), 1).unwrap()));
    assert_ne!(ends(&one), ends(&shape.generate(&Rates::uniform(), 2).unwrap()));
    assert_eq!(one.links().len(), plain.generate(&Rates::uniform(), 1).unwrap().links().len() + 2 * 7);
    let disconnected = TransitStub { stub_probability: 0.0, ..plain };
    assert!(matches!(
        disconnected.generate(&Rates::uniform(), 1),
        Err(crate::SimulationError::Disconnected { nodes: 5, .. })
    ));
}

#[test]
fn parameters_out_of_range_are_named() {
    let mut topology = Topology::new();
    let (a, b) = (topology.add(NodeRole::Stub), topology.add(NodeRole::Stub));
    for (cable, name) in [
        (Cable::new(f64::NAN, 0.0), "rate is NaN"),
        (Cable::new(-1.0, 0.0), "rate is -1"),
        (Cable { loss: 1.0, ..Cable::new(1e6, 0.0) }, "loss is 1"),
    ] {
        let error = topology.join(a, b, cable).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
    assert!(topology.join(a, NodeId(9), Cable::new(1e6, 0.0)).is_err());
    topology.join(a, b, Cable::new(1e6, 0.0)).unwrap();
    let mut network = Network::new(Arc::new(topology), 1);
    let error = network.constant_flow((a, b), f64::NAN, 100, Time::ZERO, Time::NEVER).unwrap_err().to_string();
    assert!(error.starts_with("flow rate is NaN"), "{error}");
    let settings = TcpSettings { window_bytes: 100, ..TcpSettings::default() };
    let error = network.connect(a, b, settings, false).unwrap_err().to_string();
    assert!(error.starts_with("window_bytes is 100"), "{error}");
    assert!(network.connect(a, a, TcpSettings::default(), false).is_err());
}
