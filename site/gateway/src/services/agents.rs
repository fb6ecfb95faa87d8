//! The agents of this site's nodes: one task each, from start to end.
//!
//! A gateway that leaves a job to its siblings leaves the agents' starters running too: the job goes on through them.
//! If the siblings then end the job, only this gateway can remove the starter that it left for an unreachable node. So
//! it listens: an agent of an open job asks here for that job every second.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::time::Duration;

use gateway_hooks::{AgentOrder, GatewayAddress, StartError};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use types::roster::FORWARDER;
use types::{JobId, NodeId};

use crate::gateway::Gateway;

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

/// The running agents.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    running: RefCell<HashMap<(JobId, NodeId), Rc<Orders>>>,
    /// For each job that was left and still has starters, the time of the last request for it.
    left: RefCell<HashMap<JobId, Rc<Cell<Instant>>>>,
}

/// Orders for the task that waits for an agent.
#[derive(Debug, Default)]
struct Orders {
    kill: Notify,
    /// Other gateways look after the agent. It keeps running when this program ends.
    leave: Notify,
    /// Time of the last request for the job that was left.
    asked: RefCell<Option<Rc<Cell<Instant>>>>,
}

impl Agents {
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

impl Gateway {
    /// Addresses where the nodes of this site dial its gateways, this one first.
    pub(crate) fn insides(&self) -> Vec<GatewayAddress> {
        let sites = self.sites.file.borrow();
        let (site, own) = self.sites.own.get();
        let gateways = &sites.sites[site].gateways;
        let others = gateways.iter().enumerate().filter(|(at, _)| *at != own);
        let others =
            others.map(|(_, other)| GatewayAddress { name: other.name.clone(), address: other.inside.clone() });
        let this = GatewayAddress { name: self.name.clone(), address: self.sites.inside() };
        std::iter::once(this).chain(others).collect()
    }

    pub(crate) fn start_agents(&self, job: JobId, nodes: &[(NodeId, String)]) {
        let result = nodes.iter().try_for_each(|(id, name)| self.start_agent(job, *id, name).map_err(|e| (*id, e)));
        self.change(|table| table.agents_started(job, result));
    }

    fn start_agent(&self, job: JobId, node_id: NodeId, node: &str) -> Result<(), StartError> {
        let (secret, site_id, home, allocation, ranks) = {
            let table = self.table();
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
        let order = AgentOrder {
            job,
            secret,
            home,
            site_id,
            site: self.site.clone(),
            node_id,
            node: node.to_owned(),
            node_address: entry.and_then(|entry| entry.address),
            // Movers use no library of the user's choice.
            fabric: site.fabric.clone().filter(|_| !only_movers),
            inside: self.door.inside,
            gateways: self.insides(),
            keys: site.keys(),
            allocation,
            memory: site.memory.clone(),
            forward,
            only_movers,
        };
        let none = || StartError("this gateway starts no agents on its own machine".to_owned());
        let mut handle = match node == FORWARDER {
            true => self.services.beside.as_ref().ok_or_else(none)?.start(order)?,
            false => self.services.starter.start(order)?,
        };
        let orders = Rc::new(Orders::default());
        self.services.agents.running.borrow_mut().insert((job, node_id), orders.clone());
        let node = node.to_owned();
        self.beside(async move |gateway| {
            let ended = tokio::select! {
                status = handle.wait() => Some(status),
                () = orders.kill.notified() => None,
                () = orders.leave.notified() => {
                    // Dropping the handle would kill the agent, and this program may end first.
                    let mut left = ManuallyDrop::new(handle);
                    let asked = orders.asked.take();
                    let status = tokio::select! {
                        status = left.wait() => status,
                        () = gateway.is_over(job, asked.as_deref()) => {
                            left.let_go();
                            let status = timeout(KILL, left.wait()).await;
                            status.unwrap_or_else(|_| "nobody of its job is left".to_owned())
                        }
                    };
                    tracing::debug!(%job, node, status, "agent that was left to other gateways ended");
                    drop(ManuallyDrop::into_inner(left));
                    return;
                }
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
            gateway.services.agents.running.borrow_mut().remove(&(job, node_id));
            gateway.services.gone.notify_one();
            gateway.change(|table| table.agent_exited(job, node_id, status));
        });
        Ok(())
    }

    /// Returns when a job that was left is over, as far as this gateway can observe.
    async fn is_over(&self, job: JobId, asked: Option<&Cell<Instant>>) {
        let Some(asked) = asked else { return std::future::pending().await };
        let mut heard_for = if self.is_heard() { HEARD } else { Duration::ZERO };
        loop {
            sleep(LOOK).await;
            heard_for = if self.is_heard() { heard_for + LOOK } else { Duration::ZERO };
            // This gateway relays for the job again: its members are connected and request nothing.
            if self.table().jobs.contains_key(&job) {
                asked.set(Instant::now());
            }
            let silence = asked.get().elapsed();
            if heard_for >= HEARD && silence >= ASKED && silence >= self.services.load.silence(ASKED, silence) {
                return;
            }
        }
    }

    /// Returns true if others reach this gateway now.
    fn is_heard(&self) -> bool {
        let has_trunk = self.table().trunks.iter().any(|trunk| trunk.up);
        has_trunk || self.path.connections.borrow().values().any(|member| member.was_heard_within(LATELY, self))
    }
}
