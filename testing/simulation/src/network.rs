use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::error::{SimulationError, check};
use crate::event::EventQueue;
use crate::packet::{Content, NetworkEvent, Packet, PathId};
use crate::random::Random;
use crate::route::Routes;
use crate::tcp::{Receiver, Sender, TcpSettings};
use crate::time::Time;
use crate::topology::{LinkId, NodeId, Topology};

/// A TCP connection: one direction, open from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u32);

/// A constant-rate flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub(crate) u32);

/// An event reported to the driver of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Notice {
    /// More bytes of a watched connection have arrived in order.
    Delivered {
        /// The connection.
        connection: ConnectionId,
        /// Bytes from the start.
        bytes: u64,
    },
    /// More bytes of a watched connection are acknowledged.
    Acknowledged {
        /// The connection.
        connection: ConnectionId,
        /// Bytes from the start.
        bytes: u64,
    },
    /// The last byte written to a watched connection was sent for the first time.
    Drained {
        /// The connection.
        connection: ConnectionId,
    },
    /// A probe arrived.
    Probe {
        /// The probe's number, as given to [`Network::probe`].
        probe: u64,
        /// Its bytes.
        bytes: u32,
    },
    /// A ping came back.
    Pong {
        /// The ping's number, as given to [`Network::ping`].
        probe: u64,
        /// The time since it was sent.
        round_trip: Time,
    },
    /// The time asked for with [`Network::wake`] has come.
    Woken {
        /// The token given to [`Network::wake`].
        token: u64,
    },
}

/// Packets of a network. At any moment `sent = delivered + overflowed + lost + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Given to the first link of their path.
    pub sent: u64,
    /// Arrived at the end of their path.
    pub delivered: u64,
    /// Dropped at a full queue.
    pub overflowed: u64,
    /// Lost on a wire.
    pub lost: u64,
    /// In a queue or on a wire.
    pub in_flight: u64,
}

/// Statistics of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    /// Bytes that arrived in order.
    pub delivered_bytes: u64,
    /// Bytes acknowledged.
    pub acknowledged_bytes: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Segments sent more than once.
    pub retransmitted: u64,
}

/// A network that packets cross in virtual time.
///
/// Links are store-and-forward with a FIFO queue each; packets take the path of least delay. A host's own interface
/// never drops segments of its own TCP: it queues them, as a kernel does. A clone continues independently and, given
/// the same calls, identically.
#[derive(Clone, Debug)]
pub struct Network {
    topology: Arc<Topology>,
    now: Time,
    events: EventQueue,
    links: Vec<LinkState>,
    routes: HashMap<NodeId, Arc<Routes>>,
    paths: Vec<Arc<[LinkId]>>,
    path_ids: HashMap<(NodeId, NodeId), PathId>,
    connections: Vec<SimulatedConnection>,
    flows: Vec<ConstantRateFlow>,
    notices: VecDeque<Notice>,
    counts: PacketCounts,
    random: Random,
}

#[derive(Clone, Copy, Debug)]
struct LinkState {
    nanoseconds_per_byte: f64,
    /// The time at which the last packet that entered will have left.
    busy_until: Time,
}

#[derive(Clone, Debug)]
struct SimulatedConnection {
    forth: PathId,
    back: PathId,
    header_bytes: u32,
    sender: Sender,
    receiver: Receiver,
    is_watched: bool,
    was_drained: bool,
    /// Due time of the connection's timer event in the queue.
    timer: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct ConstantRateFlow {
    path: PathId,
    packet_bytes: u32,
    interval: Time,
    until: Time,
    delivered_bytes: u64,
}

impl Network {
    /// A network at time zero without traffic. The seed determines the packets that a lossy cable loses.
    #[must_use]
    pub fn new(topology: Arc<Topology>, seed: u64) -> Network {
        let links = topology
            .links()
            .iter()
            .map(|link| LinkState { nanoseconds_per_byte: 1e9 / link.cable.rate, busy_until: Time::ZERO })
            .collect();
        Network {
            topology,
            now: Time::ZERO,
            events: EventQueue::default(),
            links,
            routes: HashMap::new(),
            paths: Vec::new(),
            path_ids: HashMap::new(),
            connections: Vec::new(),
            flows: Vec::new(),
            notices: VecDeque::new(),
            counts: PacketCounts::default(),
            random: Random::new(seed, 3),
        }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// The topology.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Runs to the next notice and returns it. If there is none until `until`, runs to that time and returns `None`.
    pub fn next(&mut self, until: Time) -> Option<Notice> {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Some(notice);
            }
            let Some((at, event)) = self.events.pop(until) else {
                self.now = self.now.max(until);
                return None;
            };
            self.now = at;
            self.happens(event);
        }
    }

    /// Runs to a point in time and drops the notices.
    pub fn run(&mut self, until: Time) {
        while self.next(until).is_some() {}
    }

