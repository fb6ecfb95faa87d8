//! A job on the launcher's side, as a state machine: its inputs are messages, signals and times, its outputs are
//! actions.
//!
//! Opening (all sites admit the job, all agents connect) → preparing (all nodes check the program) → running → closing.
//! After the first failure come *settling* (a short wait, because a cause may arrive after its effect), *killing* and
//! closing. Every phase has a deadline; running has one only if the user set it.

mod agents;
mod gateways;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;
use types::quantity::counted;
use types::{Identity, Patience, Rank, Roster, SiteId, Slot, Slowness};
use wire::control::Traffic;

use super::cause::{Cause, EFFECT, LOST, LOST_CODE, SIGNAL, Weight};
use super::input::Flow;
use super::outcome::{Failure, SiteSummary, Summary};
use super::own_gateways::OwnGateways;
use super::session::Incoming;
use job::fence::Fences;
use job::message::{Down, End, Family, InputTo, MpiState, Program, Stream};
use job::mpi::layer::Coverage;
use job::processes::signal_name;
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

    fn wait_for(&mut self, calm: Duration, now: Instant) {
        (self.wait, self.long_wait) = ((now, Patience::new(calm)), false);
        self.deadline = Some(now + calm);
    }

    fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Preparing)
    }

    /// A site or an agent has completed the step that all must complete. Extends the deadline.
    fn progress(&mut self, now: Instant) {
        if self.is_starting() {
            let (begun, patience) = &mut self.wait;
            patience.progress(now - *begun);
            self.deadline = Some(*begun + patience.deadline(Slowness::NONE));
        }
    }

    /// Seconds of the current wait so far, for messages.
    fn waited(&self, now: Instant) -> u64 {
        (now - self.wait.0).as_secs()
    }

    /// Ends the job: something that it needs is lost or missing.
    fn lost(&mut self, failure: Failure, now: Instant) {
        let failure = self.blamed(failure, now);
        self.fail_now(LOST, failure, self.lost_code(), now);
    }

    /// Names the cause of a loss at another site. If all own gateways were silent shortly before, other sites gave up
    /// the job because of that silence, so the failure belongs to the user's own site.
    fn blamed(&self, failure: Failure, now: Instant) -> Failure {
        match &self.silent {
            Some((since, reason))
                if now - *since < AFTERMATH && failure.site.as_ref().is_some_and(|site| *site != self.home) =>
            {
                Failure::at_site(&self.home, format!("{reason}; meanwhile {failure}"))
            }
            _ => failure,
        }
    }

    /// The exit code for a loss: 1 until ranks run, then [`LOST_CODE`].
    fn lost_code(&self) -> i32 {
        if self.phase < Phase::Running { 1 } else { LOST_CODE }
    }

    /// Reports that the launcher's own connection is lost, or that the user has ended the job.
    pub(super) fn broken(&mut self, failure: Failure, code: Option<i32>) {
        if code.is_none() {
            self.note_unstarted(&failure);
        }
        let code = code.unwrap_or_else(|| self.lost_code());
        self.cause.add(LOST, failure, code);
    }

    fn fail_now(&mut self, weight: Weight, failure: Failure, code: i32, now: Instant) {
        match self.phase {
            Phase::Opening | Phase::Preparing => {
                self.cause.add(weight, failure, code);
                self.kill(now);
            }
            Phase::Running | Phase::Settling => {
                self.cause.add(weight, failure, code);
                if weight >= SIGNAL {
                    self.kill(now);
                } else {
                    if self.phase == Phase::Running {
                        self.actions.push_back(Action::QuestionAgents);
                    }
                    self.phase = Phase::Settling;
                    let patience = if weight == EFFECT { SETTLE_EFFECT } else { SETTLE };
                    let settled = now + patience;
                    self.deadline = Some(self.deadline.map_or(settled, |deadline| deadline.min(settled)));
                }
            }
            // Failures while the job is being ended are caused by ending it.
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

    /// `everything`: true if all output has been passed on.
    pub(super) fn heard(&mut self, everything: bool) {
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

    /// The user interrupts the job. A second interruption sends SIGKILL to the ranks.
    pub(super) fn interrupted(&mut self, signal: i32, now: Instant) {
        self.signals += 1;
        let failure = Failure::new(format!("interrupted by {}", signal_name(signal)));
        if self.signals == 1 && !matches!(self.phase, Phase::Killing | Phase::Closing | Phase::Over) {
            self.signal = signal;
            self.cause.add(LOST, failure, 128 + signal);
            self.kill(now);
            return;
        }
        self.cause.add(LOST, failure, 128 + signal);
        self.tell_agents(&Down::Kill { signal: 9 });
        let soon = now + Duration::from_millis(300);
        self.deadline = Some(self.deadline.map_or(soon, |deadline| deadline.min(soon)));
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

    /// Output can no longer be passed on, for example because `head` has closed the pipe.
    pub(super) fn output_failed(&mut self, error: &io::Error, now: Instant) {
        let code = if error.kind() == io::ErrorKind::BrokenPipe { 141 } else { 1 };
        if self.phase == Phase::Draining {
            self.cause.add(LOST, Failure::new(format!("cannot write output: {error}")), code);
            return;
        }
        self.fail_now(LOST, Failure::new(format!("cannot write output: {error}")), code, now);
    }

    /// A deadline has passed. `slowness`: this machine's.
    pub(super) fn deadline_over(&mut self, now: Instant, slowness: Slowness) {
        if self.is_starting() {
            self.look_for_agents(now, slowness);
            if self.deadline.is_some_and(|deadline| deadline > now) {
                return;
            }
            let (begun, patience) = self.wait;
            if let Some(later) = patience.next_look(now - begun, slowness) {
                self.deadline = Some(begun + later);
                self.note_long_wait(begun + patience.deadline(slowness), now);
                return;
            }
        }
        self.deadline = None;
        match self.phase {
            Phase::Opening => self.gateway_is_lost(self.silent_gateway(now), now),
            Phase::Preparing => self.lost(self.silent_agent(now).unwrap_or_default(), now),
            Phase::Settling => self.kill(now),
            Phase::Killing => self.close(now),
            Phase::Closing => self.phase = Phase::Over,
            Phase::Running => {
                let seconds = self.timeout.unwrap_or_default().as_secs_f64();
                let failure = Failure::new(format!("the ranks have run for {seconds} s, as long as --timeout allows"));
                self.fail_now(LOST, failure, TIMEOUT_CODE, now);
            }
            Phase::Draining | Phase::Over => {}
        }
    }

    /// Names, once in a wait, what a busy machine is given more time for.
    fn note_long_wait(&mut self, until: Instant, now: Instant) {
        if until - now < LONG {
            return;
        }
        let silent = match self.phase {
            Phase::Opening => Some(self.silent_gateway(now)),
            _ => self.silent_agent(now),
        };
        if let Some(silent) = silent.filter(|_| !std::mem::replace(&mut self.long_wait, true)) {
            let seconds = (until - self.wait.0).as_secs();
            let text = format!("{silent}; this machine is busy, so it has {seconds} s or more");
            self.actions.push_back(Action::Note(text));
        }
    }

    /// The failure that a site's gateway has not opened the job.
    fn silent_gateway(&self, now: Instant) -> Failure {
        let silent = self.sites.iter().position(|site| site.window.is_none()).unwrap_or(0);
        let name = &self.roster.sites()[silent].name;
        let waited = self.waited(now);
        let reason = format!(
            "did not open the job within {waited} s: is its gateway running and reachable? `landbridge sites check` \
             shows it"
        );
        Failure::at_site(name, reason)
    }

    /// The failure that an agent is not ready.
    fn silent_agent(&self, now: Instant) -> Option<Failure> {
        let silent = self.nodes.iter().find(|node| node.state < NodeState::Ready)?;
        let what = match silent.state {
            NodeState::Awaited => "its agent did not connect",
            _ => "its agent did not answer",
        };
        let reason = format!("{what} within {} s", self.waited(now));
        Some(Failure::at_node(&silent.site, &silent.name, reason))
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

    fn at_rank(&self, rank: u32, reason: String) -> Failure {
        match self.roster.place(Rank(rank)) {
            Some(place) => Failure { rank: Some(rank), ..Failure::at_node(place.site_name, place.node_name, reason) },
            None => Failure::new(format!("rank {rank}: {reason}")),
        }
    }

    pub(super) fn summary(&self, seconds: f64) -> Summary {
        let unfinished = self.exits.iter().any(Option::is_none);
        let (failure, code) = match self.cause.get() {
            Some((failure, code)) => (Some(failure.clone()), code),
            None if unfinished => (Some(Failure::new("the job ended before all ranks did")), 1),
            None => (None, 0),
        };
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
