//! Packings against the dual linear program over flows, solved by independent code.

#![allow(clippy::unwrap_used)]

mod seeds;

use plan::{Effort, Instance, Matrix, NetworkLinks, Ports};
use proptest::prelude::*;

use seeds::cases;

/// The maximum of `objective` · x over x ≥ 0 with `rows` x ≤ `right`, right ≥ 0: a dense tableau with Bland's rule.
fn maximum(objective: &[f64], rows: &[Vec<f64>], right: &[f64]) -> f64 {
    let (n, m) = (objective.len(), rows.len());
    let mut table: Vec<Vec<f64>> = (0..m)
        .map(|row| {
            let slack = (0..m).map(|other| f64::from(u8::from(other == row)));
            rows[row].iter().copied().chain(slack).chain([right[row]]).collect()
        })
        .collect();
    table.push(objective.iter().map(|value| -value).chain(std::iter::repeat_n(0.0, m + 1)).collect());
    let mut basis: Vec<usize> = (n..n + m).collect();
    while let Some(entering) = (0..n + m).find(|&column| table[m][column] < -1e-9) {
        let ratio = |row: usize| table[row][n + m] / table[row][entering];
        let leaving = (0..m)
            .filter(|&row| table[row][entering] > 1e-9)
            .min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)).then(basis[a].cmp(&basis[b])))
            .unwrap();
        let pivot = table[leaving][entering];
        table[leaving].iter_mut().for_each(|cell| *cell /= pivot);
        let pivot_row = table[leaving].clone();
        for (_, row) in table.iter_mut().enumerate().filter(|(at, _)| *at != leaving) {
            let factor = row[entering];
            row.iter_mut().zip(&pivot_row).for_each(|(cell, pivot)| *cell -= factor * pivot);
        }
        basis[leaving] = entering;
    }
    table[m][n + m]
}

/// The highest rate r such that capacities c within the limits carry a flow of r from the root to each node.
fn by_flows(instance: &Instance, ports: Ports) -> f64 {
    let (nodes, root) = (instance.nodes(), instance.root());
    let edges: Vec<(usize, usize)> =
        (0..nodes).flat_map(|i| (0..nodes).map(move |j| (i, j))).filter(|(i, j)| i != j && *j != root).collect();
    // Variables: r, c by edge, then f by receiver and edge.
    let count = 1 + edges.len() * nodes;
    let (mut rows, mut right) = (Vec::new(), Vec::new());
    let mut limit = |entries: Vec<(usize, f64)>, most: f64| {
        let mut row = vec![0.0; count];
        entries.into_iter().for_each(|(variable, value)| row[variable] += value);
        rows.push(row);
        right.push(most);
    };
    for (k, receiver) in instance.receivers().enumerate() {
        let flow = |edge: usize| 1 + edges.len() * (k + 1) + edge;
        for edge in 0..edges.len() {
            limit(vec![(flow(edge), 1.0), (1 + edge, -1.0)], 0.0);
        }
        for node in (0..nodes).filter(|&node| node != root) {
            let mut entries = Vec::new();
            for (edge, &(i, j)) in edges.iter().enumerate() {
                if i == node || j == node {
                    entries.push((flow(edge), if i == node { 1.0 } else { -1.0 }));
                }
            }
            if node == receiver {
                entries.push((0, 1.0));
            }
            limit(entries, 0.0);
        }
    }
    for node in 0..nodes {
        let at = |end: fn(&(usize, usize)) -> usize, load: &dyn Fn(usize, usize) -> f64| {
            let here = edges.iter().enumerate().filter(|(_, edge)| end(edge) == node);
            here.map(|(edge, &(i, j))| (1 + edge, load(i, j))).collect::<Vec<_>>()
        };
        match ports {
            Ports::One => {
                limit(at(|edge| edge.0, &|i, j| 1.0 / instance.bandwidth(i, j)), 1.0);
                limit(at(|edge| edge.1, &|i, j| 1.0 / instance.bandwidth(i, j)), 1.0);
            }
            Ports::Many => {
                limit(at(|edge| edge.0, &|_, _| 1.0), instance.uplink(node));
                limit(at(|edge| edge.1, &|_, _| 1.0), instance.downlink(node));
            }
        }
    }
    if ports == Ports::Many {
        for (edge, &(i, j)) in edges.iter().enumerate() {
            limit(vec![(1 + edge, 1.0)], instance.bandwidth(i, j));
        }
    }
    let objective: Vec<f64> = (0..count).map(|variable| f64::from(u8::from(variable == 0))).collect();
    maximum(&objective, &rows, &right)
}

