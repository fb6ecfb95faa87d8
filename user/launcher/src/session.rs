//! A connection to a gateway of the user's own site, and the job opened over it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use channel::Route;
use client::key::{self, KeyError};
use client::patience::{core_time, slowness_in};
use client::{Client, ClientError, Connections, Entry, Frame, News, Receiver, Role, Sender, race};
use serde::Serialize;
use thiserror::Error;
use tokio::time::{Instant, timeout};
use types::id::SlotKind;
use types::patience::{CoreTime, Patience};
use types::sites::{Gateway, Site};
use types::{Identity, JobId, Roster, SiteId, SitesFile, Slot};
use wire::control::{AllocationMessage, JobMessage, NodeAsk, Part};
use wire::{Control, FrameKind, Secret};

use super::outcome::Failure;
use super::suspects::{ANSWER, Suspects};
use job::message::Up;
use member::{Post, PostError};

/// Reasons why a job could not be opened, or why its connection was lost.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The sites file does not have this site.
    #[error("unknown site `{site}`: the sites file has {known}")]
    UnknownSite {
        /// The name.
        site: String,
        /// The names of the sites that it has.
        known: String,
    },
    /// The sites file names no key for the user's own site.
    #[error("site {0} has no `key` in the sites file: jobs are opened at one's own site (--from), whose key is here")]
    NoKey(String),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A gateway cannot be used, or its connection was lost.
    #[error("site {site}: gateway {gateway}: {source}")]
    Gateway {
        /// The site.
        site: String,
        /// The gateway's name.
        gateway: String,
        /// The error.
        source: ClientError,
    },
    /// The gateway closed the connection.
    #[error("site {0}: the gateway closed the connection")]
    Closed(String),
    /// An agent violated the protocol.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The system gives no random numbers.
    #[error("no random numbers: {0}")]
    Random(String),
    /// The roster does not contain the user's own site.
    #[error("site {0} is not in the job's roster")]
    NotInRoster(String),
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        let site = match &error {
            SessionError::Gateway { site, .. } | SessionError::Closed(site) => Some(site.clone()),
            _ => None,
        };
        match site {
            Some(site) => Failure::at_site(&site, error.to_string()),
            None => Failure::new(error.to_string()),
        }
    }
}

/// Time for one gateway of the own site to answer before the next one is dialled as well.
const HEAD_START: Duration = Duration::from_secs(2);

/// A sites file and its folder: paths of keys are relative to it.
#[derive(Clone, Debug)]
pub struct Sites {
    /// The file's content.
    pub file: SitesFile,
    /// The file's folder.
    pub folder: PathBuf,
    /// The secret for the gateways of the only site, if that site's key is in no file.
    pub secret: Option<Secret>,
}

impl Sites {
    /// The path of a site's key, if the file names one.
    pub fn key_path(&self, site: &Site) -> Option<PathBuf> {
        site.key.as_ref().map(|key| self.folder.join(Path::new(key)))
    }

    /// Returns the site with this name.
    ///
    /// # Errors
    /// [`SessionError::UnknownSite`].
    pub fn site(&self, name: &str) -> Result<&Site, SessionError> {
        let unknown = || SessionError::UnknownSite { site: name.to_owned(), known: self.file.names() };
        self.file.site(name).map(|(_, site)| site).ok_or_else(unknown)
    }

    /// The secret with which users of a site authenticate to its gateways. Checks the key against the fingerprint in
    /// the sites file.
    ///
    /// # Errors
    /// [`SessionError::NoKey`], [`SessionError::Key`].
    pub fn client_secret(&self, site: &Site) -> Result<Secret, SessionError> {
        if let Some(secret) = &self.secret {
            return Ok(secret.clone());
        }
        let path = self.key_path(site).ok_or_else(|| SessionError::NoKey(site.name.clone()))?;
        let key = key::load(&path)?;
        let (actual, expected) = (key.fingerprint(), site.fingerprint);
        if actual != expected {
            return Err(KeyError::OtherKey { site: site.name.clone(), path, actual, expected }.into());
        }
        Ok(key.client_secret())
    }

    /// Connects to the first gateway of the user's own site that answers, and returns its name too. Dials them in their
    /// order; the next one after a failure or 2 s without an answer.
    ///
    /// # Errors
    /// The error of the gateway that failed last.
    pub async fn connect(&self, site: &Site) -> Result<(Client, String), SessionError> {
        self.reach(site).await.map(|(client, name, _)| (client, name))
    }