    /// Opens a connection from one node to another. Watched connections give notices.
    ///
    /// # Errors
    /// [`SimulationError::Unreachable`]; [`SimulationError::Parameter`] for settings out of range.
    pub fn connect(
        &mut self,
        from: NodeId,
        to: NodeId,
        settings: TcpSettings,
        is_watched: bool,
    ) -> Result<ConnectionId, SimulationError> {
        settings.check()?;
        let (forth, back) = (self.path(from, to)?, self.path(to, from)?);
        self.connections.push(SimulatedConnection {
            forth,
            back,
            header_bytes: settings.header_bytes,
            sender: Sender::new(settings),
            receiver: Receiver::default(),
            is_watched,
            was_drained: true,
            timer: None,
        });
        Ok(ConnectionId(self.connections.len() as u32 - 1))
    }

    /// The sending application writes bytes to a connection.
    ///
    /// # Panics
    /// If the connection belongs to another network.
    pub fn write(&mut self, connection: ConnectionId, bytes: u64) {
        let state = &mut self.connections[connection.0 as usize];
        state.sender.write(bytes);
        state.was_drained = false;
        self.send(connection.0);
    }

    /// The statistics of a connection so far.
    ///
    /// # Panics
    /// If the connection belongs to another network.
    #[must_use]
    pub fn report(&self, connection: ConnectionId) -> ConnectionReport {
        let connection = &self.connections[connection.0 as usize];
        let (timeouts, retransmitted) = connection.sender.losses();
        ConnectionReport {
            delivered_bytes: connection.receiver.next(),
            acknowledged_bytes: connection.sender.acknowledged_bytes(),
            timeouts,
            retransmitted,
        }
    }

    /// A flow of packets of one size (headers included) at a constant rate in bytes per second, from `start` to `end`,
    /// without congestion control.
    ///
    /// # Errors
    /// [`SimulationError::Unreachable`]; [`SimulationError::Parameter`] for a rate or size out of range.
    pub fn constant_flow(
        &mut self,
        (from, to): (NodeId, NodeId),
        rate: f64,
        packet_bytes: u32,
        start: Time,
        end: Time,
    ) -> Result<FlowId, SimulationError> {
        check("flow rate", rate, 1.0, 1e12, "bytes per second, from 1 to 1e12")?;
        check("packet_bytes", f64::from(packet_bytes), 1.0, 65_535.0, "from 1 to 65535")?;
        let interval = Time::from_seconds(f64::from(packet_bytes) / rate);
        check("packet interval", interval.seconds(), 1e-9, 1e6, "from 1 ns to 1e6 s")?;
        let path = self.path(from, to)?;
        let flow = self.flows.len() as u32;
        self.flows.push(ConstantRateFlow { path, packet_bytes, interval, until: end, delivered_bytes: 0 });
        self.events.add(start.max(self.now), NetworkEvent::Tick { flow });
        Ok(FlowId(flow))
    }

    /// Bytes of a flow that have arrived, headers included.
    ///
    /// # Panics
    /// If the flow belongs to another network.
    #[must_use]
    pub fn flow_delivered_bytes(&self, flow: FlowId) -> u64 {
        self.flows[flow.0 as usize].delivered_bytes
    }

    /// Sends one probe packet, whose arrival is a notice.
    ///
    /// # Errors
    /// [`SimulationError::Unreachable`].
    pub fn probe(&mut self, from: NodeId, to: NodeId, bytes: u32, probe: u64) -> Result<(), SimulationError> {
        let path = self.path(from, to)?;
        self.emit(path, bytes, Content::Probe { probe });
        Ok(())
    }

    /// Sends one packet that is answered with a packet of the same size. The answer's arrival is a notice.
    ///
    /// # Errors
    /// [`SimulationError::Unreachable`].
    pub fn ping(&mut self, from: NodeId, to: NodeId, bytes: u32, probe: u64) -> Result<(), SimulationError> {
        let (path, back) = (self.path(from, to)?, self.path(to, from)?);
        self.emit(path, bytes, Content::Ping { probe, back });
        Ok(())
    }

    /// Asks for [`Notice::Woken`] after a time.
    pub fn wake(&mut self, after: Time, token: u64) {
        self.events.add(self.now + after, NetworkEvent::Wake { token });
    }

    /// The packet counts so far.
    #[must_use]
    pub fn counts(&self) -> PacketCounts {
        PacketCounts { in_flight: self.events.packets_in_flight(), ..self.counts }
    }