/// Random instances. Rates with few distinct values make degenerate programs.
fn instances(most: usize) -> impl Strategy<Value = Instance> {
    let rate = || prop_oneof![Just(1.0), Just(2.0), (1u32..1000).prop_map(|rate| f64::from(rate) / 100.0)];
    let cells = move |count| proptest::collection::vec(rate(), count);
    (2..=most, cells(most * most), cells(most), cells(most), 0..most).prop_map(|(nodes, cells, up, down, root)| {
        let links = NetworkLinks {
            latency: Matrix::from_fn(nodes, |_, _| 0.0),
            bandwidth: Matrix::from_fn(nodes, |i, j| cells[i * nodes + j]),
            uplink: up[..nodes].to_vec(),
            downlink: down[..nodes].to_vec(),
        };
        Instance::new(links, root % nodes, 1000, 100).unwrap()
    })
}

fn within_limits(instance: &Instance, packing: &plan::Packing, ports: Ports) {
    let nodes = instance.nodes();
    let mut carried = Matrix::from_fn(nodes, |_, _| 0.0);
    for (tree, rate) in &packing.trees {
        tree.edges().for_each(|edge| carried[edge] += rate);
    }
    let most = 1.0 + 1e-9;
    for node in 0..nodes {
        let (mut sent, mut received) = (0.0, 0.0);
        for other in (0..nodes).filter(|&other| other != node) {
            let part = |i, j| match ports {
                Ports::One => carried[(i, j)] / instance.bandwidth(i, j),
                Ports::Many => carried[(i, j)],
            };
            sent += part(node, other);
            received += part(other, node);
            if ports == Ports::Many {
                assert!(carried[(node, other)] <= instance.bandwidth(node, other) * most);
            }
        }
        let (up, down) = match ports {
            Ports::One => (1.0, 1.0),
            Ports::Many => (instance.uplink(node), instance.downlink(node)),
        };
        assert!(sent <= up * most && received <= down * most);
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn the_packing_is_the_maximum_over_flows(instance in instances(5)) {
        for ports in [Ports::One, Ports::Many] {
            let packing = plan::pack(&instance, ports, Effort::EXACT);
            let wanted = by_flows(&instance, ports);
            prop_assert!((packing.rate - wanted).abs() <= 1e-6 * wanted, "{ports:?}: {} {wanted}", packing.rate);
            prop_assert!((packing.upper_bound - wanted).abs() <= 1e-6 * wanted);
            within_limits(&instance, &packing, ports);
        }
    }

    #[test]
    fn larger_packings_reach_their_bound(instance in instances(16)) {
        for ports in [Ports::One, Ports::Many] {
            let packing = plan::pack(&instance, ports, Effort::EXACT);
            prop_assert!(packing.rate >= packing.upper_bound * (1.0 - 1e-6), "{ports:?}: {packing:?}");
            within_limits(&instance, &packing, ports);
        }
    }

    /// If connections have no limits of their own, N shallow trees reach the closed form, and no packing exceeds it.
    #[test]
    fn shallow_trees_reach_the_bound_of_uplinks(instance in instances(8)) {
        let links = instance.links();
        let nodes = instance.nodes();
        let ample: f64 = links.uplink.iter().sum();
        let links = NetworkLinks { bandwidth: Matrix::from_fn(nodes, |_, _| ample), ..links.clone() };
        let instance = Instance::new(links, instance.root(), 1000, 100).unwrap();
        let shallow = plan::shallow_packing(&instance);
        within_limits(&instance, &shallow, Ports::Many);
        let sum: f64 = shallow.trees.iter().map(|(_, rate)| rate).sum();
        let best = plan::pack(&instance, Ports::Many, Effort::EXACT);
        prop_assert!((sum - shallow.rate).abs() <= 1e-9 * sum);
        prop_assert!((best.rate - shallow.rate).abs() <= 1e-6 * best.rate, "{} {}", best.rate, shallow.rate);
        let of_shallow = plan::pack_of(&instance, Ports::Many, &plan::shallow_trees(&instance), Effort::EXACT);
        prop_assert!((of_shallow.rate - shallow.rate).abs() <= 1e-6 * best.rate);
    }
}
