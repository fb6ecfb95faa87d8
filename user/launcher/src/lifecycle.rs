//! A job on the launcher's side, as a state machine: its inputs are messages, signals and times, its outputs are
//! actions.
//!
//! Opening (all sites admit the job, all agents connect) → preparing (all nodes check the program) → running → closing.
//! After the first failure come *settling* (a short wait, because a cause may arrive after its effect), *killing* and
//! closing. Every phase has a deadline; running has one only if the user set it.

mod agents;
mod deadlines;
mod ending;
mod gateways;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;
use types::quantity::counted;
use types::{Identity, Patience, Roster, SiteId, Slot};
use wire::control::Traffic;

use super::cause::Cause;
use super::input::Flow;
use super::outcome::Failure;
use super::own_gateways::OwnGateways;
use super::session::Incoming;
use job::fence::Fences;
use job::message::{Down, End, Family, InputTo, MpiState, Program, Stream};
use job::mpi::layer::Coverage;
use job::signals;

/// Time limit until the next site has admitted the job, on a machine that is not overloaded.
const OPEN: Duration = Duration::from_millis(4500);
/// Time limit until the next agent has connected, or has checked the program, on a machine that is not overloaded.
const PREPARE: Duration = Duration::from_secs(15);
/// Least extension of a wait that the user hears of.
const LONG: Duration = Duration::from_secs(3);
/// Time limit for an agent to connect after its site has lost the leading gateway. An agent that was not started before
/// the loss is never started.
const LEADERLESS: Duration = Duration::from_secs(5);
/// Time limit for a cause to arrive after its effect: short if the known failure may well be the cause, longer if it
/// probably is not.
const SETTLE: Duration = Duration::from_millis(250);
const SETTLE_EFFECT: Duration = Duration::from_millis(1000);
/// Time after a silence of all own gateways in which a loss at another site counts as its effect.
const AFTERMATH: Duration = Duration::from_secs(30);
/// Time limit for agents to end their ranks, including the second before SIGKILL.
const KILL: Duration = Duration::from_millis(2500);
/// Time limit for gateways to confirm that nothing of the job is left.
const CLOSE: Duration = Duration::from_millis(1500);
/// `run`'s exit code when ranks have reached their time limit, as in coreutils' `timeout`.
const TIMEOUT_CODE: i32 = 124;

