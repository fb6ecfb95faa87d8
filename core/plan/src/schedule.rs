//! Several trees at once, and the simulated time until all packets have arrived.
//!
//! The model is MPPKT with downlinks: a node's uplink sends copies in the order in which their packets arrived, a
//! connection carries at its own rate, and a node's downlink takes packets as they come, at its rate. Each stage
//! overlaps the one before. For one tree whose connections are no faster than the downlinks, it equals MPPKT.

use crate::instance::Instance;
use crate::pace;
use crate::queue::{ArrivalQueue, PacketArrival};
use crate::tree::Tree;

/// Trees, each with its share of the packets, and their completion time.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Each tree with its share, the largest first. Shares are positive and their sum is 1.
    pub trees: Vec<(Tree, f64)>,
    /// By tree, the rate in bytes/s at which the root releases its packets, from the start. A sender that limits the
    /// bytes in flight of each tree comes near it. Empty for one tree: the root releases all packets at once.
    pub pace: Vec<f64>,
    /// Seconds until the last node has the last packet.
    pub time: f64,
}

impl Schedule {
    /// A schedule of these trees, each with the rate in bytes/s at which the root releases its packets; for one tree,
    /// any rate. The trees' shares are such that all end together (`pace::parts`), so trees that are too deep are left
    /// out. The time is simulated, in O(N · packets) for one tree and not much more for several.
    ///
    /// The trees must span the instance's nodes and have its root, the rates must be positive, and there must be at
    /// least one tree.
    #[must_use]
    pub fn new(instance: &Instance, trees: Vec<(Tree, f64)>) -> Schedule {
        let hops = pace::hops(instance);
        let message = instance.message_bytes() as f64;
        let flow = |(tree, rate): &(Tree, f64)| (*rate, pace::depth(&hops, tree));
        let (_, parts) = pace::parts(message, &trees.iter().map(flow).collect::<Vec<_>>());
        let used = trees.into_iter().zip(parts).filter(|(_, bytes)| *bytes > 0.0);
        let mut used: Vec<((Tree, f64), f64)> = used.collect();
        used.sort_by(|a, b| b.1.total_cmp(&a.1));
        let carried: f64 = used.iter().map(|(_, bytes)| bytes).sum();
        let trees = used.iter().map(|((tree, _), bytes)| (tree.clone(), bytes / carried)).collect();
        if let [((tree, _), _)] = &used[..] {
            return Schedule { trees, pace: Vec::new(), time: one_tree(instance, tree) };
        }
        let pace = used.iter().map(|((_, rate), _)| *rate).collect();
        let flows: Vec<(f64, f64)> = used.iter().map(|(tree, _)| flow(tree)).collect();
        let bytes: Vec<f64> = used.iter().map(|(_, bytes)| *bytes).collect();
        let time = several_trees(instance, &trees, &pace::releases(instance, &flows, &bytes));
        Schedule { trees, pace, time }
    }
}

/// The times at which each uplink and downlink is free next, and the durations of packets there.
struct Stages<'a> {
    instance: &'a Instance,
    uplink_free: Vec<f64>,
    downlink_free: Vec<f64>,
}

