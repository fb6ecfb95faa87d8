use std::sync::Arc;

use plan::Tree;

use crate::{
    Cable, Measured, Network, NodeId, NodeRole, Random, Rates, RelayMode, Scenario, Schedule, SimulationError,
    TcpSettings, Time, Topology, TransitStub, broadcast,
};

const MEGABIT: f64 = 125_000.0;
const LIMIT: Time = Time::from_nanoseconds(600_000_000_000);

/// Hosts around one router, each on its own cable.
fn star(rates: &[f64], delay: f64) -> (Network, Vec<NodeId>) {
    let mut topology = Topology::new();
    let router = topology.add(NodeRole::Stub);
    let members = rates
        .iter()
        .map(|&rate| {
            let cable = Cable { queue_bytes: 1 << 24, ..Cable::new(rate * MEGABIT, delay) };
            topology.attach(router, cable).unwrap()
        })
        .collect();
    (Network::new(Arc::new(topology), 1), members)
}

/// TCP settings that send everything at once, so that only the network limits the rate.
fn open() -> TcpSettings {
    TcpSettings { window_bytes: 1 << 30, initial_segments: 10_000, ..TcpSettings::default() }
}

fn tree(parents: &[usize]) -> Tree {
    let parent = std::iter::once(None).chain(parents.iter().map(|&parent| Some(parent))).collect();
    Tree::new(parent, (0..=parents.len()).collect()).unwrap()
}

fn completion(parents: &[usize], mode: RelayMode, segments: u64) -> f64 {
    let (mut network, members) = star(&vec![10.0; parents.len() + 1], 0.005);
    let schedule = Schedule::Parts(vec![(tree(parents), segments * 1460)]);
    broadcast(&mut network, &members, &schedule, mode, open(), LIMIT).unwrap().completion()
}

fn close(value: f64, expected: f64, share: f64) {
    assert!((value / expected - 1.0).abs() <= share, "{value} instead of {expected}, ± {share}");
}

#[test]
fn trees_over_a_star_take_what_the_closed_forms_say() {
    let (packet, delay, segments) = (1500.0 / (10.0 * MEGABIT), 0.005, 200);
    let message = segments as f64 * packet;
    // Two cables from member to member, store and forward in between.
    let hop = message + packet + 2.0 * delay;
    close(completion(&[0, 1, 2], RelayMode::Block, segments), 3.0 * hop, 0.01);
    close(completion(&[0, 1, 2], RelayMode::Acknowledged, segments), 3.0 * hop, 0.01);
    // Acknowledgements to the parent share the cable with data for the child: 40 bytes for each 1,500.
    let chain = message * 1540.0 / 1500.0 + 3.0 * (2.0 * packet + 2.0 * delay);
    close(completion(&[0, 1, 2], RelayMode::Packet, segments), chain, 0.02);
    close(completion(&[0, 0, 0], RelayMode::Packet, segments), 3.0 * message + packet + 2.0 * delay, 0.01);
    close(completion(&[0, 0, 0], RelayMode::Block, segments), 3.0 * message + packet + 2.0 * delay, 0.03);
    let answer = 2.0 * delay + 2.0 * packet * 40.0 / 1500.0;
    close(completion(&[0, 0, 0], RelayMode::Acknowledged, segments), 3.0 * hop + 2.0 * answer, 0.01);
}

#[test]
fn trees_that_share_a_message_carry_their_parts() {
    // Each of three trees of depth 2 carries a third over a different first child: every cable carries the message
    // once.
    let segments = 300;
    let first = |child: usize| {
        let parent = (0..4).map(|node| if node == 0 { None } else { Some(if node == child { 0 } else { child }) });
        let mut order = vec![0, child];
        order.extend((1..4).filter(|&node| node != child));
        Tree::new(parent.collect(), order).unwrap()
    };
    let parts = (1..4).map(|child| (first(child), segments / 3 * 1460)).collect();
    let (mut network, members) = star(&[10.0; 4], 0.005);
    let outcome = broadcast(&mut network, &members, &Schedule::Parts(parts), RelayMode::Packet, open(), LIMIT).unwrap();
    let message = segments as f64 * 1500.0 / (10.0 * MEGABIT);
    assert!(outcome.completion() < 1.25 * message, "{outcome:?}, one message takes {message}");
}

#[test]
fn the_first_copy_counts() {
    // In the first tree member 2 is below member 1, which is slow; in the second tree member 1 is below member 2.
    let (mut network, members) = star(&[100.0, 1.0, 100.0], 0.001);
    let slow = Schedule::Parts(vec![(tree(&[0, 1]), 100_000)]);
    let one = broadcast(&mut network.clone(), &members, &slow, RelayMode::Packet, open(), LIMIT).unwrap();
    let second = Tree::new(vec![None, Some(2), Some(0)], vec![0, 2, 1]).unwrap();
    let both = Schedule::Copies(vec![tree(&[0, 1]), second], 100_000);
    let two = broadcast(&mut network, &members, &both, RelayMode::Packet, open(), LIMIT).unwrap();
    assert!(one.arrivals[2] > 0.8 && two.arrivals[2] < 0.1, "{one:?}, {two:?}");
}