/// An order of the state machine to its caller.
#[derive(Debug)]
pub(super) enum Action {
    /// Send this message to an agent.
    Send(Identity, Down),
    /// Pass on a rank's output.
    Output { agent: Identity, rank: u32, stream: Stream, bytes: Vec<u8> },
    /// Show the job's current activity.
    Progress(Option<String>),
    /// Show a note to the user.
    Note(String),
    /// Ask the other gateways of all sites to relay frames of this job too, with this window.
    OpenRelays { roster: Roster, window: u32 },
    /// Ask all agents whether they are still there: a failure is known, and the loss of a node may be its cause.
    /// Gateways report that loss later, or never if the node has just lost its last gateway.
    QuestionAgents,
    /// Announce to the gateways that this process will stop.
    Stop,
    /// Close the job at the gateways.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Opening,
    Preparing,
    Running,
    Settling,
    Killing,
    /// All ranks ended well; their output is still being passed on.
    Draining,
    Closing,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeState {
    Awaited,
    Here,
    Ready,
    Ended,
}

#[derive(Debug)]
struct Node {
    agent: Identity,
    site: String,
    name: String,
    ranks: Range<u32>,
    state: NodeState,
    mpi: Option<Family>,
    collectives: Coverage,
    ipv6: bool,
}

#[derive(Debug, Default)]
struct SiteState {
    window: Option<u32>,
    /// `None`: the site has not reported yet. `Some(None)`: it never will.
    closed: Option<Option<Traffic>>,
    /// Bytes counted by the gateways that do not lead the job.
    relayed: Traffic,
    leaderless: Option<Leaderless>,
}

/// The state of a site whose leading gateway was lost.
#[derive(Debug)]
struct Leaderless {
    since: Instant,
    reason: String,
    /// Time of the next check that all agents of the site are connected.
    look: Instant,
}

#[derive(Debug)]
pub(super) struct Job {
    roster: Roster,
    /// The user's own site.
    home: String,
    /// The programs, one for each site of the roster.
    programs: Vec<Program>,
    phase: Phase,
    deadline: Option<Instant>,
    /// Time limit of the ranks.
    timeout: Option<Duration>,
    /// Start and patience of the current wait, while opening and preparing.
    wait: (Instant, Patience),
    /// True if the user knows that this wait takes longer than on an idle machine.
    long_wait: bool,
    nodes: Vec<Node>,
    sites: Vec<SiteState>,
    exits: Vec<Option<(End, MpiState)>>,
    uses_mpi: bool,
    mpi: Option<Family>,
    fences: Fences<SiteId>,
    /// The number of the latest named fence. Such numbers become communicators' numbers. They count down because Open
    /// MPI's own count up.
    numbers: u32,
    cause: Cause,
    signal: i32,
    signals: u32,
    gateways: OwnGateways,
    /// Time at which an own gateway ended a silence of all, and the reason for messages.
    silent: Option<(Instant, String)>,
    /// The loss of a gateway before any rank was started.
    unstarted: Option<Failure>,
    /// Own gateways that have the order to close the job and have not confirmed that nothing of it is left.
    unclosed: BTreeSet<usize>,
    actions: VecDeque<Action>,
    input: Flow,
}

impl Job {
    pub(super) fn new(roster: Roster, home: &str, programs: Vec<Program>, timeout: Option<Duration>) -> Job {
        let nodes = roster.nodes().filter_map(|(site, node, first, entry)| {
            let slot = Slot::agent(node)?;
            Some(Node {
                agent: Identity { site, slot },
                site: roster.site(site)?.name.clone(),
                name: entry.name.clone(),
                ranks: first.0..first.0 + entry.ranks,
                state: NodeState::Awaited,
                mpi: None,
                collectives: Coverage::Native,
                ipv6: false,
            })
        });
        let nodes: Vec<Node> = nodes.collect();
        let input = programs.first().map_or(InputTo::None, |program| program.input);
        Job {
            sites: roster.sites().iter().map(|_| SiteState::default()).collect(),
            exits: vec![None; roster.size() as usize],
            phase: Phase::Opening,
            deadline: None,
            timeout,
            wait: (Instant::now(), Patience::new(OPEN)),
            long_wait: false,
            nodes,
            uses_mpi: false,
            mpi: None,
            fences: Fences::default(),
            numbers: u32::MAX,
            cause: Cause::default(),
            signal: 15,
            signals: 0,
            gateways: OwnGateways::new(home),
            silent: None,
            unstarted: None,
            unclosed: BTreeSet::new(),
            actions: VecDeque::new(),
            input: Flow::new((0..roster.size()).filter(|rank| input.reaches(*rank))),
            roster,
            home: home.to_owned(),
            programs,
        }
    }

    pub(super) fn actions(&mut self) -> Vec<Action> {
        self.actions.drain(..).collect()
    }

    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let look = self.leaderless().map(|(_, _, leaderless)| leaderless.look);
        self.deadline.into_iter().chain(look).min()
    }

