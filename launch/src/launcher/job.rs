//! A job from the launcher's side, as a state machine: messages, signals and times come in, actions go out.
//!
//! Opening (all sites admit it, all agents come) → preparing (all nodes can run the program) → running → closing.
//! The first failure leads through *settling* (a moment in which a cause may still arrive after its effect) and
//! *killing* to closing. Every phase has a deadline except running.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::Duration;

use tokio::time::Instant;
use types::{Identity, Rank, Roster, SiteId, Slot};
use wire::Control;
use wire::control::Traffic;

use super::outcome::{Failure, SiteSummary, Summary};
use super::session::Incoming;
use crate::fence::{Fence, FenceError, Fences};
use crate::group::first_agent;
use crate::message::{Down, End, Family, MpiState, Program, Stream, Up};
use crate::processes::signal_name;

/// All sites must have admitted the job, in this time.
const OPEN: Duration = Duration::from_millis(4500);
/// All agents must have come and checked the program, in this time from then.
const PREPARE: Duration = Duration::from_secs(15);
/// How long a cause may arrive after its effect: a moment if what came may well be the cause, longer if it hardly is.
const SETTLE: Duration = Duration::from_millis(250);
const SETTLE_EFFECT: Duration = Duration::from_millis(1000);
/// How long agents have to end their ranks (one second until SIGKILL, and the rest).
const KILL: Duration = Duration::from_millis(2500);
/// How long gateways have to say that nothing is left.
const CLOSE: Duration = Duration::from_millis(1500);

/// How likely a failure is the cause of others: the most likely one is told.
pub(super) type Weight = u8;
const EFFECT: Weight = 1;
const EXIT_CODE: Weight = 2;
const ABORT: Weight = 3;
const UNFINALISED: Weight = 3;
const SIGNAL: Weight = 4;
pub(super) const LOST: Weight = 5;

/// The exit code of MPICH and Intel MPI for `MPI_ERR_OTHER`, which is what ranks get when a peer is gone: the low byte of
/// their error code, class 15 with the bit of a dynamic message.
const MPI_ERROR: i32 = 0x8f;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Action {
    /// Send this to an agent.
    Send(Identity, Down),
    /// Pass on what a rank wrote.
    Output { agent: Identity, rank: u32, stream: Stream, bytes: Vec<u8> },
    /// Tell what is going on.
    Progress(Option<String>),
    /// Tell the user.
    Note(String),
    /// Have the other gateways of all sites let frames of this job pass too, with this window.
    OpenRelays { roster: Roster, window: u32 },
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
    /// All ranks ended well; output is still being passed on.
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
    state: NodeState,
    mpi: Option<Family>,
}

#[derive(Debug, Default)]
struct SiteState {
    window: Option<u32>,
    /// `Some(None)`: it will never report.
    closed: Option<Option<Traffic>>,
    /// What gateways that do not lead the job counted.
    relayed: Traffic,
    /// Own gateways that cannot reach it any more.
    unreached: BTreeSet<usize>,
}

#[derive(Debug)]
pub(super) struct Job {
    roster: Roster,
    /// The user's own site.
    home: String,
    /// One for each site of the roster.
    programs: Vec<Program>,
    phase: Phase,
    deadline: Option<Instant>,
    nodes: Vec<Node>,
    sites: Vec<SiteState>,
    exits: Vec<Option<(End, MpiState)>>,
    uses_mpi: bool,
    mpi: Option<Family>,
    fences: Fences<SiteId>,
    /// Of named fences. They become communicators' numbers and count down, since Open MPI's own count up.
    numbers: u32,
    failure: Option<(Weight, Failure, i32)>,
    signal: i32,
    signals: u32,
    /// Own gateways that are connected, by their numbers; 0 leads the job.
    ways: BTreeSet<usize>,
    /// Those of them that were told to close the job, and have not said that nothing is left of it.
    unclosed: BTreeSet<usize>,
    actions: VecDeque<Action>,
}

