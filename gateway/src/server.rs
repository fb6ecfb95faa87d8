//! The running gateway: one thread, one task per connection, and the tables they share.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use client::key::{KeyError, SiteKey};
use client::tls::TlsConfig;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};
use types::sites::{Fabric, Fingerprint, Node, SitesFile};
use types::{JobId, NodeId};
use wire::Secret;
use wire::control::MeasurementMessage;

use crate::GatewayError;
use crate::config::GatewayConfig;
use crate::counters::Counters;
use crate::door::descriptors;
use crate::door::hellos::Hellos;
use crate::door::listener;
use crate::door::lobby::{Lobby, places};
use crate::log::{MEMBERS, log};
use crate::path::forward::{Partial, SCRATCH, Target};
use crate::path::member::Member;
use crate::quantity;
use crate::services::join::{Doorkeeper, Tickets};
use crate::services::nodes::AllocationOrders;
use crate::services::page;
use crate::services::starter::{AgentOrder, AgentStarter, GatewayAddress, StartError};
use crate::table::{Effect, Leave, Relay, TrunkId, TrunkInfo};
use crate::trunks::link::SEALED;
use crate::trunks::measure::Measuring;
use crate::trunks::meeting::host::Host;
use crate::trunks::meeting::visit::Visits;
use crate::trunks::trunk::{self, Trunk, TrunkEnd};

/// How long a handshake may take in all.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a probe waits for a trunk that is not up.
pub(crate) const PROBE_UP: Duration = Duration::from_millis(3000);
const PROBE_PING: Duration = Duration::from_secs(2);
/// How long agents have to end when the gateway is stopped, and how long to die when they do not.
const STOP_GRACE: Duration = Duration::from_millis(2000);
const STOP_KILL: Duration = Duration::from_millis(500);

/// What the task that waits for an agent is told.
#[derive(Debug, Default)]
struct AgentOrders {
    kill: Notify,
    /// It stays when this program ends.
    leave: Notify,
}

pub(crate) struct Gateway {
    pub(crate) me: Weak<Gateway>,
    /// Name of its site.
    pub site: String,
    /// Its name.
    pub name: String,
    /// A random number, by which others know that it was started anew.
    pub run_number: u32,
    /// What the site's key makes. The key may be changed.
    pub credentials: RefCell<Rc<Credentials>>,
    pub counters: Arc<Counters>,
    pub relay: RefCell<Relay<Rc<Member>>>,
    /// The trunks; sites may be added, so that their ids stay.
    pub trunks: RefCell<Vec<Rc<Trunk>>>,
    /// What the gateway works by: its sites file as it was read last, where it lies, and which entry is its own.
    pub sites: RefCell<SitesFile>,
    pub file: Option<PathBuf>,
    pub own: Cell<(usize, usize)>,
    pub tickets: RefCell<Tickets>,
    pub measuring: Measuring,
    pub doorkeeper: Option<Arc<dyn Doorkeeper>>,
    /// Meetings of others here, and its own elsewhere.
    pub host: Host,
    pub visits: Visits,
    pub connections: RefCell<HashMap<u64, Rc<Member>>>,
    /// Scratch space, one for all connections: nobody holds it across an await.
    pub plain: RefCell<Vec<u8>>,
    pub cipher: RefCell<Vec<u8>>,
    pub sealed: RefCell<Vec<u8>>,
    pub stage: RefCell<Vec<u8>>,
    pub touched: RefCell<Vec<Target>>,
    /// Connections that are not admitted yet.
    pub lobby: Rc<Lobby>,
    pub hellos: Hellos,
    nodes: Vec<Node>,
    shared_memory: types::sites::Memory,
    fabric: Option<Fabric>,
    inside: String,
    pub memory: u64,
    pub since: Instant,
    pub(crate) starter: Arc<dyn AgentStarter>,
    agents: RefCell<HashMap<(JobId, NodeId), Rc<AgentOrders>>>,
    /// What the batch system gave or is asked for; a notification gives it back.
    pub(crate) allocations: RefCell<HashMap<JobId, Rc<AllocationOrders>>>,
    /// A job was opened.
    pub(crate) job_opened: Notify,
    /// The last of them.
    last_opened: Cell<u64>,
    /// An agent or an allocation ended.
    pub(crate) agent_gone: Notify,
    pub(crate) drops: RefCell<Vec<(u64, String)>>,
    next_id: Cell<u64>,
    now: Cell<Instant>,
}