    /// Like [`Sites::connect`]; also returns the names of the dialled gateways that have not answered by then.
    async fn reach(&self, site: &Site) -> Result<(Client, String, Vec<String>), SessionError> {
        let role = Role::Client { secret: self.client_secret(site)? };
        let mut silent = Vec::new();
        let attempts = site.gateways.iter().map(|gateway| {
            silent.push(gateway.name.clone());
            let (gateway, role) = (dialled(site, gateway), role.clone());
            async move {
                match Client::connect(&gateway, &role).await {
                    Ok(client) => Ok((client, gateway.name)),
                    Err(source) => Err(SessionError::Gateway { site: gateway.site, gateway: gateway.name, source }),
                }
            }
        });
        match race(attempts, HEAD_START).await {
            Ok((client, name)) => {
                silent.retain(|other| *other != name);
                Ok((client, name, silent))
            }
            Err(mut failed) => Err(failed.pop().unwrap_or_else(|| SessionError::Closed(site.name.clone()))),
        }
    }
}

/// A gateway of a site, at the address that its users dial.
pub fn dialled(site: &Site, gateway: &Gateway) -> client::Gateway {
    let (site, keys) = (site.name.clone(), Some(site.keys()));
    client::Gateway { site, name: gateway.name.clone(), address: gateway.inside.clone(), keys }
}

/// A connection over which a job is about to be opened.
pub struct Connection {
    job: JobId,
    secret: Secret,
    home: String,
    gateway: client::Gateway,
    /// The site's other gateways.
    others: Vec<client::Gateway>,
    /// Names of the gateways that were dialled earlier and have not answered.
    silent: Vec<String>,
    /// Names of the sites that have several gateways.
    several: BTreeSet<String>,
    role: Role,
    receiver: Receiver,
    sender: Sender,
    /// Sites that have been asked for nodes and have not refused.
    asked: Vec<String>,
}

/// A launcher's identity before it has opened its job.
const NOBODY: Identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };

impl Connection {
    /// Connects to a gateway of the user's own site.
    pub async fn new(sites: &Sites, home: &str) -> Result<Connection, SessionError> {
        let site = sites.site(home)?;
        let (client, name, silent) = sites.reach(site).await?;
        let others = site.gateways.iter().filter(|other| other.name != name).map(|other| dialled(site, other));
        let others = others.collect();
        let (address, keys) = (client.address().to_owned(), Some(site.keys()));
        let gateway = client::Gateway { site: home.to_owned(), name, address, keys };
        let role = Role::Client { secret: sites.client_secret(site)? };
        let (receiver, sender) = client.split();
        let (job, secret) = random()?;
        let home = home.to_owned();
        let several = sites.file.sites.iter().filter(|site| site.gateways.len() > 1);
        let several = several.map(|site| site.name.clone()).collect();
        let asked = Vec::new();
        Ok(Connection { job, secret, home, gateway, others, silent, several, role, receiver, sender, asked })
    }

    /// Asks a site for nodes. Not cancel-safe.
    pub async fn ask(&mut self, site: &str, ask: NodeAsk) -> Result<(), SessionError> {
        self.asked.push(site.to_owned());
        let (job, site, home) = (self.job, site.to_owned(), self.home.clone());
        self.control(AllocationMessage::Ask { job, site, home, ask }).await
    }

    /// The gateway's next message. Cancel-safe.
    pub async fn next(&mut self) -> Result<Control, SessionError> {
        loop {
            let frame = self.receiver.receive().await;
            let Some(frame) = frame.map_err(|source| self.lost(source))? else {
                return Err(SessionError::Closed(self.home.clone()));
            };
            if frame.header.kind == FrameKind::Control {
                let control = self.receiver.control(&frame).map_err(|source| self.lost(source))?;
                if let Control::Job(JobMessage::Refused { site, .. } | JobMessage::Closed { site, .. }) = &control {
                    self.asked.retain(|asked| asked != site);
                }
                return Ok(control);
            }
        }
    }

    /// Gives the requested nodes back. Waits for the confirmation, but not longer than `limit`.
    pub async fn give_back(mut self, limit: Duration) {
        let all = async {
            self.control(JobMessage::close(self.job)).await?;
            while !self.asked.is_empty() {
                self.next().await?;
            }
            Ok::<(), SessionError>(())
        };
        // On a timeout or a failure, the gateway gives them back by itself.
        let _ = timeout(limit, all).await;
    }