impl<'a> Stages<'a> {
    fn new(instance: &'a Instance) -> Stages<'a> {
        let free = vec![0.0; instance.nodes()];
        Stages { instance, uplink_free: free.clone(), downlink_free: free }
    }

    /// Sends a copy that its sender has held since `ready`. Returns the times at which its first and its last byte
    /// reach the receiver.
    fn send(&mut self, parent: usize, child: usize, ready: f64, bytes: f64, connection_free: &mut f64) -> (f64, f64) {
        let begun = self.uplink_free[parent].max(ready) + self.instance.send_overhead();
        let left = begun + bytes / self.instance.uplink(parent);
        let entered = begun.max(*connection_free);
        let carried = (entered + bytes / self.instance.bandwidth(parent, child)).max(left);
        self.uplink_free[parent] = left;
        *connection_free = carried;
        let latency = self.instance.latency(parent, child);
        (entered + latency, carried + latency)
    }

    /// The time at which a node has received a packet whose bytes reach its downlink from `first` to `last`.
    fn receive(&mut self, node: usize, first: f64, last: f64, bytes: f64) -> f64 {
        let taken = last.max(first.max(self.downlink_free[node]) + bytes / self.instance.downlink(node));
        self.downlink_free[node] = taken;
        taken + self.instance.receive_overhead()
    }
}

fn one_tree(instance: &Instance, tree: &Tree) -> f64 {
    let edges: Vec<(usize, usize)> = in_order_of_parents(tree);
    let mut stages = Stages::new(instance);
    let mut connection_free = vec![0.0; instance.nodes()];
    let mut arrived = vec![0.0; instance.nodes()];
    for number in 0..instance.packets() {
        let bytes = instance.packet(number) as f64;
        for &(parent, child) in &edges {
            let ready = arrived[parent];
            let (first, last) = stages.send(parent, child, ready, bytes, &mut connection_free[child]);
            arrived[child] = stages.receive(child, first, last, bytes);
        }
    }
    arrived.into_iter().fold(0.0, f64::max)
}

/// All edges, grouped by parent.
fn in_order_of_parents(tree: &Tree) -> Vec<(usize, usize)> {
    let children = tree.children();
    tree.order().iter().flat_map(|&parent| children[parent].iter().map(move |&child| (parent, child))).collect()
}

/// Seconds until the last packet has arrived. `releases` gives each packet's release time at the root and its tree.
fn several_trees(instance: &Instance, trees: &[(Tree, f64)], releases: &[(f64, u32)]) -> f64 {
    let nodes = instance.nodes();
    let children: Vec<Vec<Vec<usize>>> = trees.iter().map(|(tree, _)| tree.children()).collect();
    let mut stages = Stages::new(instance);
    let mut connection_free = vec![0.0; nodes * nodes];
    let mut queue = ArrivalQueue::default();
    let mut send = |stages: &mut Stages, queue: &mut ArrivalQueue, node: usize, packet: u32, tree: u32, ready: f64| {
        let bytes = instance.packet(u64::from(packet)) as f64;
        for &child in &children[tree as usize][node] {
            let (first, last) = stages.send(node, child, ready, bytes, &mut connection_free[node * nodes + child]);
            queue.push(PacketArrival { last, first, node: child as u32, packet, tree });
        }
    };
    for (packet, &(at, tree)) in releases.iter().enumerate() {
        send(&mut stages, &mut queue, instance.root(), packet as u32, tree, at);
    }
    let mut end: f64 = 0.0;
    // A downlink takes packets one after the other, so a node receives its packets in the order of the queue.
    while let Some(PacketArrival { last, first, node, packet, tree }) = queue.pop() {
        let bytes = instance.packet(u64::from(packet)) as f64;
        let arrived = stages.receive(node as usize, first, last, bytes);
        end = end.max(arrived);
        send(&mut stages, &mut queue, node as usize, packet, tree, arrived);
    }
    end
}

/// A lower bound on the time of the schedule of this tree alone, computed without simulating packets: O(N).
pub(crate) fn least_time(instance: &Instance, tree: &Tree) -> f64 {
    let message = instance.message_bytes() as f64;
    let packets = instance.packets();
    let (first_bytes, last_bytes) = (instance.packet(0) as f64, instance.packet(packets - 1) as f64);
    let (os, or) = (instance.send_overhead(), instance.receive_overhead());
    let mut children = vec![0.0; tree.nodes()];
    tree.edges().for_each(|(parent, _)| children[parent] += 1.0);
    let mut served = vec![0.0; tree.nodes()];
    let (mut first, mut last) = (vec![0.0; tree.nodes()], vec![0.0; tree.nodes()]);
    let mut end: f64 = 0.0;
    for (parent, child) in tree.edges() {
        let uplink = instance.uplink(parent);
        let rate = instance.bandwidth(parent, child).min(instance.downlink(child));
        let hop = instance.latency(parent, child) + or;
        // Copies of each packet that leave before this child's copy.
        let before: f64 = served[parent];
        served[parent] += 1.0;
        let entered = first[parent] + (before + 1.0) * os + before * first_bytes / uplink;
        let copies = (packets - 1) as f64 * children[parent] + before + 1.0;
        let sent = (message - last_bytes) * children[parent] + last_bytes * (before + 1.0);
        let left = first[parent] + copies * os + sent / uplink;
        let relayed = last[parent] + os + last_bytes / rate.min(uplink);
        first[child] = entered + first_bytes / rate.min(uplink) + hop;
        last[child] = left.max(relayed).max(entered + message / rate) + hop;
        end = end.max(last[child]);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::model::Model;
    use crate::testing::{cases, instances};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(cases(256))]

        /// The simulation of one tree agrees with the queue of arrivals, and no lower bound exceeds it.
        #[test]
        fn both_ways_of_simulating_agree(instance in instances(9)) {
            for algorithm in Algorithm::ALL {
                let tree = algorithm.build(&instance);
                let one = one_tree(&instance, &tree);
                let releases: Vec<(f64, u32)> = (0..instance.packets()).map(|_| (0.0, 0)).collect();
                let queued = several_trees(&instance, &[(tree.clone(), 1.0)], &releases);
                prop_assert!((one - queued).abs() <= 1e-9 * one, "{}: {one} {queued}", algorithm.name());
                let least = least_time(&instance, &tree);
                prop_assert!(least <= one * (1.0 + 1e-9), "{}: {least} {one}", algorithm.name());
                let plain = Model::MultiPacket.completion(&instance, &tree);
                prop_assert!(plain <= one * (1.0 + 1e-9), "{}: {plain} {one}", algorithm.name());
            }
        }
    }
}
