use std::collections::{BTreeMap, HashMap, VecDeque};

use plan::Tree;

use crate::error::SimulationError;
use crate::network::{ConnectionId, Network, Notice};
use crate::tcp::TcpSettings;
use crate::time::Time;
use crate::topology::NodeId;

/// Chunk size in bytes when the root spreads a message over several trees.
const CHUNK: u64 = 16_384;
/// Bytes that each connection carries before the broadcast, so that it has measured its round trip.
const GREETING: u64 = 64;

/// The way a member relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RelayMode {
    /// A member stores the whole message, then sends it to one child after the other. The next child's turn comes when
    /// the last byte has left.
    Block,
    /// Like [`RelayMode::Block`], but the next child's turn comes when the previous child has acknowledged the whole
    /// message (stop-and-wait; Bhat's one-port model).
    Acknowledged,
    /// A member forwards arriving bytes at once to all children (the paper's packet-level parallel transfer).
    Packet,
}

impl RelayMode {
    /// All modes.
    pub const ALL: [RelayMode; 3] = [RelayMode::Block, RelayMode::Acknowledged, RelayMode::Packet];

    /// The name in command lines and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RelayMode::Block => "block",
            RelayMode::Acknowledged => "acknowledged",
            RelayMode::Packet => "packet",
        }
    }
}

/// The trees of a broadcast, with their shares. All trees have the same root and the same nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// Each tree carries this many bytes; together they are the message.
    Parts(Vec<(Tree, u64)>),
    /// Each tree carries the whole message; a member is complete with its first full copy (TTCC).
    Copies(Vec<Tree>, u64),
}

/// The result of a broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Seconds from the start until each member had the whole message; 0 for the root.
    pub arrivals: Vec<f64>,
    /// Retransmission timeouts of the broadcast's connections.
    pub timeouts: u64,
    /// Segments that these connections sent more than once.
    pub retransmitted: u64,
}

impl Outcome {
    /// Seconds until the last member had the whole message.
    #[must_use]
    pub fn completion(&self) -> f64 {
        self.arrivals.iter().copied().fold(0.0, f64::max)
    }
}

/// Broadcasts a message over trees of TCP connections; member i of the trees is `members[i]`. Connections are open and
/// have carried one small message before. A pair of members uses one connection for all trees.
///
/// # Errors
/// [`SimulationError::NotATree`] if trees do not fit the members or each other; [`SimulationError::Unfinished`] after
/// `limit`.
pub fn broadcast(
    network: &mut Network,
    members: &[NodeId],
    schedule: &Schedule,
    mode: RelayMode,
    tcp: TcpSettings,
    limit: Time,
) -> Result<Outcome, SimulationError> {
    let mut run = Run::new(network, members, schedule, mode, tcp)?;
    run.greet(limit)?;
    let start = run.network.now();
    run.begin();
    while run.complete < members.len() {
        let Some(notice) = run.network.next(start + limit) else {
            return Err(SimulationError::Unfinished {
                reached: run.complete,
                members: members.len(),
                seconds: limit.seconds(),
            });
        };
        run.noticed(notice, start);
    }
    let reports = run.edges.iter().map(|edge| run.network.report(edge.connection));
    let (timeouts, retransmitted) =
        reports.fold((0, 0), |sum, report| (sum.0 + report.timeouts, sum.1 + report.retransmitted));
    Ok(Outcome { arrivals: run.arrivals, timeouts, retransmitted })
}

/// One connection of the broadcast.
#[derive(Debug)]
struct Edge {
    connection: ConnectionId,
    from: usize,
    to: usize,
    written: u64,
    delivered: u64,
    /// (tree, bytes) written but not yet delivered, in order.
    contents: VecDeque<(usize, u64)>,
}

