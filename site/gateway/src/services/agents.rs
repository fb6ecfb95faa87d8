//! The agents of this site's nodes: one task each, from start to end.
//!
//! A gateway that leaves a job to its siblings leaves the agents' starters running too: the job goes on through them.
//! If the siblings then end the job, only this gateway can remove the starter that it left for an unreachable node. So
//! it listens: an agent of an open job asks here for that job every second.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway_tasks::{AgentHandle, AgentOrder, AgentStarter, StartError};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use types::roster::FORWARDER;
use types::sites::Inside;
use types::{JobId, NodeId};

use crate::config::GatewayConfig;
use crate::path::Path;
use crate::sites::Sites;

/// Time that a killed agent may take to die.
pub(crate) const KILL: Duration = Duration::from_millis(500);

/// Silence after which a job that this gateway has left counts as over, on a machine that is not overloaded: no member
/// asked for it.
const ASKED: Duration = Duration::from_secs(2);
/// Time for which others must have reached this gateway before silence about a job counts. The gateway may have been
/// cut off itself, and a connection attempt is repeated after up to 8 s.
const HEARD: Duration = Duration::from_secs(10);
/// A peer that was heard within this time can reach this gateway.
const LATELY: Duration = Duration::from_secs(2);
/// Interval at which both are checked.
const LOOK: Duration = Duration::from_millis(250);

/// Starts agents, and keeps the running ones.
pub(crate) struct Agents {
    path: Rc<Path>,
    sites: Rc<Sites>,
    /// Starts agents on the site's nodes.
    starter: Arc<dyn AgentStarter>,
    /// Starts agents on the gateway's own machine, if agents may run there.
    beside: Option<Arc<dyn AgentStarter>>,
    /// TLS requirement for ranks.
    inside: Inside,
    /// Notified when an agent ended.
    gone: Rc<Notify>,
    running: RefCell<HashMap<(JobId, NodeId), Rc<AgentTask>>>,
    /// For each job that was left and still has starters, the time of the last request for it.
    left: RefCell<HashMap<JobId, Rc<Cell<Instant>>>>,
}

/// Orders for the task that waits for an agent.
#[derive(Debug, Default)]
struct AgentTask {
    kill: Notify,
    /// Other gateways look after the agent. It keeps running when this program ends.
    leave: Notify,
    /// Time of the last request for the job that was left.
    asked: RefCell<Option<Rc<Cell<Instant>>>>,
}

impl Agents {
    /// `starter` starts agents on the site's nodes. `gone` is notified when an agent ended.
    pub(crate) fn new(
        config: &GatewayConfig,
        starter: Arc<dyn AgentStarter>,
        path: Rc<Path>,
        sites: Rc<Sites>,
        gone: Rc<Notify>,
    ) -> Agents {
        let (beside, inside) = (config.beside.clone(), config.own_site().inside);
        let (running, left) = (RefCell::default(), RefCell::default());
        Agents { path, sites, starter, beside, inside, gone, running, left }
    }

    /// Number of running agents.
    pub(crate) fn len(&self) -> usize {
        self.running.borrow().len()
    }

    /// Kills the agents of a job.
    pub(crate) fn kill(&self, job: JobId) {
        self.running.borrow().iter().filter(|((of, _), _)| *of == job).for_each(|(_, orders)| orders.kill.notify_one());
    }

    pub(crate) fn kill_all(&self) {
        self.running.borrow().values().for_each(|orders| orders.kill.notify_one());
    }

    /// Forgets the agents of these jobs, which keep running even when this program ends.
    pub(crate) fn leave(&self, jobs: &BTreeSet<JobId>) {
        let left = self.running.borrow_mut().extract_if(|(job, _), _| jobs.contains(job)).collect::<Vec<_>>();
        self.left.borrow_mut().retain(|_, asked| Rc::strong_count(asked) > 1);
        for ((job, _), orders) in left {
            let now = Rc::new(Cell::new(Instant::now()));
            let asked = self.left.borrow_mut().entry(job).or_insert(now).clone();
            orders.asked.replace(Some(asked));
            orders.leave.notify_one();
        }
    }

    /// Notes a request for a job that is not open here.
    pub(crate) fn asked_for(&self, job: JobId) {
        if let Some(asked) = self.left.borrow().get(&job) {
            asked.set(Instant::now());
        }
    }
}

impl Agents {
    pub(crate) fn start(self: &Rc<Self>, job: JobId, nodes: &[(NodeId, String)]) {
        let result = nodes.iter().try_for_each(|(id, name)| self.start_one(job, *id, name).map_err(|e| (*id, e)));
        self.path.table.change(|table| table.agents_started(job, result));
    }

