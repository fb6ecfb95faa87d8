//! One task per allocation: carries its news to the relay, and gives it back.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use types::JobId;
use wire::control::{AllocationMessage, JobMessage, NodeAsk};

use crate::path::member::Member;
use crate::server::{Gateway, PROBE_UP};
use crate::services::starter::{AllocationHandle, AllocationNews, AllocationOrder};

/// How long giving back may take before it is given up.
const RELEASE: Duration = Duration::from_secs(3);

/// What the task of an allocation is told.
#[derive(Debug, Default)]
pub(crate) struct AllocationOrders {
    /// Give it back.
    pub release: Notify,
    /// It stays when this program ends: it is the job's.
    pub leave: Notify,
}

impl Gateway {
    /// A message about nodes for a job came from a member.
    ///
    /// # Errors
    /// It may not say that: close its connection.
    pub(crate) fn allocation_from_member(&self, member: &Rc<Member>, message: AllocationMessage) -> Result<(), String> {
        match message {
            AllocationMessage::Ask { .. } if member.job.get() != JobId::default() => {
                Err(format!("this connection has job {} already", member.job.get()))
            }
            AllocationMessage::Ask { job, site, home, ask } => {
                self.allocate_later(member.clone(), job, site, home, ask);
                Ok(())
            }
            AllocationMessage::Waiting { .. } | AllocationMessage::Granted { .. } => {
                Err("a launcher may ask for nodes, and grants none".into())
            }
        }
    }

    /// A launcher asks for nodes; another site's trunk is waited for first, as for a job.
    fn allocate_later(&self, launcher: Rc<Member>, job: JobId, site: String, home: String, ask: NodeAsk) {
        let Some(gateway) = self.me.upgrade() else { return };
        self.kick_trunks();
        tokio::task::spawn_local(async move {
            let trunk = if site == gateway.site { None } else { gateway.relay.borrow().lead_trunk(&site) };
            if let Some(trunk) = trunk {
                // If it does not come up, the relay says why.
                let _ = gateway.trunk(trunk).wait_up(PROBE_UP).await;
            }
            if !gateway.connections.borrow().contains_key(&launcher.id()) {
                return;
            }
            let asked = gateway.relay.borrow_mut().allocate(launcher.clone(), job, site, home, ask);
            if let Err((site, reason)) = asked {
                tracing::warn!(peer = %launcher.address, %job, site, reason, "nodes refused");
                launcher.send_control(&gateway, JobMessage::Refused { job, site, reason });
            }
            gateway.settle();
        });
    }

    /// Starts an allocation. Not to be called while the relay is borrowed.
    pub(crate) fn allocate(&self, order: AllocationOrder) {
        let (job, wait) = (order.job, Duration::from_secs(order.ask.wait_s.into()));
        let handle = match self.starter.allocate(order) {
            Ok(handle) => handle,
            Err(error) => return self.relay.borrow_mut().allocation_news(job, AllocationNews::Ended(error.0)),
        };
        let orders = Rc::new(AllocationOrders::default());
        self.allocations.borrow_mut().insert(job, orders.clone());
        let Some(gateway) = self.me.upgrade() else { return };
        tokio::task::spawn_local(async move {
            let Some(reason) = gateway.keep(job, handle, &orders, wait).await else { return };
            gateway.allocations.borrow_mut().remove(&job);
            gateway.agent_gone.notify_one();
            gateway.relay.borrow_mut().allocation_news(job, AllocationNews::Ended(reason));
            gateway.settle();
        });
    }

    /// Gives the reason of its end; `None` if it stays.
    async fn keep(
        &self,
        job: JobId,
        mut handle: Box<dyn AllocationHandle>,
        orders: &AllocationOrders,
        wait: Duration,
    ) -> Option<String> {
        let deadline = Instant::now() + wait;
        let (mut granted, mut state) = (false, String::new());
        let reason = loop {
            let news = tokio::select! {
                biased;
                () = orders.release.notified() => break "given back".to_owned(),
                () = orders.leave.notified() => {
                    // It would be given back with its handle.
                    std::mem::forget(handle);
                    return None;
                }
                news = handle.news() => news,
                () = sleep_until(deadline), if !granted => {
                    let state = if state.is_empty() { String::new() } else { format!(": {state}") };
                    break format!("no nodes after {} s{state}. Ask for fewer, or wait longer (--wait)", wait.as_secs());
                }
            };
            match &news {
                AllocationNews::Ended(reason) => return Some(reason.clone()),
                AllocationNews::Granted { .. } => granted = true,
                AllocationNews::Waiting(now) => state.clone_from(now),
            }
            self.relay.borrow_mut().allocation_news(job, news);
            self.settle();
        };
        handle.release();
        let gone = async { while !matches!(handle.news().await, AllocationNews::Ended(_)) {} };
        if timeout(RELEASE, gone).await.is_err() {
            tracing::error!(%job, "the allocation was not given back in {} s", RELEASE.as_secs());
        }
        Some(reason)
    }
}
