//! Random instances for tests.

use proptest::prelude::*;

use crate::instance::{Instance, NetworkLinks};
use crate::matrix::Matrix;

#[path = "../tests/seeds/mod.rs"]
mod seeds;

pub(crate) use seeds::cases;

/// Instances of 2 to `most` nodes: latencies of up to 0.1 s, rates from 1 to 100 MB/s spread evenly on a logarithmic
/// scale, messages from 1 byte to 1 MiB.
pub(crate) fn instances(most: usize) -> impl Strategy<Value = Instance> {
    let cells = move |count| proptest::collection::vec(0.0..1.0, count);
    (2..=most, cells(2 * most * most), cells(2 * most), 0..most, 1u64..1 << 20).prop_map(
        |(nodes, cells, limits, root, message)| {
            let rate = |cell: f64| 1e6 * 100f64.powf(cell);
            let links = NetworkLinks {
                latency: Matrix::from_fn(nodes, |i, j| 0.1 * cells[i * nodes + j]),
                bandwidth: Matrix::from_fn(nodes, |i, j| rate(cells[nodes * nodes + i * nodes + j])),
                uplink: limits[..nodes].iter().map(|&cell| rate(cell)).collect(),
                downlink: limits[nodes..2 * nodes].iter().map(|&cell| rate(cell)).collect(),
            };
            let instance = Instance::new(links, root % nodes, message, 8192).unwrap();
            instance.with_overheads(1e-5, 1e-5).unwrap()
        },
    )
}