#[derive(Debug)]
struct Run<'a> {
    network: &'a mut Network,
    mode: RelayMode,
    /// For each tree: children of each member, and bytes to carry.
    trees: Vec<(Vec<Vec<usize>>, u64)>,
    is_copies: bool,
    root: usize,
    edges: Vec<Edge>,
    edge_of: BTreeMap<(usize, usize), usize>,
    by_connection: HashMap<ConnectionId, usize>,
    /// By member and tree: bytes that have arrived. `passed` holds the bytes passed on.
    arrived: Vec<Vec<u64>>,
    passed: Vec<Vec<u64>>,
    /// By member, in block modes: blocks still to send, as (edge, tree, bytes). The first one is being sent.
    jobs: Vec<VecDeque<(usize, usize, u64)>>,
    arrivals: Vec<f64>,
    complete: usize,
}

impl<'a> Run<'a> {
    fn new(
        network: &'a mut Network,
        members: &[NodeId],
        schedule: &Schedule,
        mode: RelayMode,
        tcp: TcpSettings,
    ) -> Result<Run<'a>, SimulationError> {
        let (given, is_copies): (Vec<(&Tree, u64)>, bool) = match schedule {
            Schedule::Parts(parts) => (parts.iter().map(|(tree, bytes)| (tree, *bytes)).collect(), false),
            Schedule::Copies(trees, bytes) => (trees.iter().map(|tree| (tree, *bytes)).collect(), true),
        };
        let root = given.first().map_or(0, |(tree, _)| tree.root());
        if given.is_empty() || root >= members.len() {
            let why = format!("a schedule needs at least one, whose root is one of the {} members", members.len());
            return Err(SimulationError::NotATree { tree: 0, why });
        }
        let mut run = Run {
            network,
            mode,
            trees: Vec::new(),
            is_copies,
            root,
            edges: Vec::new(),
            edge_of: BTreeMap::new(),
            by_connection: HashMap::new(),
            arrived: vec![vec![0; given.len()]; members.len()],
            passed: vec![vec![0; given.len()]; members.len()],
            jobs: vec![VecDeque::new(); members.len()],
            arrivals: vec![f64::INFINITY; members.len()],
            complete: 1,
        };
        run.arrivals[root] = 0.0;
        for (number, &(tree, bytes)) in given.iter().enumerate() {
            if tree.nodes() != members.len() || tree.root() != root {
                let why = format!(
                    "{} nodes and root {}, but there are {} members and the first tree's root is {root}",
                    tree.nodes(),
                    tree.root(),
                    members.len()
                );
                return Err(SimulationError::NotATree { tree: number, why });
            }
            run.trees.push((tree.children(), bytes));
            for (from, to) in tree.edges() {
                run.connect(members, from, to, tcp)?;
            }
        }
        Ok(run)
    }

    fn connect(&mut self, members: &[NodeId], from: usize, to: usize, tcp: TcpSettings) -> Result<(), SimulationError> {
        if !self.edge_of.contains_key(&(from, to)) {
            let connection = self.network.connect(members[from], members[to], tcp, true)?;
            self.edge_of.insert((from, to), self.edges.len());
            self.by_connection.insert(connection, self.edges.len());
            let contents = VecDeque::new();
            self.edges.push(Edge { connection, from, to, written: 0, delivered: 0, contents });
        }
        Ok(())
    }

    /// Sends a greeting over each connection and waits until all are acknowledged.
    fn greet(&mut self, limit: Time) -> Result<(), SimulationError> {
        let until = self.network.now() + limit;
        for edge in &mut self.edges {
            self.network.write(edge.connection, GREETING);
            edge.written = GREETING;
            edge.delivered = GREETING;
        }
        let mut missing = self.edges.len();
        while missing > 0 {
            match self.network.next(until) {
                Some(Notice::Acknowledged { bytes: GREETING, .. }) => missing -= 1,
                Some(_) => {}
                None => {
                    let (members, seconds) = (self.arrivals.len(), limit.seconds());
                    return Err(SimulationError::Unfinished { reached: 0, members, seconds });
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self) {
        for (number, (_, bytes)) in self.trees.iter().enumerate() {
            self.arrived[self.root][number] = *bytes;
        }
        if self.mode != RelayMode::Packet || self.is_copies || self.trees.len() == 1 {
            self.pass_on(self.root);
            return;
        }
        // Several trees: send chunk by chunk, always to the tree that is furthest behind its share.
        let mut sent = vec![0_u64; self.trees.len()];
        loop {
            let share = |number: usize| sent[number] as f64 / self.trees[number].1 as f64;
            let behind = (0..self.trees.len())
                .filter(|&number| sent[number] < self.trees[number].1)
                .min_by(|&one, &other| share(one).total_cmp(&share(other)));
            let Some(number) = behind else { return };
            let bytes = CHUNK.min(self.trees[number].1 - sent[number]);
            sent[number] += bytes;
            self.pass(self.root, number, bytes);
        }
    }

    fn noticed(&mut self, notice: Notice, start: Time) {
        match notice {
            Notice::Delivered { connection, bytes } => {
                if let Some(&edge) = self.by_connection.get(&connection) {
                    self.delivered(edge, bytes, start);
                }
            }
            Notice::Drained { connection } if self.mode == RelayMode::Block => {
                if let Some(&edge) = self.by_connection.get(&connection) {
                    self.job_done(edge);
                }
            }
            Notice::Acknowledged { connection, bytes } if self.mode == RelayMode::Acknowledged => {
                if let Some(&edge) = self.by_connection.get(&connection)
                    && bytes == self.edges[edge].written
                {
                    self.job_done(edge);
                }
            }
            _ => {}
        }
    }

    fn delivered(&mut self, edge: usize, bytes: u64, start: Time) {
        let state = &mut self.edges[edge];
        let node = state.to;
        let mut new = bytes - state.delivered;
        state.delivered = bytes;
        while new > 0
            && let Some((tree, left)) = state.contents.front_mut()
        {
            let taken = new.min(*left);
            self.arrived[node][*tree] += taken;
            *left -= taken;
            new -= taken;
            if *left == 0 {
                state.contents.pop_front();
            }
        }
        let has = |tree: usize| self.arrived[node][tree] >= self.trees[tree].1;
        let mut trees = 0..self.trees.len();
        let is_complete = if self.is_copies { trees.any(has) } else { trees.all(has) };
        if is_complete && self.arrivals[node].is_infinite() {
            self.arrivals[node] = (self.network.now() - start).seconds();
            self.complete += 1;
        }
        self.pass_on(node);
    }

    /// Passes on the bytes that a member has but has not passed on yet.
    fn pass_on(&mut self, node: usize) {
        for tree in 0..self.trees.len() {
            let has = if self.is_copies {
                self.arrived[node].iter().copied().max().unwrap_or(0)
            } else {
                self.arrived[node][tree]
            };
            let new = has - self.passed[node][tree];
            if new > 0 && (self.mode == RelayMode::Packet || has == self.trees[tree].1) {
                self.pass(node, tree, new);
            }
        }
    }

    fn pass(&mut self, node: usize, tree: usize, bytes: u64) {
        self.passed[node][tree] += bytes;
        let was_idle = self.jobs[node].is_empty();
        for place in 0..self.trees[tree].0[node].len() {
            let child = self.trees[tree].0[node][place];
            let edge = self.edge_of[&(node, child)];
            if self.mode == RelayMode::Packet {
                self.write(edge, tree, bytes);
            } else {
                self.jobs[node].push_back((edge, tree, bytes));
            }
        }
        if was_idle && let Some(&(edge, tree, bytes)) = self.jobs[node].front() {
            self.write(edge, tree, bytes);
        }
    }

    /// The member's block on this edge is sent: start the next one.
    fn job_done(&mut self, edge: usize) {
        let node = self.edges[edge].from;
        if self.jobs[node].front().is_some_and(|&(first, ..)| first == edge) {
            self.jobs[node].pop_front();
            if let Some(&(edge, tree, bytes)) = self.jobs[node].front() {
                self.write(edge, tree, bytes);
            }
        }
    }

    fn write(&mut self, edge: usize, tree: usize, bytes: u64) {
        let state = &mut self.edges[edge];
        state.written += bytes;
        state.contents.push_back((tree, bytes));
        self.network.write(state.connection, bytes);
    }
}