    /// A failure is known, and its cause may still arrive.
    pub(super) fn is_settling(&self) -> bool {
        self.phase == Phase::Settling
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The sites' names, for messages.
    pub(super) fn site_names(&self) -> String {
        self.roster.sites().iter().map(|site| site.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The request to open the job has been sent.
    pub(super) fn opened(&mut self, now: Instant) {
        self.wait_for(OPEN, now);
    }

    fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Preparing)
    }

    fn tell_agents(&mut self, message: &Down) {
        let there = self.nodes.iter().filter(|node| matches!(node.state, NodeState::Here | NodeState::Ready));
        self.actions.extend(there.map(|node| Action::Send(node.agent, message.clone())));
    }

    /// `everything`: true if all output has been passed on.
    pub(super) fn heard(&mut self, everything: bool) {
        if self.phase == Phase::Draining && everything && self.actions.is_empty() {
            self.close(Instant::now());
        }
    }

    /// Passes a signal on to the ranks.
    pub(super) fn signalled(&mut self, signal: i32) {
        if self.phase == Phase::Running {
            self.tell_agents(&Down::Signal { signal });
        }
    }

    /// The user stops the job (Ctrl-Z): first the ranks stop, then this process.
    pub(super) fn stopped(&mut self) {
        self.signalled(signals::STOP);
        self.actions.push_back(Action::Stop);
    }

    pub(super) fn incoming(&mut self, incoming: Incoming, now: Instant) {
        match incoming {
            Incoming::Job(gateway, message) => self.gateway_says(gateway, message, now),
            Incoming::GatewayOpen(gateway) => self.gateways.connected(gateway),
            Incoming::GatewayLost(gateway, reason) => self.gateway_lost(gateway, &reason, now),
            Incoming::GatewayBack { reason, alone: true } => self.silent = Some((now, reason)),
            Incoming::GatewayBack { alone: false, .. } => {}
            Incoming::Note(text) => self.actions.push_back(Action::Note(text)),
            Incoming::Up(agent, message) => match self.nodes.iter().position(|node| node.agent == agent) {
                Some(node) => self.up(node, message, now),
                None => tracing::warn!(from = %agent, "a message from a member that is not an agent of the job"),
            },
        }
    }

    /// Most bytes in flight between two members: the smallest window of all sites.
    fn window(&self) -> u32 {
        self.sites.iter().filter_map(|site| site.window).min().unwrap_or(0)
    }

    fn site_index(&self, name: &str) -> Option<usize> {
        self.roster.sites().iter().position(|site| site.name == name)
    }

    fn check_opened(&mut self, now: Instant) {
        if self.phase == Phase::Opening && self.sites.iter().all(|site| site.window.is_some()) {
            self.phase = Phase::Preparing;
            self.wait_for(PREPARE, now);
            let doing = format!("preparing {} at {}", counted(self.nodes.len(), "node"), self.site_names());
            self.actions.push_back(Action::Progress(Some(doing)));
            let window = self.window();
            self.actions.push_back(Action::OpenRelays { roster: self.roster.clone(), window });
            self.check_ready(now);
        }
    }

    fn check_ready(&mut self, now: Instant) {
        if self.phase != Phase::Preparing || self.nodes.iter().any(|node| node.state != NodeState::Ready) {
            return;
        }
        if let Some(first) = self.nodes.first() {
            if let Some(other) = self.nodes.iter().find(|node| node.mpi != first.mpi) {
                let name = |mpi: Option<Family>| mpi.map_or("no MPI".to_owned(), |mpi| mpi.to_string());
                let reason = format!(
                    "the program uses {}, but {} on {}/{}: all sites need the same MPI library",
                    name(other.mpi),
                    name(first.mpi),
                    first.site,
                    first.name
                );
                return self.lost(Failure::at_node(&other.site.clone(), &other.name.clone(), reason), now);
            }
            self.mpi = first.mpi;
        }
        self.phase = Phase::Running;
        self.deadline = self.timeout.and_then(|timeout| now.checked_add(timeout));
        let window = self.window();
        self.actions.push_back(Action::Progress(Some(format!("starting {}", counted(self.roster.size(), "rank")))));
        let collectives = self.nodes.iter().map(|node| node.collectives).min().unwrap_or_default();
        let ipv6 = self.nodes.iter().any(|node| node.ipv6);
        self.tell_agents(&Down::Go { window, collectives, ipv6 });
        self.actions.push_back(Action::Progress(None));
    }

    /// True if the next bytes of standard input may be sent.
    pub(super) fn takes_input(&self) -> bool {
        self.phase == Phase::Running && self.input.has_room()
    }

    /// Sends the next bytes of standard input; empty at its end.
    pub(super) fn input(&mut self, bytes: Vec<u8>) {
        let ranks: Vec<u32> = self.input.send(bytes.len()).collect();
        let reached = self.nodes.iter().filter(|node| ranks.iter().any(|rank| node.ranks.contains(rank)));
        let input = |node: &Node| Action::Send(node.agent, Down::Input { bytes: bytes.clone() });
        self.actions.extend(reached.map(input));
    }
}

#[cfg(test)]
mod tests;
