//! The chosen schedule against every tree that it must beat, in every regime.

#![allow(clippy::unwrap_used)]

mod seeds;

use plan::{Effort, Instance, Matrix, Model, NetworkLinks, Ports, Schedule, Tree};
use proptest::prelude::*;

use seeds::cases;

/// The bottleneck of a broadcast in an instance.
#[derive(Debug, Clone, Copy)]
enum Regime {
    /// Connections with rates spread evenly.
    Uniform,
    /// Connections whose rates are spread over two decades, evenly on a logarithmic scale.
    LogUniform,
    /// TCP windows: the rate of a connection is 64 KiB per round trip.
    Windows,
    /// Gateways with limited uplinks, and slower connections between pairs.
    Gateways,
    /// Gateways with limited uplinks only.
    Uplinks,
    /// All links alike: ties everywhere.
    Alike,
}

fn instances(nodes: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Instance> {
    use Regime::{Alike, Gateways, LogUniform, Uniform, Uplinks, Windows};
    let regimes = prop::sample::select(vec![Uniform, LogUniform, Windows, Gateways, Uplinks, Alike]);
    let sizes = prop::sample::select(vec![1u64, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 3_000_001]);
    let most = *nodes.end();
    (nodes, regimes, sizes, prop::collection::vec(0.0..1.0, 2 * most * most + most), 0..most)
        .prop_map(|(nodes, regime, message, cells, root)| instance(nodes, regime, message, &cells, root % nodes))
}

fn instance(nodes: usize, regime: Regime, message: u64, cells: &[f64], root: usize) -> Instance {
    let spread = |cell: f64| 1e6 * 100f64.powf(cell);
    let latency = Matrix::from_fn(nodes, |i, j| match regime {
        Regime::Alike => 0.01,
        _ => 0.001 + 0.1 * cells[i.min(j) * nodes + i.max(j)],
    });
    let own: Vec<f64> = (0..nodes).map(|node| spread(cells[2 * nodes * nodes + node])).collect();
    let bandwidth = Matrix::from_fn(nodes, |i, j| {
        let cell = cells[nodes * nodes + i * nodes + j];
        match regime {
            Regime::Uniform => 1e6 + 99e6 * cell,
            Regime::LogUniform => spread(cell),
            Regime::Windows => 65_536.0 / (2.0 * latency[(i, j)]),
            Regime::Gateways => own[i].min(own[j]).min(spread(cell)),
            Regime::Uplinks => own[i].min(own[j]),
            Regime::Alike => 1e7,
        }
    });
    let uplink = match regime {
        Regime::Gateways | Regime::Uplinks => own,
        Regime::Alike => vec![1e7; nodes],
        _ => vec![1e8; nodes],
    };
    let links = NetworkLinks { latency, bandwidth, downlink: uplink.clone(), uplink };
    Instance::new(links, root, message, 8192).unwrap().with_overheads(1e-5, 1e-5).unwrap()
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn no_tree_of_the_literature_is_faster_by_more_than_a_fiftieth(instance in instances(2..=10)) {
        let chosen = plan::choose(&instance, 64);
        let paced = |(place, (tree, _)): (usize, &(Tree, f64))| (tree.clone(), *chosen.pace.get(place).unwrap_or(&1.0));
        let again = Schedule::new(&instance, chosen.trees.iter().enumerate().map(paced).collect());
        prop_assert!((again.time - chosen.time).abs() <= 1e-9 * chosen.time);
        for algorithm in plan::candidates(instance.nodes()) {
            let tree = algorithm.build(&instance);
            let time = Schedule::new(&instance, vec![(tree.clone(), 1.0)]).time;
            prop_assert!(chosen.time <= time * 1.02, "{}: {time} {}", algorithm.name(), chosen.time);
            let plain = Model::MultiPacket.completion(&instance, &tree);
            prop_assert!(chosen.time <= plain * 1.02, "{}: {plain} {}", algorithm.name(), chosen.time);
        }
    }
}

proptest! {
    #![proptest_config(cases(100))]

    /// 64 MiB: at least 0.95 of the rate that no schedule exceeds, plus the time that one byte takes over the longest
    /// path of the schedule. Without overheads, which that rate ignores.
    #[test]
    fn long_messages_reach_the_bound(instance in instances(2..=16)) {
        let instance = instance.with_message(64 << 20, 16 << 10).unwrap().with_overheads(0.0, 0.0).unwrap();
        let chosen = plan::choose(&instance, 64);
        let bound = plan::pack(&instance, Ports::Many, Effort { rounds: 2000, gap: 0.005 }).upper_bound;
        let one_byte = instance.with_message(1, 1).unwrap();
        let longest = chosen.trees.iter().map(|(tree, _)| Model::Path.completion(&one_byte, tree)).fold(0.0, f64::max);
        let transfer = instance.message_bytes() as f64 / bound;
        prop_assert!(chosen.time <= transfer / 0.95 + longest, "{} {transfer} {longest}", chosen.time);
    }

    /// The first packets of several trees would meet in queues.
    #[test]
    fn many_nodes_get_a_short_message_over_one_tree(instance in instances(11..=16)) {
        let instance = instance.with_message((1 << 20) - 1, 4096).unwrap();
        prop_assert_eq!(plan::choose(&instance, 64).trees.len(), 1);
    }

    #[test]
    fn the_number_of_trees_is_bounded(instance in instances(8..=8), most in 1usize..4) {
        let instance = instance.with_message(4 << 20, 16 << 10).unwrap();
        let chosen = plan::choose(&instance, most);
        prop_assert!((1..=most).contains(&chosen.trees.len()));
        let shares: f64 = chosen.trees.iter().map(|(_, share)| share).sum();
        prop_assert!((shares - 1.0).abs() < 1e-9);
    }
}