/// What the site's key makes.
pub(crate) struct Credentials {
    pub fingerprint: Fingerprint,
    /// What users of the site prove.
    pub client_secret: Secret,
    pub tls: TlsConfig,
}

impl Credentials {
    pub(crate) fn new(key: &SiteKey) -> Result<Credentials, KeyError> {
        let (fingerprint, client_secret) = (key.fingerprint(), key.client_secret());
        Ok(Credentials { fingerprint, client_secret, tls: TlsConfig::new(key)? })
    }
}

/// Runs a gateway until SIGTERM or SIGINT, on the calling thread. Jobs are closed and agents killed before it returns,
/// within 3 s. With SIGHUP it takes up what has changed in its sites file.
///
/// # Errors
/// It cannot start: see [`GatewayError`].
pub fn serve(config: GatewayConfig, starter: Arc<dyn AgentStarter>) -> Result<(), GatewayError> {
    descriptors::raise();
    let (site, gateway) = (config.own_site().name.clone(), config.own().name.clone());
    let system = move |source| GatewayError::System { site: site.clone(), gateway: gateway.clone(), source };
    run(config, starter, async move |gateway| {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).map_err(&system)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(&system)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(&system)?;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                _ = hangup.recv() => {
                    gateway.reload_and_log();
                }
            }
        }
    })
}

/// Runs a gateway until `stop` is ready, on the calling thread; otherwise as [`serve`].
///
/// # Errors
/// It cannot start: see [`GatewayError`].
pub fn serve_until(
    config: GatewayConfig,
    starter: Arc<dyn AgentStarter>,
    stop: impl Future<Output = ()>,
) -> Result<(), GatewayError> {
    run(config, starter, async move |_| {
        stop.await;
        Ok(())
    })
}