    /// Opens a job with this roster. `part`: the part of the gateways in it.
    pub async fn open(mut self, roster: &Roster, part: Part) -> Result<Session, SessionError> {
        let place = roster.sites().iter().position(|site| site.name == self.home);
        let place = place.ok_or_else(|| SessionError::NotInRoster(self.home.clone()))?;
        let me = Identity { site: SiteId(place as u16), slot: Slot::LAUNCHER };
        self.control(open_message(self.job, &self.secret, roster, &self.home, part)).await?;
        let mut post = Post::new(self.job, me, self.sender.welcome().max_payload);
        post.route_open(LEAD);
        let Connection { job, secret, home, gateway, others, silent, several, role, receiver, sender, .. } = self;
        let entry = Entry { gateway: gateway.clone(), role: role.clone(), opening: None };
        let gateway = gateway.name;
        let connections = Connections::new(me, Client::joined(receiver, sender), entry);
        Ok(Session {
            job,
            secret,
            home,
            gateway,
            others,
            silent,
            several,
            roster: roster.clone(),
            role,
            part,
            named: Vec::new(),
            post,
            connections,
            since: Instant::now(),
            suspects: Suspects::default(),
            roll_call: None,
            unaware: BTreeSet::new(),
            relayed: false,
            closing: false,
        })
    }

    async fn control(&mut self, message: impl Into<Control>) -> Result<(), SessionError> {
        self.sender.send_control(NOBODY, message).await.map_err(|source| self.lost(source))
    }

    fn lost(&self, source: ClientError) -> SessionError {
        SessionError::Gateway { site: self.home.clone(), gateway: self.gateway.name.clone(), source }
    }
}

/// An open job, as its launcher sees it.
pub struct Session {
    job: JobId,
    secret: Secret,
    home: String,
    gateway: String,
    /// The site's other gateways, until they are dialled.
    others: Vec<client::Gateway>,
    /// Names of the gateways that were dialled before [`Session::gateway`] and have not answered. The user has not been
    /// notified of them yet.
    silent: Vec<String>,
    /// Names of the sites that have several gateways.
    several: BTreeSet<String>,
    roster: Roster,
    role: Role,
    /// The part of the gateways that lead the job.
    part: Part,
    /// Names of the other gateways in use; the first one has number 1.
    named: Vec<String>,
    post: Post,
    connections: Connections,
    /// Zero of the post's clock.
    since: Instant,
    suspects: Suspects,
    /// After the last loss of a gateway: the time at which agents are asked whether they are still there.
    roll_call: Option<RollCall>,
    /// Gateways that have not confirmed the announced stop of this process.
    unaware: BTreeSet<usize>,
    /// True once all sites have opened the job and the other gateways have been asked to relay.
    relayed: bool,
    /// True once the gateways have the order to close the job. They close their connections afterwards.
    closing: bool,
}

/// Time for agents to dial other gateways after the loss of one, on a machine that is not overloaded.
const REDIAL: Duration = Duration::from_secs(5);

/// Interval between questions to all agents while no gateway is known to be lost, and the time limit for an answer. A
/// gateway that was restarted does not miss an agent that has not connected to it again, and this process hears of few
/// gateways at other sites.
const ROUTINE: Duration = Duration::from_secs(10);

/// A question to all agents that is due.
struct RollCall {
    since: Instant,
    /// The core time then.
    before: CoreTime,
    patience: Patience,
    at: Instant,
    /// Time limit for an answer.
    answer: Duration,
}

impl RollCall {
    /// After the loss of a gateway.
    fn after_loss(now: Instant) -> RollCall {
        RollCall::new(now, REDIAL, ANSWER)
    }

    fn routine(now: Instant) -> RollCall {
        RollCall::new(now, ROUTINE, ROUTINE)
    }

    fn new(now: Instant, wait: Duration, answer: Duration) -> RollCall {
        RollCall { since: now, before: core_time(), patience: Patience::new(wait), at: now + wait, answer }
    }
}

/// The gateway that first opened the job; it leads the job at the user's own site.
const LEAD: Route = Route(0);

/// An event of the session.
#[derive(Debug)]
pub enum Incoming {
    /// A message about the job from the gateway with this number. Number 0 leads the job.
    Job(usize, JobMessage),
    /// The gateway with this number is connected, perhaps not for the first time.
    GatewayOpen(usize),
    /// The gateway with this number is lost, for this reason. Others are still connected.
    GatewayLost(usize, String),
    /// An own gateway has ended a silence, which `reason` describes. `alone`: no other own gateway served the job
    /// meanwhile, so other sites may have given it up.
    GatewayBack {
        /// The gateway and the length of its silence.
        reason: String,
        /// True if all other own gateways are silent or not connected.
        alone: bool,
    },
    /// A note for the user.
    Note(String),
    /// A message from an agent.
    Up(Identity, Up),
}