    fn start_one(self: &Rc<Self>, job: JobId, node_id: NodeId, node: &str) -> Result<(), StartError> {
        let order = self.order(job, node_id, node)?;
        let none = || StartError("this gateway starts no agents on its own machine".to_owned());
        let handle = match node == FORWARDER {
            true => self.beside.as_ref().ok_or_else(none)?.start(order)?,
            false => self.starter.start(order)?,
        };
        let orders = Rc::new(AgentTask::default());
        self.running.borrow_mut().insert((job, node_id), orders.clone());
        let (agents, node) = (self.clone(), node.to_owned());
        tokio::task::spawn_local(async move { agents.keep((job, node_id), &node, handle, &orders).await });
        Ok(())
    }

    /// The order for the agent of a node.
    fn order(&self, job: JobId, node_id: NodeId, node: &str) -> Result<AgentOrder, StartError> {
        let (secret, site_id, home, allocation, ranks) = {
            let table = self.path.table.read();
            let open = table.jobs.get(&job).ok_or_else(|| StartError(format!("job {job} is closed")))?;
            let ranks = open.roster.site(open.own).and_then(|site| site.nodes.get(node_id.0 as usize));
            let ranks = ranks.map_or(0, |node| node.ranks);
            (open.secret.clone(), open.own, open.home, table.allocation_of(job, node), ranks)
        };
        let site = self.sites.own_site();
        let entry = site.nodes.iter().find(|entry| entry.name == node);
        // Ranks on the gateway's own machine are movers. Without ranks, the agent there forwards ports.
        let only_movers = node == FORWARDER && ranks > 0;
        let forward = (node == FORWARDER && !only_movers).then(|| site.forward.clone());
        Ok(AgentOrder {
            job,
            secret,
            home,
            site_id,
            site: self.sites.site.clone(),
            node_id,
            node: node.to_owned(),
            node_address: entry.and_then(|entry| entry.address),
            // Movers use no library of the user's choice.
            fabric: site.fabric.clone().filter(|_| !only_movers),
            inside: self.inside,
            gateways: self.sites.insides(),
            keys: site.keys(),
            allocation,
            memory: site.memory.clone(),
            forward,
            only_movers,
        })
    }

    /// Waits for the end of an agent and reports it, or leaves the agent to other gateways.
    async fn keep(
        &self,
        (job, node_id): (JobId, NodeId),
        node: &str,
        mut handle: Box<dyn AgentHandle>,
        orders: &AgentTask,
    ) {
        let ended = tokio::select! {
            status = handle.wait() => Some(status),
            () = orders.kill.notified() => None,
            () = orders.leave.notified() => return self.leave_running(job, node, handle, orders).await,
        };
        let status = match ended {
            Some(status) => status,
            None => {
                handle.kill();
                let status = timeout(KILL, handle.wait()).await;
                status.unwrap_or_else(|_| "still running after being killed".to_owned())
            }
        };
        tracing::debug!(%job, node, status, "agent ended");
        self.running.borrow_mut().remove(&(job, node_id));
        self.gone.notify_one();
        self.path.table.change(|table| table.agent_exited(job, node_id, status));
    }

    /// Waits for the end of an agent that other gateways look after, and lets it go when its job is over.
    async fn leave_running(&self, job: JobId, node: &str, handle: Box<dyn AgentHandle>, orders: &AgentTask) {
        // Dropping the handle would kill the agent, and this program may end first.
        let mut left = ManuallyDrop::new(handle);
        let asked = orders.asked.take();
        let status = tokio::select! {
            status = left.wait() => status,
            () = self.is_over(job, asked.as_deref()) => {
                left.let_go();
                let status = timeout(KILL, left.wait()).await;
                status.unwrap_or_else(|_| "nobody of its job is left".to_owned())
            }
        };
        tracing::debug!(%job, node, status, "agent that was left to other gateways ended");
        drop(ManuallyDrop::into_inner(left));
    }

    /// Returns when a job that was left is over, as far as this gateway can observe.
    async fn is_over(&self, job: JobId, asked: Option<&Cell<Instant>>) {
        let Some(asked) = asked else { return std::future::pending().await };
        let mut heard_for = if self.is_heard() { HEARD } else { Duration::ZERO };
        loop {
            sleep(LOOK).await;
            heard_for = if self.is_heard() { heard_for + LOOK } else { Duration::ZERO };
            // This gateway relays for the job again: its members are connected and request nothing.
            if self.path.table.read().jobs.contains_key(&job) {
                asked.set(Instant::now());
            }
            let silence = asked.get().elapsed();
            if heard_for >= HEARD && silence >= ASKED && silence >= self.path.load.silence(ASKED, silence) {
                return;
            }
        }
    }

    /// Returns true if others reach this gateway now.
    fn is_heard(&self) -> bool {
        let has_trunk = self.path.table.read().trunks.iter().any(|trunk| trunk.up);
        has_trunk || self.path.connections.borrow().values().any(|member| member.was_heard_within(LATELY, &self.path))
    }
}