    /// The number of events so far, the cost of a run.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.added()
    }

    /// The links of the path from one node to another.
    ///
    /// # Errors
    /// [`SimulationError::Unreachable`].
    pub fn links_between(&mut self, from: NodeId, to: NodeId) -> Result<Vec<LinkId>, SimulationError> {
        let path = self.path(from, to)?;
        Ok(self.paths[path.0 as usize].to_vec())
    }

    fn path(&mut self, from: NodeId, to: NodeId) -> Result<PathId, SimulationError> {
        if let Some(&known) = self.path_ids.get(&(from, to)) {
            return Ok(known);
        }
        let topology = &self.topology;
        let routes = self.routes.entry(from).or_insert_with(|| Arc::new(Routes::from(topology, from)));
        let links = routes.path(topology, to)?;
        if links.is_empty() {
            return Err(SimulationError::Unreachable { from: from.0, to: to.0 });
        }
        let id = PathId(self.paths.len() as u32);
        self.paths.push(links.into());
        self.path_ids.insert((from, to), id);
        Ok(id)
    }

    fn happens(&mut self, event: NetworkEvent) {
        match event {
            NetworkEvent::Arrival(packet) if usize::from(packet.hop) < self.paths[packet.path.0 as usize].len() => {
                self.enter(packet);
            }
            NetworkEvent::Arrival(packet) => {
                self.counts.delivered += 1;
                self.arrived(packet);
            }
            NetworkEvent::Timer { connection } => self.timer(connection),
            NetworkEvent::Tick { flow } => {
                let ConstantRateFlow { path, packet_bytes, interval, until, .. } = self.flows[flow as usize];
                if self.now < until {
                    self.emit(path, packet_bytes, Content::Constant { flow });
                    self.events.add(self.now + interval, NetworkEvent::Tick { flow });
                }
            }
            NetworkEvent::Wake { token } => self.notices.push_back(Notice::Woken { token }),
        }
    }

    fn arrived(&mut self, packet: Packet) {
        match packet.content {
            Content::Data { connection, segment } => {
                let state = &mut self.connections[connection as usize];
                let before = state.receiver.next();
                state.receiver.arrived(segment);
                let bytes = state.receiver.next();
                if bytes > before && state.is_watched {
                    self.notices.push_back(Notice::Delivered { connection: ConnectionId(connection), bytes });
                }
                let (back, header) = (state.back, state.header_bytes);
                self.emit(back, header, Content::Acknowledgement { connection, to: bytes, echo: packet.sent });
            }
            Content::Acknowledgement { connection, to, echo } => {
                let state = &mut self.connections[connection as usize];
                let before = state.sender.acknowledged_bytes();
                state.sender.acknowledged(to, echo, self.now);
                let bytes = state.sender.acknowledged_bytes();
                if bytes > before && state.is_watched {
                    self.notices.push_back(Notice::Acknowledged { connection: ConnectionId(connection), bytes });
                }
                self.send(connection);
            }
            Content::Constant { flow } => self.flows[flow as usize].delivered_bytes += u64::from(packet.bytes),
            Content::Probe { probe } => self.notices.push_back(Notice::Probe { probe, bytes: packet.bytes }),
            Content::Ping { probe, back } => self.emit(back, packet.bytes, Content::Pong { probe, sent: packet.sent }),
            Content::Pong { probe, sent } => {
                self.notices.push_back(Notice::Pong { probe, round_trip: self.now - sent });
            }
        }
    }

    /// Sends all segments that a connection may send now, and arms its timer.
    fn send(&mut self, connection: u32) {
        loop {
            let state = &mut self.connections[connection as usize];
            let Some(segment) = state.sender.next_segment(self.now) else { break };
            let (path, bytes) = (state.forth, segment.bytes + state.header_bytes);
            self.emit(path, bytes, Content::Data { connection, segment });
        }
        let state = &mut self.connections[connection as usize];
        if !state.was_drained && state.sender.is_drained() {
            state.was_drained = true;
            if state.is_watched {
                self.notices.push_back(Notice::Drained { connection: ConnectionId(connection) });
            }
        }
        if let (Some(due), None) = (state.sender.deadline(), state.timer) {
            state.timer = Some(due);
            self.events.add(due, NetworkEvent::Timer { connection });
        }
    }

    /// Handles the connection's only timer event: times out if the deadline has passed, otherwise the deadline has
    /// moved.
    fn timer(&mut self, connection: u32) {
        let state = &mut self.connections[connection as usize];
        state.timer = None;
        if state.sender.deadline().is_some_and(|due| due <= self.now) {
            state.sender.timed_out(self.now);
        }
        self.send(connection);
    }

    fn emit(&mut self, path: PathId, bytes: u32, content: Content) {
        self.counts.sent += 1;
        self.enter(Packet { path, hop: 0, bytes, sent: self.now, content });
    }

    /// Puts a packet on the next link of its path. It leaves once all packets before it have left and it has been
    /// transmitted itself.
    fn enter(&mut self, mut packet: Packet) {
        let id = self.paths[packet.path.0 as usize][usize::from(packet.hop)];
        let cable = self.topology.links()[id.0 as usize].cable;
        let link = &mut self.links[id.0 as usize];
        let is_own =
            packet.hop == 0 && matches!(packet.content, Content::Data { .. } | Content::Acknowledgement { .. });
        let waiting = (link.busy_until - self.now).nanoseconds() as f64 / link.nanoseconds_per_byte;
        if !is_own && waiting + f64::from(packet.bytes) > f64::from(cable.queue_bytes) {
            self.counts.overflowed += 1;
            return;
        }
        let sending = Time::from_nanoseconds((f64::from(packet.bytes) * link.nanoseconds_per_byte).round() as u64);
        link.busy_until = link.busy_until.max(self.now) + sending;
        if cable.loss > 0.0 && self.random.chance(cable.loss) {
            self.counts.lost += 1;
            return;
        }
        packet.hop += 1;
        self.events.add(link.busy_until + cable.delay, NetworkEvent::Arrival(packet));
    }
}