impl Session {
    /// Queues a message to an agent; [`Session::flush`] sends it.
    pub fn send<M: Serialize>(&mut self, to: Identity, message: &M) -> Result<(), SessionError> {
        Ok(self.post.send(to, message)?)
    }

    /// Counts output of an agent as queued here, so that the agent stops sending more.
    pub fn hold(&mut self, agent: Identity, bytes: u64) {
        self.post.hold(agent, bytes);
    }

    /// Counts queued output of an agent as handled.
    pub fn release(&mut self, agent: Identity, bytes: u64) {
        self.post.release(agent, bytes);
    }

    /// True if more messages may be queued for an agent. Urgent messages are sent in any case.
    pub fn has_room(&self, agent: Identity) -> bool {
        self.post.has_room(agent)
    }

    /// Sends all queued messages that may be sent now.
    pub fn flush(&mut self) {
        while let Some((route, header, payload)) = self.post.next_frame(self.now_ns()) {
            self.connections.send(usize::from(route.0), header, payload);
        }
    }

    /// Asks the other gateways of all sites to relay the job's frames too.
    pub fn open_relays(&mut self, roster: &Roster, window: u32) {
        let open = open_message(self.job, &self.secret, roster, &self.home, self.part.relay(window));
        let lead = usize::from(LEAD.0);
        self.relayed = true;
        self.roll_call = self.part.has_agents().then(|| RollCall::routine(Instant::now()));
        self.connections.control(lead, open.clone());
        // After a restart, the lead is only one more relaying gateway.
        self.connections.reopen_with(lead, open.clone());
        for gateway in std::mem::take(&mut self.others) {
            self.named.push(gateway.name.clone());
            self.connections.add(Entry { gateway, role: self.role.clone(), opening: Some(open.clone().into()) });
        }
    }

    /// Announces to the gateways that this process will stop, or that it runs again.
    pub fn stop(&mut self, stopped: bool) {
        self.unaware = self.connections.open().collect();
        let message = JobMessage::Stopped { job: self.job, stopped };
        self.unaware.iter().for_each(|gateway| self.connections.control(*gateway, message.clone()));
    }

    /// True if all gateways have confirmed the announced stop.
    pub fn is_stop_known(&self) -> bool {
        self.unaware.is_empty()
    }

    /// Notes for the user about own gateways that have not answered.
    pub fn notes(&mut self) -> Vec<String> {
        let note = |name| format!("site {}: gateway {name} did not answer in time; the job ran without it", self.home);
        self.silent.drain(..).map(note).collect()
    }

    /// Orders the gateways to close the job. Returns the numbers of the gateways that will confirm it.
    pub fn close(&mut self) -> Vec<usize> {
        self.closing = true;
        self.roll_call = None;
        let open: Vec<usize> = self.connections.open().collect();
        open.iter().for_each(|gateway| self.connections.control(*gateway, JobMessage::close(self.job)));
        open
    }

    /// Closes the job everywhere. Waits for the confirmations, but not longer than `limit`; after that, the gateways
    /// close it by themselves.
    pub async fn end(mut self, limit: Duration) {
        let mut closing = self.close();
        let closed = async {
            while !closing.is_empty() {
                self.flush();
                for incoming in self.next().await? {
                    if let Incoming::GatewayLost(gateway, _) | Incoming::Job(gateway, JobMessage::Closed { .. }) =
                        incoming
                    {
                        closing.retain(|open| *open != gateway);
                    }
                }
            }
            Ok::<(), SessionError>(())
        };
        let _ = timeout(limit, closed).await;
    }

    /// The number and the secret with which members prove that they belong to the job.
    pub fn credentials(&self) -> (JobId, Secret) {
        (self.job, self.secret.clone())
    }

    fn lost(&self, gateway: usize, source: ClientError) -> SessionError {
        SessionError::Gateway { site: self.home.clone(), gateway: self.name_of(gateway).to_owned(), source }
    }

    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    fn name_of(&self, gateway: usize) -> &str {
        gateway.checked_sub(1).and_then(|at| self.named.get(at)).unwrap_or(&self.gateway)
    }

