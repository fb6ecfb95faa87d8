use plan::{Matrix, NetworkLinks};

use crate::error::SimulationError;
use crate::network::{Network, Notice};
use crate::tcp::TcpSettings;
use crate::time::Time;
use crate::topology::NodeId;

const PING_BYTES: u32 = 64;
/// Pings per pair; the least round trip counts.
const PINGS: usize = 3;
const TRAIN_PACKET_BYTES: u32 = 1500;
/// Packets of a train.
const TRAIN: usize = 12;
/// The fewest arrivals from which a rate is computed.
const LEAST_OF_TRAIN: usize = 6;
/// Packets of a burst: they fit in a queue.
const BURST: usize = 40;
/// The most attempts for pairs whose probes were lost.
const TRIES: usize = 5;
/// Seconds after which a missing probe counts as lost.
const PATIENCE: f64 = 2.0;

/// The members' measurements of the paths between them, by probes through the network with all its traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Round trip in seconds, the least of three pings.
    pub round_trip: Matrix,
    /// Rate in bytes per second on the wire at which a train of twelve packets sent back to back arrives (packet
    /// dispersion; Dovrolis, Ramanathan, Moore, "What do packet dispersion techniques measure?", INFOCOM 2001).
    pub rate: Matrix,
    /// Total rate in bytes per second on the wire at which packets to up to 40 others, sent back to back, arrive.
    pub uplink: Vec<f64>,
    /// The same for packets from up to 40 others that meet at a member.
    pub downlink: Vec<f64>,
}

impl Measured {
    /// Measures all pairs of members. In each round every member sends to one other and receives from one other.
    ///
    /// # Errors
    /// [`SimulationError::Unmeasured`] if probes of a pair are lost in every attempt.
    pub fn between(network: &mut Network, members: &[NodeId]) -> Result<Measured, SimulationError> {
        let count = members.len();
        let mut round_trip = Matrix::from_fn(count, |_, _| f64::INFINITY);
        let mut rate = Matrix::from_fn(count, |_, _| 0.0);
        for distance in 1..count {
            for _ in 0..PINGS {
                ping_round(network, members, distance, &mut round_trip)?;
            }
            train_round(network, members, distance, &mut rate)?;
        }
        for node in 0..count {
            round_trip[(node, node)] = 0.0;
        }
        let mut uplink = vec![0.0; count];
        let mut downlink = vec![0.0; count];
        for node in 0..count {
            // If a burst was lost, use the best rate of the member's pairs.
            let pairs = (0..count).map(|other| (rate[(node, other)], rate[(other, node)]));
            let best = pairs.fold((0.0_f64, 0.0_f64), |best, pair| (best.0.max(pair.0), best.1.max(pair.1)));
            uplink[node] = burst(network, members, &round_trip, node, Direction::Up)?.unwrap_or(best.0);
            downlink[node] = burst(network, members, &round_trip, node, Direction::Down)?.unwrap_or(best.1);
        }
        Ok(Measured { round_trip, rate, uplink, downlink })
    }

