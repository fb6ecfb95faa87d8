//! Five cost models for the completion time of a tree.
//!
//! | model | a copy keeps its sender busy for | it arrives after | unit |
//! |---|---|---|---|
//! | PATH | nothing: all children at once | os + (m−1)/B + L + or | message |
//! | BHAT | os + m/B + L + or, here without overheads | the same | message |
//! | LOGGP | os + (m−1)/B | that + L + or | message |
//! | LOGPKT | os + s/B | that + L + or | packet |
//! | MPPKT | os + s/U, its uplink | then s/B on the connection, overlapping, + L + or | packet |
//!
//! m is the message, s a packet, B the connection's rate, U the sender's uplink, L the latency. In the packet models a
//! node sends packet after packet, each to all its children in their order, as soon as it has it.

use crate::instance::Instance;
use crate::tree::Tree;

/// A model of cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Model {
    /// Sum of costs along the path, without serialisation: the paper of TPS.
    Path,
    /// Blocking one-port: Bhat, Raghavendra and Prasanna, ICDCS 1999.
    Bhat,
    /// LogGP: Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995; one port, latency overlapped.
    LogGp,
    /// One port, message sent in packets.
    LogPacket,
    /// Several ports in packets: an uplink shared by connections with rates of their own. This model fits gateways.
    MultiPacket,
}

impl Model {
    /// All models.
    pub const ALL: [Model; 5] = [Model::Path, Model::Bhat, Model::LogGp, Model::LogPacket, Model::MultiPacket];

    /// The name in instance files and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Model::Path => "PATH",
            Model::Bhat => "BHAT",
            Model::LogGp => "LOGGP",
            Model::LogPacket => "LOGPKT",
            Model::MultiPacket => "MPPKT",
        }
    }

    /// Seconds until the last node has the whole message. O(N), or O(N · packets) in the packet models.
    ///
    /// The tree must span the instance's nodes and have its root.
    #[must_use]
    pub fn completion(self, instance: &Instance, tree: &Tree) -> f64 {
        self.arrivals(instance, tree).into_iter().fold(0.0, f64::max)
    }

    /// Seconds until each node has the whole message; 0 for the root. See [`Model::completion`].
    #[must_use]
    pub fn arrivals(self, instance: &Instance, tree: &Tree) -> Vec<f64> {
        debug_assert!(tree.nodes() == instance.nodes() && tree.root() == instance.root());
        match self {
            Model::Path | Model::Bhat | Model::LogGp => self.blocks(instance, tree),
            Model::LogPacket => packets(instance, tree, OnePort::new(instance)),
            Model::MultiPacket => packets(instance, tree, Uplinks::new(instance)),
        }
    }

    fn blocks(self, instance: &Instance, tree: &Tree) -> Vec<f64> {
        let message = instance.message_bytes() as f64;
        let (os, or) = (instance.send_overhead(), instance.receive_overhead());
        let mut ready = vec![0.0; tree.nodes()];
        let mut arrived = vec![0.0; tree.nodes()];
        for (parent, child) in tree.edges() {
            let (latency, rate) = (instance.latency(parent, child), instance.bandwidth(parent, child));
            let start = ready[parent];
            let sent = start + os + (message - 1.0) / rate;
            arrived[child] = match self {
                Model::Bhat => start + message / rate + latency,
                _ => sent + latency + or,
            };
            ready[parent] = match self {
                Model::Path => start,
                Model::Bhat => arrived[child],
                _ => sent,
            };
            ready[child] = arrived[child];
        }
        arrived
    }
}

/// The times at which packets leave their senders, on each connection.
trait Port {
    /// The time at which a packet of `bytes` for `child` has left `parent`, which has held it since `ready`.
    fn send(&mut self, parent: usize, child: usize, ready: f64, bytes: f64) -> f64;
}

fn packets(instance: &Instance, tree: &Tree, mut port: impl Port) -> Vec<f64> {
    let children = tree.children();
    let or = instance.receive_overhead();
    let mut arrived = vec![0.0; tree.nodes()];
    for number in 0..instance.packets() {
        let bytes = instance.packet(number) as f64;
        for &parent in tree.order() {
            for &child in &children[parent] {
                let sent = port.send(parent, child, arrived[parent], bytes);
                arrived[child] = sent + instance.latency(parent, child) + or;
            }
        }
    }
    arrived
}

struct OnePort<'a> {
    instance: &'a Instance,
    free: Vec<f64>,
}

impl<'a> OnePort<'a> {
    fn new(instance: &'a Instance) -> OnePort<'a> {
        OnePort { instance, free: vec![0.0; instance.nodes()] }
    }
}

impl Port for OnePort<'_> {
    fn send(&mut self, parent: usize, child: usize, ready: f64, bytes: f64) -> f64 {
        let start = self.free[parent].max(ready);
        self.free[parent] = start + self.instance.send_overhead() + bytes / self.instance.bandwidth(parent, child);
        self.free[parent]
    }
}

/// A packet enters its connection when the uplink begins to send it, and leaves the connection no earlier than the
/// uplink.
struct Uplinks<'a> {
    instance: &'a Instance,
    uplink_free: Vec<f64>,
    /// By child: a tree has one connection to each child.
    connection_free: Vec<f64>,
}

impl<'a> Uplinks<'a> {
    fn new(instance: &'a Instance) -> Uplinks<'a> {
        let free = vec![0.0; instance.nodes()];
        Uplinks { instance, uplink_free: free.clone(), connection_free: free }
    }
}

impl Port for Uplinks<'_> {
    fn send(&mut self, parent: usize, child: usize, ready: f64, bytes: f64) -> f64 {
        let begun = self.uplink_free[parent].max(ready) + self.instance.send_overhead();
        let left = begun + bytes / self.instance.uplink(parent);
        let carried = begun.max(self.connection_free[child]) + bytes / self.instance.bandwidth(parent, child);
        self.uplink_free[parent] = left;
        self.connection_free[child] = carried.max(left);
        self.connection_free[child]
    }
}