    /// The next events. Cancel-safe.
    pub async fn next(&mut self) -> Result<Vec<Incoming>, SessionError> {
        let (suspects, roll_call) = (self.suspects.next(), self.roll_call.as_ref().map(|call| call.at));
        let (gateway, news) = tokio::select! {
            next = self.connections.next() => next,
            () = super::until(roll_call) => {
                self.call_the_roll();
                return Ok(self.look_at_suspects());
            }
            // The caller flushes next.
            () = job::until(self.since, self.post.next_tick_ns()) => return Ok(Vec::new()),
            () = super::until(suspects) => return Ok(self.look_at_suspects()),
        };
        let route = Route(gateway as u8);
        match news {
            News::Frame(frame) => self.frame(gateway, frame),
            News::Open => {
                self.post.route_open(route);
                let name = self.name_of(gateway).to_owned();
                self.silent.retain(|silent| *silent != name);
                Ok(vec![Incoming::GatewayOpen(gateway)])
            }
            News::Back(seconds) => {
                let reason = format!("gateway {}: no sign of life for {seconds} s", self.name_of(gateway));
                let alone = self.connections.open().all(|other| other == gateway || self.connections.is_silent(other));
                Ok(vec![Incoming::GatewayBack { reason, alone }])
            }
            News::Failed(error) => {
                let (site, gateway) = (&self.home, self.name_of(gateway).to_owned());
                let text = format!("site {site}: gateway {gateway} is not used: {error}");
                self.silent.retain(|silent| *silent != gateway);
                Ok(vec![Incoming::Note(text)])
            }
            News::Lost(error) => {
                self.post.route_lost(route);
                self.unaware.remove(&gateway);
                if self.connections.open().next().is_none() && !self.closing {
                    return Err(match error {
                        ClientError::Left { .. } => SessionError::Closed(self.home.clone()),
                        error => self.lost(gateway, error),
                    });
                }
                self.call_the_roll_soon();
                Ok(vec![Incoming::GatewayLost(gateway, self.lost(gateway, error).to_string())])
            }
        }
    }

    fn frame(&mut self, gateway: usize, Frame { header, payload }: Frame) -> Result<Vec<Incoming>, SessionError> {
        if header.kind != FrameKind::Control {
            let (from, now_ns) = (header.from, self.now_ns());
            let messages = self.post.take(Route(gateway as u8), &header, &payload, now_ns)?;
            let confirmed = match header.kind {
                FrameKind::Undeliverable => self.suspects.undelivered(from, gateway, self.connections.open()),
                FrameKind::Answer => {
                    self.answered(from);
                    None
                }
                _ => None,
            };
            let confirmed = confirmed.map(|(gateway, report)| Incoming::Job(gateway, report));
            return Ok(messages.into_iter().map(|message| Incoming::Up(from, message)).chain(confirmed).collect());
        }
        let address = || self.name_of(gateway).to_owned();
        let unreadable = |source| self.lost(gateway, ClientError::Wire { address: address(), source });
        match Control::decode(&payload).map_err(unreadable)? {
            Control::Job(message) => Ok(self.job_message(gateway, message)),
            // Reports about the wait for nodes. They are late: the nodes have been granted.
            Control::Allocation(_) => Ok(Vec::new()),
            other => {
                tracing::warn!(gateway = address(), ?other, "not a message about the job");
                Ok(Vec::new())
            }
        }
    }
}

impl Session {
    /// Turns a message about the job into events, unless it reports a loss that must be verified first.
    fn job_message(&mut self, gateway: usize, message: JobMessage) -> Vec<Incoming> {
        match message {
            // All sites already take part. A lost gateway has come back and cannot relay.
            JobMessage::Refused { site, reason, .. } if self.relayed => {
                let gateway = self.name_of(gateway);
                vec![Incoming::Note(format!("site {site}: gateway {gateway} is not used: {reason}"))]
            }
            JobMessage::Stopped { .. } => {
                self.unaware.remove(&gateway);
                Vec::new()
            }
            JobMessage::AgentLost { .. } | JobMessage::MemberLost { .. } => match self.suspect(&message) {
                Some(member) => {
                    self.suspects.add(member, (gateway, message), Instant::now(), core_time());
                    self.look_at_suspects()
                }
                None => vec![Incoming::Job(gateway, message)],
            },
            message => {
                if matches!(message, JobMessage::LeadLost { .. }) {
                    self.call_the_roll_soon();
                }
                vec![Incoming::Job(gateway, message)]
            }
        }
    }

