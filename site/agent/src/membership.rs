//! An agent as a member of its job: its connections to the site's gateways, the messages that it exchanges over them,
//! and the events that end it from outside.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use channel::Route;
use client::dial::resolve;
use client::{Client, Connections, Entry, Frame, News, Role};
use gateway_tasks::GatewayAddress;
use member::Post;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::Instant;
use types::{Identity, JobId};

use super::error::AgentError;
use super::prepare::Reach;
use job::order::Order;

/// Time limit for gateways to close the connections after a goodbye.
const GOODBYE: Duration = Duration::from_millis(500);

/// The end of the lifeline to the process that started an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifeline {
    /// The process orders the agent to end.
    Cut,
    /// The process is gone. If the site has other gateways, the job continues.
    Torn,
}

/// See the module docs.
pub(crate) struct Membership {
    job: JobId,
    connections: Connections,
    post: Post,
    /// Zero of the post's clock.
    since: Instant,
    /// `None` after the lifeline has fired.
    lifeline: Option<oneshot::Receiver<Lifeline>>,
    terminate: Signal,
    /// Caught and ignored. SIGHUP means that the process that started this agent is gone, but the job may continue
    /// through other gateways; the lifeline shows whether it does.
    _hangup: Signal,
}

impl Membership {
    /// Connects to the gateways of the order. Also returns their addresses for ranks.
    ///
    /// # Errors
    /// No address of the first gateway answers, or signals cannot be caught.
    pub(crate) async fn join(
        order: &Order,
        lifeline: oneshot::Receiver<Lifeline>,
    ) -> Result<(Membership, Reach), AgentError> {
        let system = |source| AgentError::System { what: "signals", source };
        let terminate = signal(SignalKind::terminate()).map_err(system)?;
        let hangup = signal(SignalKind::hangup()).map_err(system)?;
        let me = order.identity()?;
        let (client, gateway) = connect(order, me).await?;
        let local = client.local_address().ip();
        let others = resolved(order.gateways.get(1..).unwrap_or_default(), local).await;
        let reach = Reach { gateways: [vec![gateway], others].concat(), local };
        let mut post = Post::new(order.job, me, client.welcome().max_payload);
        post.route_open(Route(0));
        let role = Role::Member { job: order.job, secret: order.secret.clone(), identity: me };
        let entry = |GatewayAddress { name, address }: &GatewayAddress| {
            let gateway = order.gateway(name, address.clone());
            Entry { gateway, role: role.clone(), opening: None }
        };
        let mut connections = Connections::new(me, client, entry(&reach.gateways[0]));
        reach.gateways[1..].iter().for_each(|other| {
            connections.add(entry(other));
        });
        let (job, since, lifeline) = (order.job, Instant::now(), Some(lifeline));
        Ok((Membership { job, connections, post, since, lifeline, terminate, _hangup: hangup }, reach))
    }

