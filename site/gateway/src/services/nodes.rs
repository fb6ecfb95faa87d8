//! One task per allocation: it forwards the allocation's news to the table, and gives the allocation back.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway_tasks::{AgentStarter, AllocationHandle, AllocationNews, AllocationOrder};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use types::JobId;
use wire::control::{AllocationMessage, JobMessage, NodeAsk};

use crate::path::member::Member;
use crate::table::error::{Refused, Violation};
use crate::trunks::list::TrunkList;
use crate::trunks::measure::PROBE_UP;

/// Time limit for giving an allocation back.
const RELEASE: Duration = Duration::from_secs(3);

/// Allocations that exist or are being requested.
pub(crate) struct Nodes {
    /// Asks the batch system.
    starter: Arc<dyn AgentStarter>,
    list: Rc<TrunkList>,
    /// Notified when an allocation ended.
    gone: Rc<Notify>,
    tasks: RefCell<HashMap<JobId, Rc<AllocationTask>>>,
}

/// Orders for the task of an allocation.
#[derive(Debug, Default)]
struct AllocationTask {
    /// Give the allocation back.
    release: Notify,
    /// The allocation stays when this program ends: it belongs to the job.
    leave: Notify,
}

impl Nodes {
    /// `starter` asks the batch system. `gone` is notified when an allocation ended.
    pub(crate) fn new(starter: Arc<dyn AgentStarter>, list: Rc<TrunkList>, gone: Rc<Notify>) -> Nodes {
        Nodes { starter, list, gone, tasks: RefCell::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.borrow().is_empty()
    }

    /// Gives a job's allocation back.
    pub(crate) fn release(&self, job: JobId) {
        self.tasks.borrow().get(&job).iter().for_each(|orders| orders.release.notify_one());
    }

    /// Forgets the allocations of these jobs, which stay when this program ends.
    pub(crate) fn leave(&self, jobs: &BTreeSet<JobId>) {
        let left = self.tasks.borrow_mut().extract_if(|job, _| jobs.contains(job)).collect::<Vec<_>>();
        left.iter().for_each(|(_, orders)| orders.leave.notify_one());
    }
}

impl Nodes {
    /// Handles a message about nodes for a job from a member.
    ///
    /// # Errors
    /// The member may not send it: close its connection.
    pub(crate) fn handle_member_message(
        self: &Rc<Self>,
        member: &Rc<Member>,
        message: AllocationMessage,
    ) -> Result<(), Violation> {
        match message {
            AllocationMessage::Ask { .. } if member.job.get() != JobId::default() => {
                Err(Violation(format!("this connection already belongs to job {}", member.job.get())))
            }
            AllocationMessage::Ask { job, site, home, ask } => {
                self.allocate_later(member.clone(), job, site, home, ask);
                Ok(())
            }
            AllocationMessage::Waiting { .. } | AllocationMessage::Granted { .. } => {
                Err("a launcher may only ask for nodes".into())
            }
        }
    }

    /// Handles a launcher's request for nodes. For another site, waits until the trunk is up first, as when opening a
    /// job.
    fn allocate_later(self: &Rc<Self>, launcher: Rc<Member>, job: JobId, site: String, home: String, ask: NodeAsk) {
        self.list.kick();
        let nodes = self.clone();
        tokio::task::spawn_local(async move {
            let trunk =
                if site == nodes.list.sites.site { None } else { nodes.list.path.table.read().lead_trunk(&site) };
            if let Some(trunk) = trunk {
                // If the trunk does not come up, the table reports the reason.
                let _ = nodes.list.get(trunk).wait_up(PROBE_UP).await;
            }
            if !nodes.list.path.connections.borrow().contains_key(&launcher.id()) {
                return;
            }
            let asked = nodes.list.path.table.change(|table| table.allocate(launcher.clone(), job, site, home, ask));
            if let Err(Refused { site, why }) = asked {
                let reason = why.to_string();
                tracing::warn!(peer = %launcher.address, %job, site, reason, "nodes refused");
                launcher.send_control(&nodes.list.path, JobMessage::Refused { job, site, reason });
            }
        });
    }

    /// Starts an allocation.
    pub(crate) fn allocate(self: &Rc<Self>, order: AllocationOrder) {
        let (job, wait) = (order.job, Duration::from_secs(order.ask.wait_s.into()));
        let handle = match self.starter.allocate(order) {
            Ok(handle) => handle,
            Err(error) => {
                return self.list.path.table.change(|table| table.allocation_news(job, AllocationNews::Ended(error.0)));
            }
        };
        let orders = Rc::new(AllocationTask::default());
        self.tasks.borrow_mut().insert(job, orders.clone());
        let nodes = self.clone();
        tokio::task::spawn_local(async move {
            let Some(reason) = nodes.keep(job, handle, &orders, wait).await else { return };
            nodes.tasks.borrow_mut().remove(&job);
            nodes.gone.notify_one();
            nodes.list.path.table.change(|table| table.allocation_news(job, AllocationNews::Ended(reason)));
        });
    }

    /// Forwards the news of an allocation until it ends. Returns the reason of its end; `None` if the allocation stays.
    async fn keep(
        &self,
        job: JobId,
        mut handle: Box<dyn AllocationHandle>,
        orders: &AllocationTask,
        wait: Duration,
    ) -> Option<String> {
        let deadline = Instant::now() + wait;
        let (mut granted, mut state) = (false, String::new());
        let reason = loop {
            let news = tokio::select! {
                biased;
                () = orders.release.notified() => break "given back".to_owned(),
                () = orders.leave.notified() => {
                    // Dropping the handle would give the allocation back.
                    std::mem::forget(handle);
                    return None;
                }
                news = handle.news() => news,
                () = sleep_until(deadline), if !granted => {
                    let state = if state.is_empty() { String::new() } else { format!(": {state}") };
                    break format!("no nodes after {} s{state}. Ask for fewer nodes, or wait longer (--wait)",
                        wait.as_secs());
                }
            };
            match &news {
                AllocationNews::Ended(reason) => return Some(reason.clone()),
                AllocationNews::Granted { .. } => granted = true,
                AllocationNews::Waiting(now) => state.clone_from(now),
            }
            self.list.path.table.change(|table| table.allocation_news(job, news));
        };
        handle.release();
        let gone = async { while !matches!(handle.news().await, AllocationNews::Ended(_)) {} };
        if timeout(RELEASE, gone).await.is_err() {
            tracing::error!(%job, "the allocation was not given back in {} s", RELEASE.as_secs());
        }
        Some(reason)
    }
}