    /// The links of the first `count` members as planner input: latency is half the round trip; a connection's rate is
    /// the train's, or a window per round trip if that is less. All rates are of payload.
    ///
    /// # Panics
    /// If there are fewer than `count` members.
    #[must_use]
    pub fn links(&self, count: usize, tcp: &TcpSettings) -> NetworkLinks {
        assert!(count <= self.rate.size(), "{count} of {} members", self.rate.size());
        let segment = f64::from(tcp.segment_bytes);
        let payload = segment / (segment + f64::from(tcp.header_bytes));
        let pair = |from: usize, to: usize| if from == to { 0.0 } else { self.rate[(from, to)] * payload };
        let window = tcp.window_bytes as f64;
        NetworkLinks {
            latency: Matrix::from_fn(count, |from, to| self.round_trip[(from, to)] / 2.0),
            bandwidth: Matrix::from_fn(count, |from, to| pair(from, to).min(window / self.round_trip[(from, to)])),
            uplink: self.uplink[..count].iter().map(|rate| rate * payload).collect(),
            downlink: self.downlink[..count].iter().map(|rate| rate * payload).collect(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// The rate of a burst over the shared part of the paths: one packet to each of up to 40 others, or one packet from
/// each, timed so that they meet at the node. Latencies are known, so the arrival time gives the time at which the
/// packet passed the node. `None` if too few arrived.
fn burst(
    network: &mut Network,
    members: &[NodeId],
    round_trip: &Matrix,
    node: usize,
    direction: Direction,
) -> Result<Option<f64>, SimulationError> {
    let others: Vec<usize> = (1..members.len()).map(|step| (node + step) % members.len()).take(BURST).collect();
    let latency = |other: usize| round_trip[(node, other)] / 2.0;
    let longest = others.iter().map(|&other| latency(other)).fold(0.0, f64::max);
    let bytes = TRAIN_PACKET_BYTES;
    for &other in &others {
        match direction {
            Direction::Up => network.probe(members[node], members[other], bytes, other as u64)?,
            Direction::Down => network.wake(Time::from_seconds(longest - latency(other)), other as u64),
        }
    }
    let start = network.now();
    let until = start + Time::from_seconds(PATIENCE);
    let (mut first, mut last, mut arrived) = (f64::INFINITY, 0.0_f64, 0);
    while arrived < others.len()
        && let Some(notice) = network.next(until)
    {
        match notice {
            Notice::Woken { token } => network.probe(members[token as usize], members[node], bytes, token)?,
            Notice::Probe { probe, .. } => {
                let other = probe as usize;
                let passed = (network.now() - start).seconds()
                    - if direction == Direction::Up { latency(other) } else { longest };
                first = first.min(passed);
                last = last.max(passed);
                arrived += 1;
            }
            _ => {}
        }
    }
    let is_enough = arrived >= LEAST_OF_TRAIN && last > first;
    Ok(is_enough.then(|| (arrived - 1) as f64 * f64::from(bytes) / (last - first)))
}

/// Every member pings the member `distance` further on.
fn ping_round(
    network: &mut Network,
    members: &[NodeId],
    distance: usize,
    round_trip: &mut Matrix,
) -> Result<(), SimulationError> {
    let count = members.len();
    for _ in 0..TRIES {
        let waiting: Vec<usize> =
            (0..count).filter(|&from| round_trip[(from, (from + distance) % count)].is_infinite()).collect();
        let sent = if waiting.is_empty() { (0..count).collect() } else { waiting };
        for &from in &sent {
            network.ping(members[from], members[(from + distance) % count], PING_BYTES, from as u64)?;
        }
        let until = network.now() + Time::from_seconds(PATIENCE);
        let mut missing = sent.len();
        while missing > 0
            && let Some(notice) = network.next(until)
        {
            if let Notice::Pong { probe, round_trip: seconds } = notice {
                let from = probe as usize;
                let best = &mut round_trip[(from, (from + distance) % count)];
                *best = best.min(seconds.seconds());
                missing -= 1;
            }
        }
        if (0..count).all(|from| round_trip[(from, (from + distance) % count)].is_finite()) {
            return Ok(());
        }
    }
    let from = (0..count).find(|&from| round_trip[(from, (from + distance) % count)].is_infinite()).unwrap_or(0);
    Err(SimulationError::Unmeasured { what: "the round trip", from, to: (from + distance) % count, tries: TRIES })
}

/// Every member sends a train to the member `distance` further on, all at once. Trains of which too few packets arrived
/// are repeated, one after the other.
fn train_round(
    network: &mut Network,
    members: &[NodeId],
    distance: usize,
    rate: &mut Matrix,
) -> Result<(), SimulationError> {
    let count = members.len();
    let everyone: Vec<usize> = (0..count).collect();
    let mut waiting = trains(network, members, distance, &everyone, rate)?;
    for _ in 1..TRIES {
        let again = std::mem::take(&mut waiting);
        for from in again {
            waiting.extend(trains(network, members, distance, &[from], rate)?);
        }
    }
    match waiting.first() {
        None => Ok(()),
        Some(&from) => {
            let to = (from + distance) % count;
            Err(SimulationError::Unmeasured { what: "the rate", from, to, tries: TRIES })
        }
    }
}

/// Sends one train from each of `senders`. Returns the senders of whose trains too few packets arrived.
fn trains(
    network: &mut Network,
    members: &[NodeId],
    distance: usize,
    senders: &[usize],
    rate: &mut Matrix,
) -> Result<Vec<usize>, SimulationError> {
    let count = members.len();
    for &from in senders {
        for _ in 0..TRAIN {
            network.probe(members[from], members[(from + distance) % count], TRAIN_PACKET_BYTES, from as u64)?;
        }
    }
    let until = network.now() + Time::from_seconds(PATIENCE);
    let mut arrivals: Vec<Vec<f64>> = vec![Vec::new(); count];
    let mut missing = senders.len() * TRAIN;
    while missing > 0
        && let Some(notice) = network.next(until)
    {
        if let Notice::Probe { probe, .. } = notice {
            arrivals[probe as usize].push(network.now().seconds());
            missing -= 1;
        }
    }
    let mut lost = Vec::new();
    for &from in senders {
        match &arrivals[from][..] {
            [first, .., last] if arrivals[from].len() >= LEAST_OF_TRAIN => {
                let bytes = (arrivals[from].len() - 1) as f64 * f64::from(TRAIN_PACKET_BYTES);
                rate[(from, (from + distance) % count)] = bytes / (last - first);
            }
            _ => lost.push(from),
        }
    }
    Ok(lost)
}
