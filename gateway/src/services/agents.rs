//! The agents of this site's nodes: one task each, from start to end.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::time::Duration;

use hooks::{AgentOrder, GatewayAddress, StartError};
use tokio::sync::Notify;
use tokio::time::timeout;
use types::roster::FORWARDER;
use types::{JobId, NodeId};

use crate::gateway::Gateway;

/// Time that a killed agent may take to die.
pub(crate) const KILL: Duration = Duration::from_millis(500);

/// The running agents.
#[derive(Debug, Default)]
pub(crate) struct Agents(RefCell<HashMap<(JobId, NodeId), Rc<Orders>>>);

/// Orders for the task that waits for an agent.
#[derive(Debug, Default)]
struct Orders {
    kill: Notify,
    /// Other gateways look after the agent. It keeps running when this program ends.
    leave: Notify,
}

impl Agents {
    /// Number of running agents.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Kills the agents of a job.
    pub(crate) fn kill(&self, job: JobId) {
        self.0.borrow().iter().filter(|((of, _), _)| *of == job).for_each(|(_, orders)| orders.kill.notify_one());
    }

    pub(crate) fn kill_all(&self) {
        self.0.borrow().values().for_each(|orders| orders.kill.notify_one());
    }

    /// Forgets the agents of these jobs, which keep running even when this program ends.
    pub(crate) fn leave(&self, jobs: &BTreeSet<JobId>) {
        let left = self.0.borrow_mut().extract_if(|(job, _), _| jobs.contains(job)).collect::<Vec<_>>();
        left.iter().for_each(|(_, orders)| orders.leave.notify_one());
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
        // Ranks on this machine are movers. Without any, it forwards ports.
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
        self.services.agents.0.borrow_mut().insert((job, node_id), orders.clone());
        let node = node.to_owned();
        self.beside(async move |gateway| {
            let ended = tokio::select! {
                status = handle.wait() => Some(status),
                () = orders.kill.notified() => None,
                () = orders.leave.notified() => {
                    // Dropping the handle would kill it, and this program may end first.
                    let mut left = ManuallyDrop::new(handle);
                    let status = left.wait().await;
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
            gateway.services.agents.0.borrow_mut().remove(&(job, node_id));
            gateway.services.gone.notify_one();
            gateway.change(|table| table.agent_exited(job, node_id, status));
        });
        Ok(())
    }
}
