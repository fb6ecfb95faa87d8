//! A broadcast: the message, the nodes and the links between them.

use std::ops::RangeInclusive;

use thiserror::Error;

use crate::matrix::Matrix;

/// The most nodes of an instance: its matrices then take 256 MiB.
pub const MOST_NODES: usize = 4096;

/// The most packets of one message.
pub const MOST_PACKETS: u64 = 1 << 22;

/// Reasons for rejecting an instance. The author of the file or the call must fix it.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum InstanceError {
    /// The text is not JSON.
    #[error("line {line}, column {column}: {what}")]
    Json { line: usize, column: usize, what: String },
    /// A field is missing.
    #[error("{field}: missing; an instance needs it")]
    Missing { field: &'static str },
    /// A field appears twice.
    #[error("{field}: given twice; which one counts is unclear, so remove one")]
    Twice { field: String },
    /// A value has the wrong kind or is out of range.
    #[error("{place}: {found} is not {wanted}")]
    Value { place: String, found: String, wanted: &'static str },
    /// A list is shorter or longer than the number of nodes.
    #[error("{place}: {found} entries, but N is {wanted}")]
    Length { place: String, found: usize, wanted: usize },
    /// More than one node is named as root.
    #[error("{place}: two roots, {found}; a broadcast has one")]
    TwoRoots { place: String, found: String },
    /// No path leads from the root to a node.
    #[error("bandwidth_Bps: node {node} is unreachable from root {root}: no node reached has a positive rate to it")]
    Unreachable { node: usize, root: usize },
    /// A pair of nodes has no rate, although others reach the receiver.
    #[error("bandwidth_Bps[{sender}][{receiver}]: null; only the diagonal has no rate, so give the rate in bytes/s")]
    NoRate { sender: usize, receiver: usize },
    /// The message has too many packets.
    #[error(
        "packet_bytes: {packet} bytes make {packets} packets of a message of {message} bytes, at most {MOST_PACKETS}; \
         choose larger packets"
    )]
    Packets { packet: u64, packets: u64, message: u64 },
}

/// The links between `latency.size()` nodes. All times in seconds, all rates in bytes/s.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkLinks {
    /// One-way latency from sender to receiver; the diagonal does not count.
    pub latency: Matrix,
    /// The rate of one connection from sender to receiver; the diagonal does not count.
    pub bandwidth: Matrix,
    /// The rate at which a node sends to all others together. Without such a limit: the sum of its row in `bandwidth`.
    pub uplink: Vec<f64>,
    /// The rate at which a node receives from all others together. Without such a limit: the sum of its column in
    /// `bandwidth`.
    pub downlink: Vec<f64>,
}

/// One broadcast: a message from the root to all other nodes, and the links. Every value has been checked: rates are
/// positive and finite, latencies and overheads finite and not negative.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    root: usize,
    message_bytes: u64,
    packet_bytes: u64,
    send_overhead: f64,
    receive_overhead: f64,
    links: NetworkLinks,
}

impl Instance {
    /// An instance without overheads. `message_bytes` is cut into packets of `packet_bytes`, the last of which may be
    /// shorter.
    ///
    /// # Errors
    /// [`InstanceError`] names the entry that is out of range, by its name in an instance file.
    pub fn new(
        links: NetworkLinks,
        root: usize,
        message_bytes: u64,
        packet_bytes: u64,
    ) -> Result<Instance, InstanceError> {
        let instance = Instance { root, message_bytes, packet_bytes, send_overhead: 0.0, receive_overhead: 0.0, links };
        instance.check()?;
        Ok(instance)
    }

    /// The same instance with overheads: the processor time to send and to receive one packet or block, in seconds.
    ///
    /// # Errors
    /// An overhead is negative or not finite.
    pub fn with_overheads(mut self, send: f64, receive: f64) -> Result<Instance, InstanceError> {
        check_value(|| "os".to_owned(), send, SECONDS.contains(&send), NOT_NEGATIVE)?;
        check_value(|| "or_".to_owned(), receive, SECONDS.contains(&receive), NOT_NEGATIVE)?;
        (self.send_overhead, self.receive_overhead) = (send, receive);
        Ok(self)
    }

    /// The same broadcast of a message of another size.
    ///
    /// # Errors
    /// A size is 0 or above 2^53, or the message has more than [`MOST_PACKETS`] packets.
    pub fn with_message(&self, message_bytes: u64, packet_bytes: u64) -> Result<Instance, InstanceError> {
        let instance = Instance { message_bytes, packet_bytes, ..self.clone() };
        instance.check_sizes()?;
        Ok(instance)
    }

    /// The same instance with packets large enough that the message has at most `packets`.
    pub(crate) fn with_at_most(&self, packets: u64) -> Instance {
        let packet_bytes = self.packet_bytes.max(self.message_bytes.div_ceil(packets));
        Instance { packet_bytes, ..self.clone() }
    }

    /// The same instance without overheads; instead, uplinks are slower by the processor time to send each packet.
    pub(crate) fn without_overheads(&self) -> Instance {
        let packet = self.packet(0) as f64;
        let mut links = self.links.clone();
        links.uplink.iter_mut().for_each(|rate| *rate = packet / (self.send_overhead + packet / *rate));
        Instance { links, send_overhead: 0.0, receive_overhead: 0.0, ..self.clone() }
    }

