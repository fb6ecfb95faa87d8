//! Measures the time to choose a schedule, and the chosen rate relative to the bound: `cargo run --release -p
//! landbridge-plan --example choose`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use plan::{Effort, Instance, Matrix, NetworkLinks, Ports};

/// Gateways of 10 to 1000 MB/s, pairs with at most that, latencies of 5 to 80 ms.
fn instance(nodes: usize, message: u64, seed: u64) -> Instance {
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let own: Vec<f64> = (0..nodes).map(|_| 1e7 * 100f64.powf(random())).collect();
    let latency = Matrix::from_fn(nodes, |_, _| 0.005 + 0.075 * random());
    let bandwidth = Matrix::from_fn(nodes, |i, j| own[i].min(own[j]).min(2e6 * 50f64.powf(random())));
    let links = NetworkLinks { latency, bandwidth, uplink: own.clone(), downlink: own };
    Instance::new(links, 0, message, 16 << 10).unwrap()
}

fn main() {
    println!(
        "{:>5}  {:>10}  {:>9}  {:>9}  {:>5}  of the bound's rate",
        "nodes", "bytes", "choosing", "broadcast", "trees"
    );
    for nodes in [4, 8, 24, 100, 1000] {
        for message in [1 << 10, 64 << 10, 1 << 20, 64 << 20] {
            let instance = instance(nodes, message, 7);
            let begun = Instant::now();
            let chosen = plan::choose(&instance, 64);
            let choosing = begun.elapsed();
            let effort = Effort { rounds: if nodes > 100 { 0 } else { 3000 }, gap: 1e-4 };
            let bound = plan::pack(&instance, Ports::Many, effort).upper_bound.min(plan::uplink_bound(&instance));
            let fraction = message as f64 / chosen.time / bound;
            let (choosing, time) = (format!("{:.1} ms", choosing.as_secs_f64() * 1e3), format!("{:.3} s", chosen.time));
            println!("{nodes:5}  {message:10}  {choosing:>9}  {time:>9}  {:5}  {fraction:.3}", chosen.trees.len());
        }
    }
}
