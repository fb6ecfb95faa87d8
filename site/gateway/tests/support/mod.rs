//! Gateways of several sites in threads of this process, and agents that do nothing.

#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod played;

use std::collections::HashSet;
use std::future::Future;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use client::key::SiteKey;
use client::patience::{Wait, patiently_here};
use client::{Client, ClientError, Frame, Gateway, Role};
use gateway::counters::Counters;
use gateway::{GatewayConfig, serve_until};
use gateway_tasks::{
    AgentHandle, AgentOrder, AgentStarter, AllocationHandle, AllocationNews, AllocationOrder, StartError,
};
use tokio::sync::{Notify, mpsc, oneshot};
use types::sites::{Fingerprint, Keys};
use types::{Identity, Instance, JobId, NodeId, Rank, Roster, SiteId, SitesFile, Slot};
use wire::control::{AllocatedNode, JobMessage};
use wire::{Control, FrameHeader, FrameKind, Secret};

/// Time limit for each step of a test on a machine that is not overloaded.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Limits a wait.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    patiently_here(LIMIT, future).await.unwrap_or_else(|waited| panic!("{what}: not within {waited:?}"))
}

/// Like [`within`], without a runtime: polls until there is a value.
pub(crate) fn within_blocking<T>(what: &str, ask: impl Fn() -> Option<T>) -> T {
    let mut wait = Wait::new(LIMIT);
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(wait.left().is_some(), "{what}: not within {:?}", wait.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Agents that run until they are killed or ordered to end.
#[derive(Debug, Default)]
pub(crate) struct FakeAgents {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    running: HashSet<(JobId, NodeId)>,
    end: HashSet<(JobId, NodeId)>,
    killed: usize,
    refuse: Option<String>,
    orders: Vec<AgentOrder>,
    held: usize,
}

struct FakeAgent {
    agents: Arc<FakeAgents>,
    key: (JobId, NodeId),
    killed: bool,
}

impl FakeAgents {
    pub(crate) fn running(&self) -> usize {
        self.state.lock().unwrap().running.len()
    }
    pub(crate) fn killed(&self) -> usize {
        self.state.lock().unwrap().killed
    }
    /// Number of allocations requested and not given back.
    pub(crate) fn held(&self) -> usize {
        self.state.lock().unwrap().held
    }
    pub(crate) fn orders(&self) -> Vec<AgentOrder> {
        self.state.lock().unwrap().orders.clone()
    }
    pub(crate) fn refuse(&self, reason: &str) {
        self.state.lock().unwrap().refuse = Some(reason.to_owned());
    }
    pub(crate) fn end(&self, job: JobId, node: NodeId) {
        self.state.lock().unwrap().end.insert((job, node));
        self.changed.notify_waiters();
    }
    pub(crate) async fn all_gone(&self) {
        while self.running() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The starter that a gateway gets.
#[derive(Debug)]
pub(crate) struct Starter(pub Arc<FakeAgents>);

impl AgentStarter for Starter {
    fn start(&self, order: AgentOrder) -> Result<Box<dyn AgentHandle>, StartError> {
        let mut state = self.0.state.lock().unwrap();
        if let Some(reason) = &state.refuse {
            return Err(StartError(reason.clone()));
        }
        let key = (order.job, order.node_id);
        state.running.insert(key);
        state.orders.push(order);
        Ok(Box::new(FakeAgent { agents: self.0.clone(), key, killed: false }))
    }

    fn allocate(&self, order: AllocationOrder) -> Result<Box<dyn AllocationHandle>, StartError> {
        self.0.state.lock().unwrap().held += 1;
        let ranks = order.ask.ranks;
        let news = match ranks {
            0..=ROOM => {
                let nodes = vec![AllocatedNode::new("n7", ranks)];
                AllocationNews::Granted { id: "12".into(), nodes }
            }
            _ => AllocationNews::Waiting("no room".into()),
        };
        Ok(Box::new(FakeAllocation { agents: self.0.clone(), news: Some(news) }))
    }
}

/// This many ranks get nodes at once; larger requests wait forever.
pub(crate) const ROOM: u32 = 8;

struct FakeAllocation {
    agents: Arc<FakeAgents>,
    news: Option<AllocationNews>,
}

impl AllocationHandle for FakeAllocation {
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>> {
        Box::pin(async {
            match self.news.take() {
                Some(news) => news,
                None => std::future::pending().await,
            }
        })
    }

    fn release(&mut self) {
        self.agents.state.lock().unwrap().held -= 1;
        self.news = Some(AllocationNews::Ended("given back".into()));
    }
}

impl AgentHandle for FakeAgent {
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>> {
        Box::pin(async {
            loop {
                let changed = self.agents.changed.notified();
                if self.killed || self.agents.state.lock().unwrap().end.contains(&self.key) {
                    self.agents.state.lock().unwrap().running.remove(&self.key);
                    return if self.killed { "killed".into() } else { "exit status 3".into() };
                }
                changed.await;
            }
        })
    }
    fn kill(&mut self) {
        self.killed = true;
        self.agents.state.lock().unwrap().killed += 1;
        self.agents.changed.notify_waiters();
    }
    fn let_go(&mut self) {
        self.kill();
    }
}

/// A running gateway.
pub(crate) struct Running {
    /// Address and keys for its site's users and agents.
    pub gateway: Gateway,
    pub inside: String,
    pub advertise: String,
    pub counters: Arc<Counters>,
    pub agents: Arc<FakeAgents>,
    pub client_secret: Secret,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port that is free at the moment, a different one at each call. It is not in the range that Linux uses for outgoing
/// connections (from 32768 on): one might take it before it is used.
pub(crate) fn free_address(ip: &str) -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = std::process::id() % 20_000;
    let ports = std::iter::repeat_with(|| 10_000 + ((begin + u32::from(NEXT.fetch_add(1, Relaxed))) % 20_000) as u16);
    let mut free = ports.take(20_000).filter_map(|port| TcpListener::bind((ip, port)).ok());
    free.next().expect("a free port").local_addr().unwrap().to_string()
}

/// A test's variations of the sites.
pub(crate) struct Plan {
    pub names: Vec<&'static str>,
    pub memory: &'static str,
    pub links: u16,
    /// Sites whose gateways are not started.
    pub absent: Vec<&'static str>,
    /// A site, and another whose sites file has a wrong fingerprint for it.
    pub wrong: Option<(&'static str, &'static str)>,
    /// A site that advertises an address where the test puts something in between.
    pub detour: Option<&'static str>,
    /// Address of the page of the first site's gateway.
    pub page: Option<String>,
    /// Sites that cannot be dialled.
    pub hidden: Vec<&'static str>,
    /// Sites that do not let others meet at their gateways.
    pub unfriendly: Vec<&'static str>,
    /// Sites whose ranks use TLS.
    pub encrypted: Vec<&'static str>,
    /// A site that the test itself plays, and its key.
    pub played: Option<(&'static str, Fingerprint)>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            names: vec!["a", "b"],
            memory: "64MiB",
            links: 1,
            absent: vec![],
            wrong: None,
            detour: None,
            hidden: vec![],
            unfriendly: vec![],
            page: None,
            encrypted: vec![],
            played: None,
        }
    }
}

/// Starts the gateways; each site has nodes n1 and n2.
pub(crate) fn start(plan: &Plan) -> Vec<Running> {
    // `RUST_LOG=debug` shows the gateways' logs; a second test in the same process finds it set.
    let level = std::env::var("RUST_LOG").ok().and_then(|level| level.parse().ok());
    let level = level.unwrap_or(tracing_subscriber::filter::LevelFilter::ERROR);
    let _ = tracing_subscriber::fmt().with_max_level(level).with_test_writer().try_init();
    let keys: Vec<_> = plan.names.iter().map(|_| SiteKey::random().unwrap()).collect();
    let addresses: Vec<_> = (0..plan.names.len()).map(|at| free_address(&format!("127.0.0.{}", at + 2))).collect();
    let advertised: Vec<_> = plan
        .names
        .iter()
        .zip(&addresses)
        .map(|(name, address)| if plan.detour == Some(*name) { free_address("127.0.0.9") } else { address.clone() })
        .collect();
    let other = SiteKey::random().unwrap().fingerprint();
    let text = |reader: &str| {
        let mut text = String::new();
        for (((name, key), address), advertise) in plan.names.iter().zip(&keys).zip(&addresses).zip(&advertised) {
            let wrong = plan.wrong == Some((*name, plan.names.iter().find(|n| **n == reader).unwrap()));
            let played = plan.played.filter(|(played, _)| played == name).map(|(_, fingerprint)| fingerprint);
            let fingerprint = if wrong { other } else { played.unwrap_or(key.fingerprint()) };
            let page = plan.page.as_ref().filter(|_| plan.names[0] == *name);
            let page = page.map(|page| format!("page = \"{page}\"\n")).unwrap_or_default();
            let advertise = match plan.hidden.contains(name) {
                true => String::new(),
                false => format!("advertise = \"{advertise}\"\n"),
            };
            let encrypted = if plan.encrypted.contains(name) { "inside = \"encrypted\"\n" } else { "" };
            let meeting = !plan.unfriendly.contains(name);
            text += &format!(
                "[[site]]\nname = \"{name}\"\nfingerprint = \"{fingerprint}\"\npatience = \"1s\"\n{encrypted}\
                 [[site.gateway]]\nname = \"gw1\"\nmeeting = {meeting}\n{advertise}inside = \"{address}\"\nlisten = \"{address}\"\nmemory = \"{}\"\nlinks = {}\n{page}\
                 [[site.node]]\nname = \"n1\"\n[[site.node]]\nname = \"n2\"\n",
                plan.memory, plan.links
            );
        }
        SitesFile::parse(&text, "sites.toml").unwrap()
    };
    let files: Vec<_> = plan.names.iter().map(|name| text(name)).collect();
    let mut running = Vec::new();
    for ((((name, key), file), address), advertise) in
        plan.names.iter().zip(keys).zip(files).zip(addresses).zip(advertised)
    {
        let client_secret = key.client_secret();
        let keys = Some(Keys { current: key.fingerprint(), next: None });
        let (site, address) = (name.to_string(), address);
        let gateway = Gateway { site, name: "gw1".into(), address: address.clone(), keys };
        let (agents, counters) = (Arc::<FakeAgents>::default(), Arc::<Counters>::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let starter = Arc::new(Starter(agents.clone()));
        let thread = (!plan.absent.contains(name)).then(|| {
            let counters = counters.clone();
            let name = name.to_string();
            let body = move || {
                let mut config = GatewayConfig::with_key(file, &name, None, key).unwrap();
                config.counters = counters;
                serve_until(config, starter, async { drop(stopped.await) }).unwrap();
            };
            std::thread::Builder::new().name("gateway".into()).spawn(body).unwrap()
        });
        running.push(Running {
            gateway,
            inside: address,
            advertise,
            counters,
            agents,
            client_secret,
            stop: Some(stop),
            thread,
        });
    }
    running
}

impl Running {
    /// A user's connection. The gateway may still be starting.
    pub(crate) async fn client(&self) -> Client {
        let role = Role::Client { secret: self.client_secret.clone() };
        within("client", async {
            loop {
                match Client::connect(&self.gateway, &role).await {
                    Ok(client) => return client,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
        .await
    }

    /// A rank's connection.
    pub(crate) async fn member(&self, job: &Job, identity: Identity) -> Client {
        within("member", Client::connect(&self.plain(), &job.role(identity))).await.unwrap()
    }

    /// The gateway as its site's ranks dial it, without TLS.
    pub(crate) fn plain(&self) -> Gateway {
        Gateway { keys: None, ..self.gateway.clone() }
    }
}

/// An open job and its launcher.
pub(crate) struct Job {
    pub id: JobId,
    pub secret: Secret,
    pub launcher: Launcher,
    pub identity: Identity,
}

/// A launcher's connection. Like a real launcher's, it answers pings while the test does other things: a gateway gives
/// up a launcher that is silent for 6 s. Some tests last that long, on a busy machine all of them.
pub(crate) struct Launcher {
    sender: Arc<tokio::sync::Mutex<client::Sender>>,
    inbox: mpsc::UnboundedReceiver<Result<Option<Frame>, ClientError>>,
    answering: tokio::task::JoinHandle<()>,
}

impl Launcher {
    pub(crate) fn new(client: Client) -> Launcher {
        let (mut receiver, sender) = client.split();
        let sender = Arc::new(tokio::sync::Mutex::new(sender));
        let (tell, inbox) = mpsc::unbounded_channel();
        let answer = sender.clone();
        let answering = tokio::spawn(async move {
            loop {
                let next = receiver.receive().await;
                if let Ok(Some(Frame { header: FrameHeader { kind, job, from, to, .. }, .. })) = next {
                    if kind == FrameKind::Ping {
                        let pong = FrameHeader::plain(FrameKind::Pong, job, to, from);
                        // A connection that is lost is noticed by the next receive.
                        let _ = answer.lock().await.send(pong, &[]).await;
                    }
                    if matches!(kind, FrameKind::Ping | FrameKind::Pong) {
                        continue;
                    }
                }
                let last = !matches!(next, Ok(Some(_)));
                if tell.send(next).is_err() || last {
                    return;
                }
            }
        });
        Launcher { sender, inbox, answering }
    }

    pub(crate) async fn send_control(
        &mut self,
        from: Identity,
        message: impl Into<Control>,
    ) -> Result<(), ClientError> {
        self.sender.lock().await.send_control(from, message).await
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Its connection closes with the task.
        self.answering.abort();
    }
}

/// A connection to a gateway.
pub(crate) trait Inbox {
    async fn receive(&mut self) -> Result<Option<Frame>, ClientError>;
    async fn send(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ClientError>;
}

impl Inbox for Client {
    async fn receive(&mut self) -> Result<Option<Frame>, ClientError> {
        Client::receive(self).await
    }

    async fn send(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ClientError> {
        Client::send(self, header, payload).await
    }
}

impl Inbox for Launcher {
    async fn send(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ClientError> {
        self.sender.lock().await.send(header, payload).await
    }

    async fn receive(&mut self) -> Result<Option<Frame>, ClientError> {
        self.inbox.recv().await.unwrap_or(Ok(None))
    }
}

pub(crate) fn rank(site: u16, rank: u32) -> Identity {
    Identity { site: SiteId(site), slot: Slot::rank(Rank(rank), Instance(0)).unwrap() }
}

pub(crate) fn launcher(site: u16) -> Identity {
    Identity { site: SiteId(site), slot: Slot::LAUNCHER }
}

/// Asks for a job without waiting for answers.
pub(crate) async fn ask(gateway: &Running, home: &str, id: u32, roster: &str) -> Job {
    let mut client = gateway.client().await;
    let roster: Roster = roster.parse().unwrap();
    let site = roster.sites().iter().position(|s| s.name == home).unwrap_or(0) as u16;
    let (id, secret) = (JobId(id), Secret::new([id as u8; 32]));
    let open = JobMessage::Open {
        job: id,
        secret: secret.clone(),
        roster,
        home: home.into(),
        part: wire::control::Part::Lead,
    };
    client.send_control(launcher(site), open).await.unwrap();
    Job { id, secret, launcher: Launcher::new(client), identity: launcher(site) }
}

/// Opens a job at all sites of the roster.
pub(crate) async fn open(gateway: &Running, home: &str, id: u32, roster: &str) -> Job {
    let mut job = ask(gateway, home, id, roster).await;
    let sites = roster.split(';').count();
    for _ in 0..sites {
        match job.news().await {
            JobMessage::Opened { window, .. } => assert!(window >= 32 << 10),
            other => panic!("{other:?}"),
        }
    }
    job
}

/// The gateway's next message, except those about routes to sites.
pub(crate) async fn control(inbox: &mut impl Inbox) -> Control {
    let frame = loop {
        let frame = receive(inbox).await;
        let FrameHeader { kind, job, from, to, .. } = frame.header;
        match kind {
            FrameKind::Passage => {}
            FrameKind::Ping => inbox.send(FrameHeader::plain(FrameKind::Pong, job, to, from), &[]).await.unwrap(),
            _ => break frame,
        }
    };
    assert_eq!(frame.header.kind, FrameKind::Control, "{frame:?}");
    Control::decode(&frame.payload).unwrap()
}

impl Job {
    pub(crate) fn role(&self, identity: Identity) -> Role {
        Role::Member { job: self.id, secret: self.secret.clone(), identity }
    }

    pub(crate) async fn news(&mut self) -> JobMessage {
        match control(&mut self.launcher).await {
            Control::Job(message) => message,
            other => panic!("not about the job: {other:?}"),
        }
    }

    pub(crate) async fn close(&mut self) {
        self.launcher.send_control(self.identity, JobMessage::close(self.id)).await.unwrap();
    }
}

/// The next frame, except tables of links.
pub(crate) async fn hear(client: &mut impl Inbox) -> Result<Option<Frame>, ClientError> {
    loop {
        match client.receive().await {
            Ok(Some(frame)) if frame.header.kind == FrameKind::Links => {}
            next => return next,
        }
    }
}

/// The next frame, except signs of life and tables of links.
pub(crate) async fn receive(client: &mut impl Inbox) -> Frame {
    loop {
        let frame = within("a frame", client.receive()).await.unwrap().expect("a frame, not a goodbye");
        let FrameHeader { kind, from, .. } = frame.header;
        if (kind, from.slot) != (FrameKind::Pong, Slot::GATEWAY) && kind != FrameKind::Links {
            return frame;
        }
    }
}

pub(crate) fn data(job: &Job, from: Identity, to: Identity, sequence: u32) -> FrameHeader {
    FrameHeader { sequence, ..FrameHeader::plain(FrameKind::Data, job.id, from, to) }
}
