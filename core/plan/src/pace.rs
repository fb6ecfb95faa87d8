//! The root's release times for the packets of several trees, and each tree's share. Each tree has its own rate, so its
//! packets do not queue behind those of another tree if the rates are within the limits. The shares are such that all
//! trees end together.

use crate::instance::Instance;
use crate::matrix::Matrix;
use crate::tree::Tree;

/// Seconds that a packet takes over each edge if nothing else is in flight.
pub(crate) fn hops(instance: &Instance) -> Matrix {
    let bytes = instance.packet(0) as f64;
    let overheads = instance.send_overhead() + instance.receive_overhead();
    Matrix::from_fn(instance.nodes(), |i, j| {
        let rate = instance.bandwidth(i, j).min(instance.uplink(i)).min(instance.downlink(j));
        if i == j { 0.0 } else { instance.latency(i, j) + bytes / rate + overheads }
    })
}

/// Seconds from a packet's release until the last node has it, if nothing else is in flight.
pub(crate) fn depth(hops: &Matrix, tree: &Tree) -> f64 {
    let mut reached = vec![0.0; tree.nodes()];
    tree.edges().for_each(|edge| reached[edge.1] = reached[edge.0] + hops[edge]);
    reached.into_iter().fold(0.0, f64::max)
}

/// Seconds until trees of these rates (bytes/s) and depths have carried `message` bytes, and the bytes of each.
///
/// A tree of rate x and depth d is used until d before the end T, so it carries x (T − d). Hence T = (m + Σ x d) / Σ x
/// over the trees in use; trees with depth T or more are not used.
pub(crate) fn parts(message: f64, flows: &[(f64, f64)]) -> (f64, Vec<f64>) {
    let mut order: Vec<usize> = (0..flows.len()).collect();
    order.sort_by(|&a, &b| flows[a].1.total_cmp(&flows[b].1));
    let (mut rates, mut sum, mut end) = (0.0, message, f64::INFINITY);
    for place in order {
        let (rate, depth) = flows[place];
        if depth >= end {
            break;
        }
        rates += rate;
        sum += rate * depth;
        end = sum / rates;
    }
    (end, flows.iter().map(|&(rate, depth)| (rate * (end - depth)).max(0.0)).collect())
}

/// The time at which the root releases each packet, and the packet's tree, in order of release. `flows` are the trees'
/// rates and depths, `bytes` their shares of the message. Among packets released at the same time, the deepest tree's
/// comes first.
pub(crate) fn releases(instance: &Instance, flows: &[(f64, f64)], bytes: &[f64]) -> Vec<(f64, u32)> {
    let packets = instance.packets();
    let whole: f64 = bytes.iter().sum();
    let exact: Vec<f64> = bytes.iter().map(|bytes| bytes / whole * packets as f64).collect();
    let mut counts: Vec<u64> = exact.iter().map(|count| *count as u64).collect();
    // Packets left over by rounding down go to the largest remainders.
    let mut order: Vec<usize> = (0..flows.len()).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let left = packets.saturating_sub(counts.iter().sum());
    order.iter().cycle().take(left as usize).for_each(|&place| counts[place] += 1);
    let packet = instance.packet(0) as f64;
    let mut releases = Vec::with_capacity(packets as usize);
    for (place, &count) in counts.iter().enumerate() {
        releases.extend((0..count).map(|number| (number as f64 * packet / flows[place].0, place as u32)));
    }
    let depth = |release: &(f64, u32)| flows[release.1 as usize].1;
    releases.sort_by(|a, b| a.0.total_cmp(&b.0).then(depth(b).total_cmp(&depth(a))).then(a.1.cmp(&b.1)));
    releases
}