    /// Sends all messages that are due, then waits for the next frame, which must be passed to [`Membership::take`].
    /// `None`: another event happened, and more messages may be due. Cancel-safe.
    ///
    /// # Errors
    /// The agent must end: its last gateway is lost, or the process that started it is gone or orders it to end.
    pub(crate) async fn next(&mut self) -> Result<Option<(Route, Frame)>, AgentError> {
        while let Some((route, header, payload)) = self.post.next_frame(self.now_ns()) {
            self.connections.send(usize::from(route.0), header, payload);
        }
        let cut = async {
            match self.lifeline.as_mut() {
                Some(lifeline) => lifeline.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            (gateway, news) = self.connections.next() => return self.news(Route(gateway as u8), news),
            cut = cut => {
                self.lifeline = None;
                if cut != Ok(Lifeline::Torn) || !self.connections.open().any(|gateway| gateway > 0) {
                    return Err(AgentError::Orphaned("the gateway that started this agent"));
                }
            }
            _ = self.terminate.recv() => return Err(AgentError::Orphaned("this agent's keeper")),
            () = job::until(self.since, self.post.next_tick_ns()) => {}
        }
        Ok(None)
    }

    fn news(&mut self, route: Route, news: News) -> Result<Option<(Route, Frame)>, AgentError> {
        match news {
            News::Frame(frame) => return Ok(Some((route, frame))),
            News::Open => self.post.route_open(route),
            News::Back(_) => {}
            News::Failed(error) => tracing::debug!(%error, "gateway not used"),
            News::Broken(_) => self.post.route_lost(route),
            News::Lost(error) => {
                self.post.route_lost(route);
                if self.connections.open().next().is_none() {
                    return Err(error.into());
                }
                tracing::warn!(%error, "gateway lost; the job continues through the others");
            }
        }
        Ok(None)
    }

    /// Takes a frame and returns the messages that it completes.
    ///
    /// # Errors
    /// The correspondent violated the rules.
    pub(crate) fn take<M: DeserializeOwned>(
        &mut self,
        route: Route,
        Frame { header, payload }: &Frame,
    ) -> Result<Vec<M>, AgentError> {
        Ok(self.post.take(route, header, payload, self.now_ns())?)
    }

    /// Queues a message; [`Membership::next`] sends it.
    ///
    /// # Errors
    /// The message is too long.
    pub(crate) fn send(&mut self, to: Identity, message: &impl Serialize) -> Result<(), AgentError> {
        Ok(self.post.send(to, message)?)
    }

    /// The launcher stops or runs again. If the gateway is a thread of the launcher, it stops with it.
    pub(crate) fn stand_by(&mut self, stopped: bool) {
        self.connections.stand_by(stopped);
    }

    /// True if more messages may be queued for a correspondent.
    pub(crate) fn has_room(&self, to: Identity) -> bool {
        self.post.has_room(to)
    }

    /// Sends a goodbye to the gateways. Messages still queued no longer matter, because the launcher has finished the
    /// job.
    pub(crate) async fn leave(self) {
        self.connections.goodbye(self.job, GOODBYE).await;
    }

    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }
}

/// The addresses of the gateways that do not lead the job, preferably of the family of `local`, with which the leading
/// one was reached. A gateway whose name does not resolve here is left out; the job runs without it.
async fn resolved(gateways: &[GatewayAddress], local: IpAddr) -> Vec<GatewayAddress> {
    let mut found = Vec::new();
    for GatewayAddress { name, address } in gateways {
        let alike = |found: &SocketAddr| found.is_ipv4() != local.is_ipv4();
        match resolve(address).await.map(|all| all.into_iter().min_by_key(alike)) {
            Ok(Some(socket)) => found.push(GatewayAddress { name: name.clone(), address: socket.to_string() }),
            Ok(None) => tracing::warn!(address, "gateway not used: its name has no address"),
            Err(error) => tracing::warn!(address, %error, "gateway not used"),
        }
    }
    found
}

/// Connects to the first address of the leading gateway that accepts. Ranks then use the same address.
async fn connect(order: &Order, me: Identity) -> Result<(Client, GatewayAddress), AgentError> {
    let (name, lead) = match order.gateways.first() {
        Some(GatewayAddress { name, address }) => (name.as_str(), address.clone()),
        None => ("", String::new()),
    };
    let unresolved = |source| AgentError::Resolve { address: lead.clone(), source };
    let addresses = resolve(&lead).await.map_err(unresolved)?;
    let role = Role::Member { job: order.job, secret: order.secret.clone(), identity: me };
    let mut error = match Client::connect(&order.gateway(name, lead.clone()), &role).await {
        Ok(client) => {
            let address = client.peer_address().to_string();
            return Ok((client, GatewayAddress { name: name.to_owned(), address }));
        }
        Err(error) => error.into(),
    };
    // One of the addresses may belong to another machine or another gateway.
    let several = addresses.len() > 1;
    for address in addresses.into_iter().filter(|_| several) {
        let address = address.to_string();
        match Client::connect(&order.gateway(name, address.clone()), &role).await {
            Ok(client) => return Ok((client, GatewayAddress { name: name.to_owned(), address })),
            Err(e) => error = e.into(),
        }
    }
    Err(error)
}