#[test]
fn every_member_gets_all_of_it_whatever_the_tree_and_the_losses() {
    for seed in 0..30 {
        let mut random = Random::new(seed, 50);
        let rates: Vec<f64> = (0..9).map(|_| random.uniform(1.0, 50.0)).collect();
        let mut topology = Topology::new();
        let router = topology.add(NodeRole::Stub);
        let members: Vec<NodeId> = rates
            .iter()
            .map(|&rate| {
                let cable = Cable { loss: 0.01, queue_bytes: 20_000, ..Cable::new(rate * MEGABIT, 0.01) };
                topology.attach(router, cable).unwrap()
            })
            .collect();
        let network = Network::new(Arc::new(topology), seed);
        let mut random_tree = || {
            let parents: Vec<usize> = (1..9).map(|node| random.below(node)).collect();
            tree(&parents)
        };
        let single = Schedule::Parts(vec![(random_tree(), 100_001)]);
        let shared = Schedule::Parts(vec![(random_tree(), 70_000), (random_tree(), 1), (random_tree(), 30_000)]);
        let copies = Schedule::Copies(vec![random_tree(), random_tree()], 100_001);
        for schedule in [single, shared, copies] {
            for mode in RelayMode::ALL {
                let tcp = TcpSettings::default();
                let run = || broadcast(&mut network.clone(), &members, &schedule, mode, tcp, LIMIT).unwrap();
                let outcome = run();
                assert!(outcome.arrivals.iter().skip(1).all(|&at| at > 0.02 && at.is_finite()), "{outcome:?}");
                assert_eq!(outcome, run(), "seed {seed}");
                if let Schedule::Parts(parts) = &schedule
                    && let [(tree, _)] = &parts[..]
                {
                    for (parent, child) in tree.edges() {
                        assert!(outcome.arrivals[child] > outcome.arrivals[parent]);
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_broadcast_is_named() {
    let (mut network, members) = star(&[10.0; 3], 0.01);
    let mut run = |schedule: Schedule, limit: Time| {
        broadcast(&mut network, &members, &schedule, RelayMode::Packet, TcpSettings::default(), limit).unwrap_err()
    };
    assert!(matches!(run(Schedule::Parts(vec![]), LIMIT), SimulationError::NotATree { tree: 0, .. }));
    let wrong = Schedule::Parts(vec![(tree(&[0, 1]), 10), (tree(&[0, 1, 2]), 10)]);
    assert!(matches!(run(wrong, LIMIT), SimulationError::NotATree { tree: 1, .. }));
    let late = Schedule::Parts(vec![(tree(&[0, 1]), 10_000_000)]);
    let error = run(late, Time::from_seconds(1.0));
    assert_eq!(error, SimulationError::Unfinished { reached: 1, members: 3, seconds: 1.0 });
}

#[test]
fn members_measure_what_is_there() {
    let rates = [10.0, 40.0, 5.0, 80.0];
    let (mut network, members) = star(&rates, 0.01);
    let measured = Measured::between(&mut network, &members).unwrap();
    let tcp = TcpSettings { window_bytes: 50_000, ..TcpSettings::default() };
    let links = measured.links(4, &tcp);
    let payload = 1460.0 / 1500.0;
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            close(links.latency[(from, to)], 0.02, 0.02);
            close(measured.rate[(from, to)], rates[from].min(rates[to]) * MEGABIT, 0.01);
            let expected = (rates[from].min(rates[to]) * MEGABIT * payload).min(50_000.0 / 0.04);
            close(links.bandwidth[(from, to)], expected, 0.02);
        }
    }
    // Too few members for a burst: the best rate of each member's pairs counts.
    close(links.uplink[0], 10.0 * MEGABIT * payload, 0.01);
    close(links.uplink[3], 40.0 * MEGABIT * payload, 0.01);
    close(links.downlink[2], 5.0 * MEGABIT * payload, 0.01);
    assert_eq!(measured.links(2, &tcp).uplink.len(), 2);
}

#[test]
fn members_measure_what_they_send_and_receive_in_all() {
    // No pair with member 0 is faster than 10 Mbit/s, but all together are.
    let mut rates = vec![10.0; 12];
    rates[0] = 50.0;
    let (mut network, members) = star(&rates, 0.01);
    let links = Measured::between(&mut network, &members).unwrap().links(12, &TcpSettings::default());
    let payload = MEGABIT * 1460.0 / 1500.0;
    for (found, expected) in [
        (links.bandwidth[(0, 1)], 10.0),
        (links.bandwidth[(1, 0)], 10.0),
        (links.uplink[0], 50.0),
        (links.downlink[0], 50.0),
        (links.uplink[3], 10.0),
        (links.downlink[3], 10.0),
    ] {
        close(found, expected * payload, 0.05);
    }
}

#[test]
fn a_scenario_is_busy_and_its_members_can_measure_and_broadcast() {
    let scenario = Scenario {
        shape: TransitStub::of_size(220).unwrap(),
        rates: Rates::unlike(),
        members: 20,
        constant_flows: 10,
        transfers: 10,
        tcp: TcpSettings::default(),
        warm_up_seconds: 3.0,
    };
    let (mut network, members) = scenario.start(8).unwrap();
    assert_eq!(network.now(), Time::from_seconds(3.0));
    let before = network.counts();
    assert!(before.delivered > 5000, "{before:?}");
    let measured = Measured::between(&mut network, &members).unwrap();
    let links = measured.links(20, &scenario.tcp);
    for from in 0..20 {
        for to in (0..20).filter(|&to| to != from) {
            let (latency, rate) = (links.latency[(from, to)], links.bandwidth[(from, to)]);
            assert!((0.0001..0.3).contains(&latency) && (0.01 * MEGABIT..101.0 * MEGABIT).contains(&rate));
        }
    }
    let flat = Schedule::Parts(vec![(tree(&[0; 19]), 65_536)]);
    let outcome = broadcast(&mut network, &members, &flat, RelayMode::Packet, scenario.tcp, LIMIT).unwrap();
    assert!(outcome.completion() > 0.05);
    let counts = network.counts();
    assert_eq!(counts.sent, counts.delivered + counts.overflowed + counts.lost + counts.in_flight);
    assert!(Scenario { members: 201, ..scenario }.start(1).is_err());
}