fn run(
    config: GatewayConfig,
    starter: Arc<dyn AgentStarter>,
    stop: impl AsyncFnOnce(Rc<Gateway>) -> Result<(), GatewayError>,
) -> Result<(), GatewayError> {
    let system = |source| GatewayError::System {
        site: config.own_site().name.clone(),
        gateway: config.own().name.clone(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, async {
        let listener = listener::bind(&config)?;
        let gateway = Gateway::new(&config, starter)?;
        let own = config.own();
        tracing::info!(
            site = gateway.site, gateway = gateway.name, listen = own.listen, inside = own.inside,
            advertise = own.advertise.as_deref().unwrap_or("(dials out only)"),
            fingerprint = %gateway.credentials().fingerprint, memory = %quantity(own.memory), "gateway listening"
        );
        gateway.clone().run(listener, stop(gateway)).await
    });
    drop(local);
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

impl Gateway {
    pub(crate) fn new(config: &GatewayConfig, starter: Arc<dyn AgentStarter>) -> Result<Rc<Gateway>, GatewayError> {
        let (site, own) = (config.own_site(), config.own());
        let trunks = trunks(&config.sites, config.site, config.gateway);
        let infos = trunks.iter().map(|trunk| TrunkInfo::new(trunk.site.clone()));
        let nodes = site.nodes.iter().map(|node| node.name.clone()).collect();
        let relay = Relay::new((site.name.clone(), config.gateway), nodes, infos.collect(), own.memory, site.patience);
        let credentials = Credentials::new(&config.key)?;
        let run_number = getrandom::u32().map_err(|e| GatewayError::System {
            site: site.name.clone(),
            gateway: own.name.clone(),
            source: std::io::Error::other(format!("no random numbers: {e}")),
        })?;
        let gateway = Rc::new_cyclic(|me| Gateway {
            me: me.clone(),
            site: site.name.clone(),
            name: own.name.clone(),
            run_number,
            credentials: RefCell::new(Rc::new(credentials)),
            counters: config.counters.clone(),
            relay: RefCell::new(relay),
            trunks: RefCell::new(trunks.into_iter().map(Rc::new).collect()),
            sites: RefCell::new(config.sites.clone()),
            file: config.file.clone(),
            own: Cell::new((config.site, config.gateway)),
            tickets: RefCell::default(),
            measuring: Measuring::default(),
            doorkeeper: config.doorkeeper.clone(),
            host: Host::new(own.memory),
            visits: Visits::default(),
            connections: RefCell::default(),
            plain: RefCell::new(vec![0; SCRATCH]),
            cipher: RefCell::new(vec![0; SCRATCH]),
            sealed: RefCell::new(vec![0; SEALED]),
            stage: RefCell::default(),
            touched: RefCell::default(),
            lobby: Rc::new(Lobby::new(places(own.memory, descriptors::allowed()))),
            hellos: Hellos::default(),
            nodes: site.nodes.clone(),
            shared_memory: site.memory.clone(),
            fabric: site.fabric.clone(),
            inside: own.inside.clone(),
            memory: own.memory,
            since: Instant::now(),
            starter,
            agents: RefCell::default(),
            allocations: RefCell::default(),
            job_opened: Notify::new(),
            last_opened: Cell::default(),
            agent_gone: Notify::new(),
            drops: RefCell::default(),
            next_id: Cell::new(1),
            now: Cell::new(Instant::now()),
        });
        gateway.relay.borrow_mut().siblings = site.gateways.len() > 1;
        gateway.trunks.borrow().iter().for_each(|trunk| gateway.expect(trunk));
        Ok(gateway)
    }

    pub(crate) fn credentials(&self) -> Rc<Credentials> {
        self.credentials.borrow().clone()
    }

    /// Says why a trunk is not up before anything was tried.
    pub(crate) fn expect(&self, trunk: &Trunk) {
        let (site, name) = (&trunk.site, &trunk.gateway);
        let problem = match trunk.dials() {
            Some(address) => format!("site {site}: gateway {name} at {address}: not reached yet"),
            None if trunk.hidden => self.unmet(trunk),
            None => format!("site {site}: its gateway {name} has not dialled us yet: is it running?"),
        };
        self.relay.borrow_mut().trunk_problem(trunk.id, problem.clone());
        trunk.expect(problem);
    }

    /// Starts to dial a trunk's links, or to ask for meetings, if that is for this side.
    pub(crate) fn dial_trunk(&self, trunk: &Rc<Trunk>) {
        self.dial_links(trunk, 0..trunk.wanted());
    }

    /// The same of some links.
    pub(crate) fn dial_links(&self, trunk: &Rc<Trunk>, which: Range<u16>) {
        let Some(gateway) = self.me.upgrade().filter(|_| trunk.dials().is_some() || trunk.asks()) else { return };
        for index in which {
            tokio::task::spawn_local(trunk::keep_dialling(gateway.clone(), trunk.clone(), index));
        }
    }

    /// A trunk by its number.
    pub(crate) fn trunk(&self, id: TrunkId) -> Rc<Trunk> {
        self.trunks.borrow()[id.0].clone()
    }

    async fn run(
        self: Rc<Self>,
        listener: TcpListener,
        stop: impl Future<Output = Result<(), GatewayError>>,
    ) -> Result<(), GatewayError> {
        self.trunks.borrow().iter().for_each(|trunk| self.dial_trunk(trunk));
        page::open(&self);
        let result = tokio::select! {
            never = listener::accept(&self, listener) => match never {},
            result = stop => result,
        };
        self.stop().await;
        result
    }

    /// Closes all jobs and waits for their agents; those that other gateways of the site can go on with are left to
    /// them.
    async fn stop(&self) {
        let reason = format!("gateway {} of site {} is stopping", self.name, self.site);
        tracing::info!("{reason}");
        let siblings = self.insides().len() > 1;
        let left = self.relay.borrow_mut().close_all(&reason, siblings);
        for id in &left {
            tracing::info!(job = %id, "job left to the other gateways of the site");
        }
        self.leave_agents(&left);
        self.settle();
        self.trunks.borrow().iter().for_each(|trunk| trunk.goodbye(self, &reason));
        let gone = async {
            while !self.agents.borrow().is_empty() || !self.allocations.borrow().is_empty() {
                self.agent_gone.notified().await;
            }
        };
        tokio::pin!(gone);
        if timeout(STOP_GRACE, &mut gone).await.is_err() {
            self.agents.borrow().values().for_each(|orders| orders.kill.notify_one());
            if timeout(STOP_KILL, gone).await.is_err() {
                tracing::error!(left = self.agents.borrow().len(), "agents did not die in time");
            }
        }
        // The goodbyes have left unless a peer does not read.
        sleep(Duration::from_millis(20)).await;
    }

    /// Forgets the agents and the nodes of these jobs, which stay when this program ends.
    fn leave_agents(&self, jobs: &BTreeSet<JobId>) {
        self.allocations.borrow_mut().retain(|job, orders| {
            let left = jobs.contains(job);
            if left {
                orders.leave.notify_one();
            }
            !left
        });
        self.agents.borrow_mut().retain(|(job, _), orders| {
            let left = jobs.contains(job);
            if left {
                orders.leave.notify_one();
            }
            !left
        });
    }

    /// Carries out what the relay wants done, until nothing is left. Not to be called while the relay is borrowed.
    pub(crate) fn settle(&self) {
        let epoch = self.relay.borrow().epoch;
        if self.last_opened.replace(epoch) != epoch {
            self.job_opened.notify_waiters();
        }
        loop {
            let effects = self.relay.borrow_mut().take_effects();
            if effects.is_empty() {
                return;
            }
            effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
    }

    fn carry_out(&self, effect: Effect<Rc<Member>>) {
        match effect {
            Effect::ToMember(member, message) => member.send_control(self, message),
            Effect::ToTrunk(trunk, message) => self.trunk(trunk).send_control(self, message),
            Effect::StartAgents(job, nodes) => self.start_agents(job, &nodes),
            Effect::KillAgents(job) => {
                let agents = self.agents.borrow();
                agents.iter().filter(|((of, _), _)| *of == job).for_each(|(_, orders)| orders.kill.notify_one());
            }
            Effect::Allocate(order) => self.allocate(order),
            Effect::Release(job) => {
                let release = self.allocations.borrow().get(&job).cloned();
                release.iter().for_each(|orders| orders.release.notify_one());
            }
            Effect::Dismiss(member, reason) => member.dismiss(&reason),
            Effect::Passage(member, site, passage) => member.send_passage(self, site, &passage),
            Effect::Patience(trunk, changes, after) => {
                let Some(gateway) = self.me.upgrade() else { return };
                tokio::task::spawn_local(async move {
                    sleep(after).await;
                    gateway.relay.borrow_mut().patience_over(trunk, changes);
                    gateway.settle();
                });
            }
            Effect::Timer(job, epoch, timer, after) => {
                let Some(gateway) = self.me.upgrade() else { return };
                tokio::task::spawn_local(async move {
                    sleep(after).await;
                    gateway.relay.borrow_mut().timer(job, epoch, timer);
                    gateway.settle();
                });
            }
        }
    }

    /// Where the nodes of this site dial its gateways, this one first.
    fn insides(&self) -> Vec<GatewayAddress> {
        let sites = self.sites.borrow();
        let (site, own) = self.own.get();
        let gateways = &sites.sites[site].gateways;
        let others = gateways.iter().enumerate().filter(|(at, _)| *at != own);
        let others =
            others.map(|(_, other)| GatewayAddress { name: other.name.clone(), address: other.inside.clone() });
        let this = GatewayAddress { name: self.name.clone(), address: self.inside.clone() };
        std::iter::once(this).chain(others).collect()
    }

    fn start_agents(&self, job: JobId, nodes: &[(NodeId, String)]) {
        let result = nodes.iter().try_for_each(|(id, name)| self.start_agent(job, *id, name).map_err(|e| (*id, e)));
        self.relay.borrow_mut().agents_started(job, result);
    }

    fn start_agent(&self, job: JobId, node_id: NodeId, node: &str) -> Result<(), StartError> {
        let (secret, site_id, home, allocation) = {
            let relay = self.relay.borrow();
            let open = relay.jobs.get(&job).ok_or_else(|| StartError(format!("job {job} is closed")))?;
            (open.secret.clone(), open.own, open.home, relay.allocation_id(job))
        };
        let entry = self.nodes.iter().find(|entry| entry.name == node);
        let mut handle = self.starter.start(AgentOrder {
            job,
            secret,
            home,
            site_id,
            site: self.site.clone(),
            node_id,
            node: node.to_owned(),
            node_address: entry.and_then(|entry| entry.address),
            fabric: self.fabric.clone(),
            gateways: self.insides(),
            keys: self.sites.borrow().sites[self.own.get().0].keys(),
            allocation,
            memory: self.shared_memory.clone(),
        })?;
        let orders = Rc::new(AgentOrders::default());
        self.agents.borrow_mut().insert((job, node_id), orders.clone());
        let (Some(gateway), node) = (self.me.upgrade(), node.to_owned()) else { return Ok(()) };
        tokio::task::spawn_local(async move {
            let ended = tokio::select! {
                status = handle.wait() => Some(status),
                () = orders.kill.notified() => None,
                () = orders.leave.notified() => {
                    // It would be killed with its handle.
                    std::mem::forget(handle);
                    return;
                }
            };
            let status = match ended {
                Some(status) => status,
                None => {
                    handle.kill();
                    let status = timeout(STOP_KILL, handle.wait()).await;
                    status.unwrap_or_else(|_| "does not die".to_owned())
                }
            };
            tracing::debug!(%job, node, status, "agent ended");
            gateway.agents.borrow_mut().remove(&(job, node_id));
            gateway.agent_gone.notify_one();
            gateway.relay.borrow_mut().agent_exited(job, node_id, status);
            gateway.settle();
        });
        Ok(())
    }

    /// Tries a trunk for a user's command and answers it.
    pub(crate) fn probe_later(&self, member: Rc<Member>, site: String) {
        let Some(gateway) = self.me.upgrade() else { return };
        tokio::task::spawn_local(async move {
            let result = gateway.probe(&site).await;
            let (problem, rtt) = match result {
                Ok(rtt) => (None, rtt),
                Err(problem) => (Some(problem), Duration::ZERO),
            };
            let rtt_ns = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
            member.send_control(&gateway, MeasurementMessage::Probed { site, problem, rtt_ns });
        });
    }

    async fn probe(&self, site: &str) -> Result<Duration, String> {
        if site == self.site {
            return Ok(Duration::ZERO);
        }
        self.trunk_to(site, PROBE_UP).await?.ping(self, PROBE_PING).await
    }

    /// A trunk to another site, once it is up; it is waited for as long as `limit`.
    pub(crate) async fn trunk_to(&self, site: &str, limit: Duration) -> Result<Rc<Trunk>, String> {
        if site == self.site {
            return Err(format!("site {site}: there is no route to itself"));
        }
        let id = self.relay.borrow().lead_trunk(site);
        let trunk = self.trunk(id.ok_or_else(|| format!("site {}: its gateway knows no site {site}", self.site))?);
        trunk.wait_up(limit).await?;
        Ok(trunk)
    }

    /// Dials all trunks that are down and wait.
    pub(crate) fn kick_trunks(&self) {
        self.trunks.borrow().iter().for_each(|trunk| trunk.kick());
    }

    /// A number nobody else has.
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    pub(crate) fn partial(&self) -> Partial {
        Partial::new(self.counters.clone())
    }

    /// Looks at the clock.
    pub(crate) fn tick(&self) -> Instant {
        self.now.set(Instant::now());
        self.now.get()
    }

    /// When somebody last looked at the clock; good enough for heartbeats.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Drops a member's connection as soon as the frames at hand are dealt with.
    pub(crate) fn drop_later(&self, id: u64, reason: String) {
        self.drops.borrow_mut().push((id, reason));
    }

    /// What a turn of reading left to do.
    pub(crate) fn after_turn(&self) {
        if self.drops.borrow().is_empty() {
            return;
        }
        for (id, reason) in self.drops.take() {
            let member = self.connections.borrow_mut().remove(&id);
            let Some(member) = member else { continue };
            let (job, who) = (member.job.get(), member.identity.get().slot);
            self.counters.violation();
            log!(warn, MEMBERS, peer = %member.address, %job, member = %who, reason, "connection dropped");
            member.abandon();
            self.relay.borrow_mut().leave(job, who, &member, Leave::Lost(reason));
        }
        self.settle();
    }
}

/// The trunks of a gateway: to every gateway of every other site. Of two sites the earlier in the file dials, if the
/// later advertises an address; if neither does, the earlier asks for a meeting.
pub(crate) fn trunks(sites: &SitesFile, own_site: usize, own_gateway: usize) -> Vec<Trunk> {
    let own = &sites.sites[own_site].gateways[own_gateway];
    let mut trunks = Vec::new();
    for (at, site) in sites.sites.iter().enumerate().filter(|(at, _)| *at != own_site) {
        for gateway in &site.gateways {
            let (they_first, they_can) = (at < own_site, gateway.advertise.is_some());
            let hidden = !they_can && own.advertise.is_none();
            let dials = if hidden { !they_first } else { they_can && !(they_first && own.advertise.is_some()) };
            let links = own.links.with(gateway.links);
            let id = TrunkId(trunks.len());
            let end = TrunkEnd {
                site: site.name.clone(),
                gateway: gateway.name.clone(),
                address: gateway.advertise.clone(),
                lets_meet: gateway.meeting && they_can,
            };
            trunks.push(Trunk::new(id, end, site.keys(), (dials, hidden), links));
        }
    }
    trunks
}