    /// The number of nodes, at least 2.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.links.latency.size()
    }

    /// The node that has the message at the start.
    #[must_use]
    pub fn root(&self) -> usize {
        self.root
    }

    /// All nodes except the root, ascending.
    pub fn receivers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes()).filter(|&node| node != self.root)
    }

    #[must_use]
    pub fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    #[must_use]
    pub fn packet_bytes(&self) -> u64 {
        self.packet_bytes
    }

    /// The number of packets of the message.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.message_bytes.div_ceil(self.packet_bytes)
    }

    /// The bytes of packet `number`: all but the last are full.
    #[must_use]
    pub fn packet(&self, number: u64) -> u64 {
        self.packet_bytes.min(self.message_bytes - number * self.packet_bytes)
    }

    /// Processor time to send one packet or block, in seconds.
    #[must_use]
    pub fn send_overhead(&self) -> f64 {
        self.send_overhead
    }

    /// Processor time to receive one packet or block, in seconds.
    #[must_use]
    pub fn receive_overhead(&self) -> f64 {
        self.receive_overhead
    }

    /// The links.
    #[must_use]
    pub fn links(&self) -> &NetworkLinks {
        &self.links
    }

    /// One-way latency in seconds.
    #[must_use]
    pub fn latency(&self, sender: usize, receiver: usize) -> f64 {
        self.links.latency[(sender, receiver)]
    }

    /// The rate of one connection in bytes/s.
    #[must_use]
    pub fn bandwidth(&self, sender: usize, receiver: usize) -> f64 {
        self.links.bandwidth[(sender, receiver)]
    }

    /// The rate at which a node sends to all others together, in bytes/s.
    #[must_use]
    pub fn uplink(&self, node: usize) -> f64 {
        self.links.uplink[node]
    }

    /// The rate at which a node receives from all others together, in bytes/s.
    #[must_use]
    pub fn downlink(&self, node: usize) -> f64 {
        self.links.downlink[node]
    }

    /// C(i, j) = L(i, j) + m / B(i, j), in seconds; 0 on the diagonal. Bhat's cost of the whole message.
    #[must_use]
    pub fn costs(&self) -> Matrix {
        let message = self.message_bytes as f64;
        Matrix::from_fn(
            self.nodes(),
            |i, j| {
                if i == j { 0.0 } else { self.latency(i, j) + message / self.bandwidth(i, j) }
            },
        )
    }

    fn check(&self) -> Result<(), InstanceError> {
        let links = &self.links;
        let nodes = links.latency.size();
        if !(2..=MOST_NODES).contains(&nodes) {
            return Err(value("N".to_owned(), nodes, "a number of nodes from 2 to 4096"));
        }
        let lengths = [
            ("bandwidth_Bps", links.bandwidth.size()),
            ("uplink_Bps", links.uplink.len()),
            ("downlink_Bps", links.downlink.len()),
        ];
        for (place, found) in lengths {
            if found != nodes {
                return Err(InstanceError::Length { place: place.to_owned(), found, wanted: nodes });
            }
        }
        if self.root >= nodes {
            return Err(value("root".to_owned(), self.root, "the number of a node: they begin with 0"));
        }
        self.check_sizes()?;
        for i in 0..nodes {
            for j in (0..nodes).filter(|&j| j != i) {
                let (latency, rate) = (self.latency(i, j), self.bandwidth(i, j));
                check_value(|| format!("latency_s[{i}][{j}]"), latency, SECONDS.contains(&latency), NOT_NEGATIVE)?;
                check_value(|| format!("bandwidth_Bps[{i}][{j}]"), rate, RATES.contains(&rate), POSITIVE)?;
            }
            let (up, down) = (self.uplink(i), self.downlink(i));
            check_value(|| format!("uplink_Bps[{i}]"), up, RATES.contains(&up), POSITIVE)?;
            check_value(|| format!("downlink_Bps[{i}]"), down, RATES.contains(&down), POSITIVE)?;
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), InstanceError> {
        let (message, packet) = (self.message_bytes, self.packet_bytes);
        for (field, bytes) in [("message_bytes", message), ("packet_bytes", packet)] {
            if bytes == 0 || bytes > 1 << 53 {
                return Err(value(field.to_owned(), bytes, "a whole number of bytes from 1 to 2^53"));
            }
        }
        let packets = self.packets();
        if packets > MOST_PACKETS {
            return Err(InstanceError::Packets { packet, packets, message });
        }
        Ok(())
    }
}

const SECONDS: RangeInclusive<f64> = 0.0..=1e9;
const RATES: RangeInclusive<f64> = 1e-3..=1e18;
pub(crate) const NOT_NEGATIVE: &str = "a number of seconds from 0 to 1e9";
pub(crate) const POSITIVE: &str = "a rate in bytes/s from 0.001 to 1e18";

pub(crate) fn value(place: String, found: impl ToString, wanted: &'static str) -> InstanceError {
    InstanceError::Value { place, found: found.to_string(), wanted }
}

fn check_value(
    place: impl Fn() -> String,
    found: f64,
    is_in_range: bool,
    wanted: &'static str,
) -> Result<(), InstanceError> {
    if found.is_finite() && is_in_range { Ok(()) } else { Err(value(place(), short(found), wanted)) }
}

/// `number` with few digits: Rust's plain form writes 1e308 with 308 zeros.
fn short(number: f64) -> String {
    let is_plain = number == 0.0 || !number.is_finite() || (1e-5..1e16).contains(&number.abs());
    if is_plain { number.to_string() } else { format!("{number:e}") }
}
