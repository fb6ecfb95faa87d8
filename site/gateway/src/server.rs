//! Running a gateway: from its configuration to its end.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway_tasks::AgentStarter;
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::config::GatewayConfig;
use crate::door::listener;
use crate::error::GatewayError;
use crate::gateway::Gateway;
use crate::log::quantity;
use crate::services::agents::KILL;
use crate::services::standing;
use crate::status::page;

/// Time limit for agents to end when the gateway is stopped.
const STOP_GRACE: Duration = Duration::from_millis(2000);

/// Runs a gateway until SIGTERM or SIGINT, on the calling thread. Jobs are closed and agents killed before it returns,
/// within 3 s. On SIGHUP it reloads its sites file.
///
/// # Errors
/// The gateway cannot start: see [`GatewayError`].
pub fn serve(config: GatewayConfig, starter: Arc<dyn AgentStarter>) -> Result<(), GatewayError> {
    gateway_tasks::open_files::raise();
    let (site, gateway) = (config.own_site().name.clone(), config.own().name.clone());
    let what = "signal handler";
    let system = move |source| GatewayError::System { site: site.clone(), gateway: gateway.clone(), what, source };
    run(config, starter, listener::bind, async move |gateway| {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).map_err(&system)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(&system)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(&system)?;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                _ = hangup.recv() => {
                    standing::reload_and_log(&gateway.trunks);
                }
            }
        }
    })
}

/// Runs a gateway until `stop` is ready, on the calling thread; otherwise like [`serve`].
///
/// # Errors
/// The gateway cannot start: see [`GatewayError`].
pub fn serve_until(
    config: GatewayConfig,
    starter: Arc<dyn AgentStarter>,
    stop: impl Future<Output = ()>,
) -> Result<(), GatewayError> {
    run(config, starter, listener::bind, async move |_| {
        stop.await;
        Ok(())
    })
}

/// Like [`serve_until`], on a port that the caller has bound already; `listen` of the configuration is not used.
///
/// # Errors
/// The gateway cannot start: see [`GatewayError`].
pub fn serve_on(
    port: std::net::TcpListener,
    config: GatewayConfig,
    starter: Arc<dyn AgentStarter>,
    stop: impl Future<Output = ()>,
) -> Result<(), GatewayError> {
    gateway_tasks::open_files::raise();
    let bind = move |config: &GatewayConfig| {
        let taken_over = port.set_nonblocking(true).and_then(|()| TcpListener::from_std(port));
        taken_over.map_err(|source| system(config, "port", source))
    };
    run(config, starter, bind, async move |_| {
        stop.await;
        Ok(())
    })
}

fn system(config: &GatewayConfig, what: &'static str, source: io::Error) -> GatewayError {
    let (site, gateway) = (config.own_site().name.clone(), config.own().name.clone());
    GatewayError::System { site, gateway, what, source }
}

fn run(
    config: GatewayConfig,
    starter: Arc<dyn AgentStarter>,
    bind: impl FnOnce(&GatewayConfig) -> Result<TcpListener, GatewayError>,
    stop: impl AsyncFnOnce(Rc<Gateway>) -> Result<(), GatewayError>,
) -> Result<(), GatewayError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| system(&config, "queue of events to wait with", source))?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, async {
        let listener = bind(&config)?;
        let gateway = Gateway::new(&config, &starter)?;
        let own = config.own();
        tracing::info!(
            site = gateway.sites.site, gateway = gateway.sites.gateway, listen = own.listen, inside = own.inside,
            advertise = own.advertise.as_deref().unwrap_or("(dials out only)"),
            fingerprint = %gateway.sites.credentials().fingerprint, memory = %quantity(own.memory), "gateway listening"
        );
        gateway.clone().run(listener, stop(gateway)).await
    });
    drop(local);
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

impl Gateway {
    async fn run(
        self: Rc<Self>,
        listener: TcpListener,
        stop: impl Future<Output = Result<(), GatewayError>>,
    ) -> Result<(), GatewayError> {
        self.trunks.list.in_use().iter().for_each(|trunk| self.trunks.dial(trunk));
        page::open(&self);
        let result = tokio::select! {
            never = self.accept(listener) => match never {},
            never = self.path.load.watch() => match never {},
            never = self.trunks.survey.watch() => match never {},
            result = stop => result,
        };
        self.stop().await;
        result
    }

    /// Closes all jobs and waits for their agents. Jobs that other gateways of the site can continue are left to them.
    async fn stop(&self) {
        let reason = format!("gateway {} of site {} is stopping", self.sites.gateway, self.sites.site);
        tracing::info!("{reason}");
        let siblings = self.sites.insides().len() > 1;
        let left = self.path.table.change(|table| table.close_all(&reason, siblings));
        for id in &left {
            tracing::info!(job = %id, "job left to the other gateways of the site");
        }
        self.services.agents.leave(&left);
        self.services.nodes.leave(&left);
        self.trunks.list.in_use().iter().for_each(|trunk| trunk.goodbye(&self.path, &reason));
        let gone = async {
            while self.services.agents.len() > 0 || !self.services.nodes.is_empty() {
                self.services.gone.notified().await;
            }
        };
        tokio::pin!(gone);
        if timeout(STOP_GRACE, &mut gone).await.is_err() {
            self.services.agents.kill_all();
            if timeout(KILL, gone).await.is_err() {
                tracing::error!(left = self.services.agents.len(), "agents did not die in time");
            }
        }
        // By now the goodbyes have been sent, except to peers that do not read. ssh takes longer to forward them.
        let through_ssh = self.trunks.list.in_use().iter().any(|trunk| trunk.through_ssh && trunk.is_up());
        sleep(Duration::from_millis(if through_ssh { 200 } else { 20 })).await;
    }
}