    /// Asks all agents, after the loss of a gateway once they have had time to dial the others: gateways report only
    /// members that have been connected to them, and an agent may not know all gateways that its launcher knows.
    fn call_the_roll(&mut self) {
        let Some(call) = &mut self.roll_call else { return };
        let waited = call.since.elapsed();
        if let Some(later) = call.patience.next_look(waited, slowness_in(waited, call.before)) {
            call.at = call.since + later;
            return;
        }
        let answer = call.answer;
        self.question_all(answer);
    }

    /// Asks all agents once they have had time to dial other gateways: one of their site's is lost.
    fn call_the_roll_soon(&mut self) {
        if !self.closing && self.part.has_agents() {
            self.roll_call = Some(RollCall::after_loss(Instant::now()));
        }
    }

    /// Asks all agents at once whether they are still there, instead of a question that is due.
    pub fn question_agents(&mut self) {
        self.question_all(ANSWER);
    }

    fn question_all(&mut self, answer: Duration) {
        let now = Instant::now();
        self.roll_call = (!self.closing).then(|| RollCall::routine(now));
        for (site, node, _, entry) in self.roster.nodes() {
            let (Some(slot), Some(name)) = (Slot::agent(node), self.roster.site(site).map(|site| &site.name)) else {
                continue;
            };
            let member = Identity { site, slot };
            if self.post.knows(member) {
                let reason = "its gateways are lost, and it answers through no other".to_owned();
                let (site, node) = (name.clone(), entry.name.clone());
                let report = JobMessage::AgentLost { job: self.job, site, node, reason };
                self.suspects.question(member, (usize::from(LEAD.0), report), answer, now, core_time());
            }
        }
    }

    /// Returns the member that a message reports as lost, if another gateway may still reach it: an agent, or a rank of
    /// a job without agents.
    fn suspect(&self, message: &JobMessage) -> Option<Identity> {
        let member = match message {
            JobMessage::AgentLost { site, node, .. } => {
                let of_site = |at: SiteId| self.roster.site(at).is_some_and(|known| known.name == *site);
                let (site, node, ..) =
                    self.roster.nodes().find(|(at, _, _, entry)| of_site(*at) && entry.name == *node)?;
                Identity { site, slot: Slot::agent(node)? }
            }
            JobMessage::MemberLost { member, .. } => *member,
            _ => return None,
        };
        let may_answer = match member.slot.kind() {
            SlotKind::Agent(_) => self.post.knows(member),
            // Before gateways watch a rank, it has connected.
            SlotKind::Rank(..) => !self.part.has_agents(),
            _ => false,
        };
        let site = &self.roster.site(member.site)?.name;
        let reached = may_answer && self.relayed && !self.closing && self.several.contains(site);
        reached.then_some(member)
    }

    /// Asks the members that gateways report as lost. Returns the confirmed reports.
    fn look_at_suspects(&mut self) -> Vec<Incoming> {
        let connections = &self.connections;
        let open: Vec<_> = connections.open().map(|gateway| (gateway, connections.is_silent(gateway))).collect();
        let (ask, confirmed) = self.suspects.due(Instant::now(), &open, |asked, before| {
            // Such a member mostly sleeps, and is assumed to wait for a core as long as this process does.
            core_time().since_for_sleepers(before, asked)
        });
        ask.into_iter().for_each(|member| self.post.ask(member));
        confirmed.into_iter().map(|(gateway, report)| Incoming::Job(gateway, report)).collect()
    }

    /// Latest time at which a pending report about a member is confirmed.
    pub fn suspects_until(&self) -> Option<Instant> {
        self.suspects.until()
    }

    fn answered(&mut self, member: Identity) {
        if let Some(report) = self.suspects.answered(member) {
            tracing::info!(%member, ?report, "a member that a gateway has lost answers through another");
        }
    }
}

fn open_message(job: JobId, secret: &Secret, roster: &Roster, home: &str, part: Part) -> JobMessage {
    JobMessage::Open { job, secret: secret.clone(), roster: roster.clone(), home: home.to_owned(), part }
}

fn random() -> Result<(JobId, Secret), SessionError> {
    let (mut job, mut secret) = ([0; 4], [0; 32]);
    for bytes in [&mut job[..], &mut secret[..]] {
        getrandom::fill(bytes).map_err(|e| SessionError::Random(e.to_string()))?;
    }
    // Zero means "outside any job".
    Ok((JobId(u32::from_le_bytes(job).max(1)), Secret::new(secret)))
}