impl Job {
    pub fn new(roster: Roster, home: &str, programs: Vec<Program>) -> Job {
        let nodes = roster.nodes().filter_map(|(site, node, _, entry)| {
            let slot = Slot::agent(node)?;
            Some(Node {
                agent: Identity { site, slot },
                site: roster.site(site)?.name.clone(),
                name: entry.name.clone(),
                state: NodeState::Awaited,
                mpi: None,
            })
        });
        let nodes: Vec<Node> = nodes.collect();
        Job {
            sites: roster.sites().iter().map(|_| SiteState::default()).collect(),
            exits: vec![None; roster.size() as usize],
            phase: Phase::Opening,
            deadline: None,
            nodes,
            uses_mpi: false,
            mpi: None,
            fences: Fences::default(),
            numbers: u32::MAX,
            failure: None,
            signal: 15,
            signals: 0,
            ways: BTreeSet::from([0]),
            unclosed: BTreeSet::new(),
            actions: VecDeque::new(),
            roster,
            home: home.to_owned(),
            programs,
        }
    }

    pub fn actions(&mut self) -> Vec<Action> {
        self.actions.drain(..).collect()
    }

    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The sites in words, for messages.
    pub fn site_names(&self) -> String {
        self.roster.sites().iter().map(|site| site.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The request to open it has been sent.
    pub fn opened(&mut self, now: Instant) {
        self.deadline = Some(now + OPEN);
    }

    /// Notes a failure; of several, the weightiest counts, and of those the first.
    pub fn fail(&mut self, weight: Weight, failure: Failure, code: i32) {
        if self.failure.as_ref().is_none_or(|(other, _, _)| *other < weight) {
            self.failure = Some((weight, failure, code));
        }
    }

    fn fail_now(&mut self, weight: Weight, failure: Failure, code: i32, now: Instant) {
        match self.phase {
            Phase::Opening | Phase::Preparing => {
                self.fail(weight, failure, code);
                self.kill(now);
            }
            Phase::Running | Phase::Settling => {
                self.fail(weight, failure, code);
                if weight >= SIGNAL {
                    self.kill(now);
                } else {
                    self.phase = Phase::Settling;
                    let patience = if weight == EFFECT { SETTLE_EFFECT } else { SETTLE };
                    let settled = now + patience;
                    self.deadline = Some(self.deadline.map_or(settled, |deadline| deadline.min(settled)));
                }
            }
            // What comes while we kill is our own doing.
            Phase::Killing | Phase::Draining | Phase::Closing | Phase::Over => {}
        }
    }

    fn kill(&mut self, now: Instant) {
        self.phase = Phase::Killing;
        self.deadline = Some(now + KILL);
        self.actions.push_back(Action::Progress(Some("ending all ranks".into())));
        self.tell_agents(&Down::Kill { signal: self.signal });
        self.check_ended(now);
    }

    fn tell_agents(&mut self, message: &Down) {
        let there = self.nodes.iter().filter(|node| matches!(node.state, NodeState::Here | NodeState::Ready));
        self.actions.extend(there.map(|node| Action::Send(node.agent, message.clone())));
    }

    fn check_ended(&mut self, now: Instant) {
        let left = |node: &Node| matches!(node.state, NodeState::Here | NodeState::Ready);
        if self.nodes.iter().any(left) {
            return;
        }
        match self.phase {
            Phase::Killing => self.close(now),
            Phase::Running => {
                self.phase = Phase::Draining;
                self.deadline = None;
            }
            _ => {}
        }
    }

    /// `everything`: whatever was written has been passed on.
    pub fn heard(&mut self, everything: bool) {
        if self.phase == Phase::Draining && everything && self.actions.is_empty() {
            self.close(Instant::now());
        }
    }

    fn close(&mut self, now: Instant) {
        self.phase = Phase::Closing;
        self.deadline = Some(now + CLOSE);
        let agents = self.nodes.iter().filter(|node| node.state == NodeState::Ended).map(|node| node.agent);
        self.actions.extend(agents.map(|agent| Action::Send(agent, Down::Finish)));
        self.actions.push_back(Action::Close);
    }

    /// The user wants it to end.
    pub fn interrupted(&mut self, signal: i32, now: Instant) {
        self.signals += 1;
        let failure = Failure::new(format!("interrupted by {}", signal_name(signal)));
        if self.signals == 1 && !matches!(self.phase, Phase::Killing | Phase::Closing | Phase::Over) {
            self.signal = signal;
            self.fail(LOST, failure, 128 + signal);
            self.kill(now);
            return;
        }
        self.fail(LOST, failure, 128 + signal);
        self.tell_agents(&Down::Kill { signal: 9 });
        let soon = now + Duration::from_millis(300);
        self.deadline = Some(self.deadline.map_or(soon, |deadline| deadline.min(soon)));
    }

    /// Output cannot be passed on any more, as when it goes to `head`.
    pub fn output_failed(&mut self, error: &io::Error, now: Instant) {
        let code = if error.kind() == io::ErrorKind::BrokenPipe { 141 } else { 1 };
        if self.phase == Phase::Draining {
            self.fail(LOST, Failure::new(format!("cannot write output: {error}")), code);
            return;
        }
        self.fail_now(LOST, Failure::new(format!("cannot write output: {error}")), code, now);
    }

    pub fn deadline_over(&mut self, now: Instant) {
        self.deadline = None;
        match self.phase {
            Phase::Opening => {
                let silent = self.sites.iter().position(|site| site.window.is_none()).unwrap_or(0);
                let name = self.roster.sites()[silent].name.clone();
                let reason = format!(
                    "did not open the job within {} s: is its gateway running and reachable? `landbridge sites check` shows it",
                    OPEN.as_secs_f32()
                );
                self.fail_now(LOST, Failure::at_site(&name, reason), 1, now);
            }
            Phase::Preparing => {
                let silent = self.nodes.iter().find(|node| node.state < NodeState::Ready);
                let failure = silent.map(|node| {
                    let what = if node.state == NodeState::Awaited {
                        "its agent did not come"
                    } else {
                        "its agent did not answer"
                    };
                    let reason = format!("{what} within {} s", PREPARE.as_secs());
                    Failure::at_node(&node.site, &node.name, reason)
                });
                self.fail_now(LOST, failure.unwrap_or_default(), 1, now);
            }
            Phase::Settling => self.kill(now),
            Phase::Killing => self.close(now),
            Phase::Closing => self.phase = Phase::Over,
            Phase::Running | Phase::Draining | Phase::Over => {}
        }
    }

    pub fn incoming(&mut self, incoming: Incoming, now: Instant) {
        match incoming {
            Incoming::Control(way, control) => self.control(way, control, now),
            Incoming::WayOpen(way) => {
                self.ways.insert(way);
                self.sites.iter_mut().for_each(|site| {
                    site.unreached.remove(&way);
                });
            }
            Incoming::WayLost(way, reason) => self.way_lost(way, &reason, now),
            Incoming::Note(text) => self.actions.push_back(Action::Note(text)),
            Incoming::Up(agent, message) => match self.nodes.iter().position(|node| node.agent == agent) {
                Some(node) => self.up(node, message, now),
                None => tracing::warn!(from = %agent, "a message from somebody who is no agent of the job"),
            },
        }
    }

    /// These gateways were told to close it.
    pub fn closing_at(&mut self, ways: &[usize]) {
        self.unclosed = ways.iter().copied().filter(|way| *way > 0).collect();
    }

    /// One of several own gateways is lost.
    fn way_lost(&mut self, way: usize, reason: &str, now: Instant) {
        self.ways.remove(&way);
        if self.phase == Phase::Closing {
            // It closes connections when it has closed the job.
            self.unclosed.remove(&way);
            self.sites.iter_mut().filter(|_| way == 0).for_each(|site| {
                site.closed.get_or_insert(None);
            });
            return self.check_closed();
        }
        if matches!(self.phase, Phase::Opening | Phase::Preparing) && way == 0 {
            return self.fail_now(LOST, Failure::new(reason.to_owned()), 1, now);
        }
        if let Some(home) = self.site_index(&self.home).filter(|_| way == 0) {
            // Its lead will never report.
            self.sites[home].closed = Some(None);
        }
        self.actions.push_back(Action::Note(format!("{reason}; the job goes on by other gateways")));
        self.check_reached(reason, now);
    }

    /// A site that no own gateway reaches is lost.
    fn check_reached(&mut self, reason: &str, now: Instant) {
        let lost = |site: &SiteState| !site.unreached.is_empty() && self.ways.is_subset(&site.unreached);
        let Some(at) = self.sites.iter().position(lost) else { return };
        let name = self.roster.sites()[at].name.clone();
        self.sites[at].closed = Some(None);
        for node in self.nodes.iter_mut().filter(|node| node.site == name) {
            node.state = NodeState::Ended;
        }
        self.fail_now(LOST, Failure::at_site(&name, format!("its gateway was lost: {reason}")), 1, now);
        self.check_ended(now);
        self.check_closed();
    }

    /// What is under way at most between two members: what every site grants.
    fn window(&self) -> u32 {
        self.sites.iter().filter_map(|site| site.window).min().unwrap_or(0)
    }

    fn site_index(&self, name: &str) -> Option<usize> {
        self.roster.sites().iter().position(|site| site.name == name)
    }

    fn control(&mut self, way: usize, control: Control, now: Instant) {
        match control {
            Control::JobClosed { site, traffic, led: false, .. } => {
                if let Some(at) = self.site_index(&site) {
                    let relayed = &mut self.sites[at].relayed;
                    relayed.sent += traffic.sent;
                    relayed.received += traffic.received;
                    relayed.local += traffic.local;
                }
            }
            Control::JobRefused { site, reason, .. } if way > 0 => {
                self.actions.push_back(Action::Note(format!("site {site}: a gateway is not used: {reason}")));
            }
            Control::JobOpened { site, window, .. } => {
                if let Some(at) = self.site_index(&site) {
                    self.sites[at].window = Some(window);
                }
                self.check_opened(now);
            }
            Control::JobRefused { site, reason, .. } => {
                if let Some(at) = self.site_index(&site) {
                    self.sites[at].closed = Some(None);
                }
                self.fail_now(LOST, Failure::at_site(&site, reason), 1, now);
            }
            Control::AgentLost { site, node, reason, .. } => {
                self.agent_lost(|known| known.site == site && known.name == node, &reason, now);
            }
            Control::MemberLost { member, reason, .. } => {
                // A rank's end is told by its agent, with more detail.
                self.agent_lost(|known| known.agent == member, &reason, now);
            }
            Control::LeadLost { site, reason, .. } => {
                if let Some(at) = self.site_index(&site) {
                    // It will never report.
                    self.sites[at].closed = Some(None);
                }
                let text = format!("site {site}: its leading gateway was lost: {reason}; the job goes on by others");
                self.actions.push_back(Action::Note(text));
            }
            Control::SiteLost { site, seen_from, reason, .. } => {
                if let Some(at) = self.site_index(&site) {
                    // What another site cannot reach does not get better by our own gateways.
                    let all = self.ways.clone();
                    let ways = if seen_from == self.home { BTreeSet::from([way]) } else { all };
                    self.sites[at].unreached.extend(ways);
                }
                self.check_reached(&reason, now);
            }
            Control::SiteFound { site, .. } => {
                if let Some(at) = self.site_index(&site) {
                    self.sites[at].unreached.remove(&way);
                }
            }
            Control::JobClosed { site, traffic, .. } => {
                if let Some(at) = self.site_index(&site) {
                    self.sites[at].closed = Some(Some(traffic));
                }
                if matches!(self.phase, Phase::Opening | Phase::Preparing | Phase::Running) {
                    let reason = "its gateway closed the job".to_owned();
                    self.fail_now(LOST, Failure::at_site(&site, reason), 1, now);
                }
                self.check_closed();
            }
            _ => {}
        }
    }

    fn agent_lost(&mut self, which: impl Fn(&Node) -> bool, reason: &str, now: Instant) {
        let Some(node) = self.nodes.iter_mut().find(|node| which(node)) else { return };
        let before = std::mem::replace(&mut node.state, NodeState::Ended);
        let failure = Failure::at_node(&node.site, &node.name, format!("agent lost: {reason}"));
        if before != NodeState::Ended {
            self.fail_now(LOST, failure, 1, now);
            self.check_ended(now);
        }
    }

    fn check_closed(&mut self) {
        if self.phase == Phase::Closing
            && self.unclosed.is_empty()
            && self.sites.iter().all(|site| site.closed.is_some())
        {
            self.phase = Phase::Over;
        }
    }

    fn check_opened(&mut self, now: Instant) {
        if self.phase == Phase::Opening && self.sites.iter().all(|site| site.window.is_some()) {
            self.phase = Phase::Preparing;
            self.deadline = Some(now + PREPARE);
            let doing = format!("preparing {} nodes at {}", self.nodes.len(), self.site_names());
            self.actions.push_back(Action::Progress(Some(doing)));
            if self.sites.len() > 1 {
                let window = self.window();
                self.actions.push_back(Action::OpenRelays { roster: self.roster.clone(), window });
            }
            self.check_ready(now);
        }
    }

    fn up(&mut self, at: usize, message: Up, now: Instant) {
        let (agent, site, name) = (self.nodes[at].agent, self.nodes[at].site.clone(), self.nodes[at].name.clone());
        match message {
            Up::Here => {
                self.nodes[at].state = NodeState::Here;
                let first = if self.phase == Phase::Opening || self.phase == Phase::Preparing {
                    let program = self.programs.get(usize::from(agent.site.0)).cloned().unwrap_or_default();
                    Down::Prepare { program: Box::new(program), roster: self.roster.to_string() }
                } else {
                    Down::Kill { signal: 9 }
                };
                self.actions.push_back(Action::Send(agent, first));
            }
            Up::Ready { mpi, notes } => {
                self.nodes[at].mpi = mpi;
                self.nodes[at].state = NodeState::Ready;
                self.actions.extend(notes.into_iter().map(|note| Action::Note(format!("{site}/{name}: {note}"))));
                self.check_ready(now);
            }
            Up::Refused { reason } => self.fail_now(LOST, Failure::at_node(&site, &name, reason), 1, now),
            Up::UsesMpi => {
                self.uses_mpi = true;
                let ended = (0..self.exits.len()).filter(|rank| self.exits[*rank].is_some()).collect::<Vec<_>>();
                ended.into_iter().for_each(|rank| self.check_exit(rank as u32, now));
            }
            Up::FenceIn { fence, data } => self.fence_in(at, fence, &data, now),
            Up::ModexAsk { ticket, rank } => {
                let owner = self.roster.place(Rank(rank));
                let owner = owner.and_then(|place| Some(Identity { site: place.site, slot: Slot::agent(place.node)? }));
                let action = match owner {
                    Some(owner) => Action::Send(owner, Down::ModexAsk { asker: agent, ticket, rank }),
                    None => Action::Send(agent, Down::ModexTell { ticket, data: None }),
                };
                self.actions.push_back(action);
            }
            Up::ModexTell { asker, ticket, data } => {
                if self.nodes.iter().any(|node| node.agent == asker) {
                    self.actions.push_back(Action::Send(asker, Down::ModexTell { ticket, data }));
                }
            }
            Up::Note { rank, text } => {
                let note = self.at_rank(rank, text).to_string();
                self.actions.push_back(Action::Note(note));
            }
            Up::Output { rank, stream, bytes } => {
                self.actions.push_back(Action::Output { agent, rank, stream, bytes });
            }
            Up::Exited { rank, end, state } => {
                if let Some(exit) = self.exits.get_mut(rank as usize) {
                    *exit = Some((end, state));
                    self.check_exit(rank, now);
                }
            }
            Up::Aborted { rank, code, message } => {
                let message = if message.is_empty() { String::new() } else { format!(": {message}") };
                let failure = self.at_rank(rank, format!("called MPI_Abort with code {code}{message}"));
                // A job that was aborted has not succeeded, whatever code was given.
                let code = if code & 0xff == 0 { 1 } else { code & 0xff };
                self.fail_now(if code == MPI_ERROR { EFFECT } else { ABORT }, failure, code, now);
            }
            Up::Failed { rank, reason } => {
                let failure = match rank {
                    Some(rank) => self.at_rank(rank, reason),
                    None => Failure::at_node(&site, &name, reason),
                };
                self.fail_now(LOST, failure, 1, now);
            }
            Up::Ended => {
                self.nodes[at].state = NodeState::Ended;
                self.check_ended(now);
            }
        }
    }

    /// All ranks of a site that are in the fence's group are in it.
    fn fence_in(&mut self, at: usize, fence: Fence, data: &[u8], now: Instant) {
        let sites = fence.group.sites(&self.roster);
        let arrived = match fence.group.is_valid(self.roster.size()) {
            true => self.fences.arrived(&fence, &self.nodes[at].agent.site, data, sites.clone()),
            false => Err(FenceError::Group),
        };
        match arrived {
            Ok(None) => {}
            Ok(Some(data)) => {
                self.numbers -= u32::from(!fence.name.is_empty());
                let out = Down::FenceOut { fence, data, number: self.numbers };
                let out = |site| Action::Send(first_agent(site), out.clone());
                self.actions.extend(sites.into_iter().map(out));
            }
            Err(problem) => {
                let node = &self.nodes[at];
                let failure = Failure::at_node(&node.site, &node.name, problem.to_string());
                self.fail_now(LOST, failure, 1, now);
            }
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
                return self.fail_now(LOST, Failure::at_node(&other.site.clone(), &other.name.clone(), reason), 1, now);
            }
            self.mpi = first.mpi;
        }
        self.phase = Phase::Running;
        self.deadline = None;
        let window = self.window();
        self.actions.push_back(Action::Progress(Some(format!("starting {} ranks", self.roster.size()))));
        self.tell_agents(&Down::Go { window });
        self.actions.push_back(Action::Progress(None));
    }

    fn at_rank(&self, rank: u32, reason: String) -> Failure {
        match self.roster.place(Rank(rank)) {
            Some(place) => Failure { rank: Some(rank), ..Failure::at_node(place.site_name, place.node_name, reason) },
            None => Failure::new(format!("rank {rank}: {reason}")),
        }
    }

    fn check_exit(&mut self, rank: u32, now: Instant) {
        let Some((end, state)) = self.exits.get(rank as usize).copied().flatten() else { return };
        let (weight, reason) = match (end, state) {
            (End::Signal(signal), _) => (SIGNAL, format!("killed by signal {signal} ({})", signal_name(signal))),
            (End::Code(0), MpiState::Running) => {
                (UNFINALISED, "exited without calling MPI_Finalize, while other ranks may wait for it".to_owned())
            }
            (End::Code(0), MpiState::Untouched) if self.uses_mpi => {
                (UNFINALISED, "exited without calling MPI_Init, although other ranks did".to_owned())
            }
            (End::Code(0), _) => return,
            (End::Code(code), _) => {
                let weight = if code == MPI_ERROR && self.uses_mpi { EFFECT } else { EXIT_CODE };
                (weight, format!("exited with code {code}"))
            }
        };
        let code = if end == End::Code(0) { 1 } else { end.exit_code() };
        let failure = self.at_rank(rank, reason);
        self.fail_now(weight, failure, code, now);
    }

    pub fn summary(&self, seconds: f64) -> Summary {
        let unfinished = self.failure.is_none() && self.exits.iter().any(Option::is_none);
        let failure = match (&self.failure, unfinished) {
            (Some((_, failure, _)), _) => Some(failure.clone()),
            (None, true) => Some(Failure::new("the job ended before all ranks did")),
            (None, false) => None,
        };
        let code = self.failure.as_ref().map_or(i32::from(unfinished), |(_, _, code)| *code);
        let mut next = 0;
        let sites = self.roster.sites().iter().zip(&self.sites).map(|(site, state)| {
            let traffic = state.closed.flatten();
            let first = next;
            next += site.size();
            SiteSummary {
                name: site.name.clone(),
                nodes: site.nodes.iter().map(|node| node.name.clone()).collect(),
                ranks: (first..next).collect(),
                bytes_sent: traffic.map(|traffic| traffic.sent + state.relayed.sent),
                bytes_received: traffic.map(|traffic| traffic.received + state.relayed.received),
            }
        });
        let sites: Vec<SiteSummary> = sites.collect();
        Summary {
            ok: failure.is_none(),
            exit_code: code,
            seconds,
            ranks: self.roster.size(),
            mpi: self.mpi.map(|mpi| mpi.to_string()),
            bytes_relayed: sites.iter().filter_map(|site| site.bytes_sent).sum(),
            sites,
            failure,
        }
    }
}

#[cfg(test)]
mod tests;
