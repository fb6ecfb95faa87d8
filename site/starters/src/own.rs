//! Jobs that are the user's own, which Landbridge neither makes nor gives back, and starters for batch systems from
//! which it requests none.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use gateway_tasks::{AgentOrder, AgentStarter, AllocationHandle, AllocationNews, AllocationOrder, StartError};
use tokio::sync::Notify;
use wire::control::HeldAllocation;

use crate::agent_command::Started;
use crate::remote::ssh::SshStarter;

/// Makes, of the number of a batch job and the words of a command, the words that run the command as a part of the job.
pub(crate) type InJob = fn(&str, Vec<String>) -> Vec<String>;

/// Agents over ssh, on the nodes of the user's own batch job.
#[derive(Debug)]
pub(crate) struct OwnJobStarter {
    ssh: SshStarter,
    /// Name of the batch system.
    system: &'static str,
    /// Its command for submitting a script.
    submits: &'static str,
    /// `None`: the batch system takes no process of another program into a job.
    in_job: Option<InJob>,
}

impl OwnJobStarter {
    /// `system`: the batch system's name, and its command for submitting a script.
    pub(crate) fn new(
        (system, submits): (&'static str, &'static str),
        ssh: SshStarter,
        in_job: Option<InJob>,
    ) -> OwnJobStarter {
        OwnJobStarter { ssh, system, submits, in_job }
    }
}

impl AgentStarter for OwnJobStarter {
    fn start(&self, order: AgentOrder) -> Started {
        let Some((in_job, job)) = self.in_job.zip(order.allocation.clone()) else { return self.ssh.start(order) };
        self.ssh.start_within(order, |agent| in_job(&job, agent))
    }

    fn allocate(&self, order: AllocationOrder) -> Result<Box<dyn AllocationHandle>, StartError> {
        let (system, submits) = (self.system, self.submits);
        match order.ask.held {
            Some(held) => Ok(Box::new(Held::new(held))),
            None if order.ask.ranks == 0 => {
                let answer = format!(
                    "those of the {system} job in which `landbridge run` is typed, which cannot be tried from here"
                );
                Ok(Box::new(Known { news: would_grant(answer), released: Notify::new() }))
            }
            None => Err(StartError(format!(
                "its nodes are those of a {system} job, and Landbridge makes none: submit a script that types `landbridge \
                 run` at this site ({submits})"
            ))),
        }
    }
}

/// The news of a trial, in place of an allocation, whose answer is this.
pub(crate) fn would_grant(answer: String) -> VecDeque<AllocationNews> {
    [AllocationNews::Waiting(answer), AllocationNews::Granted { id: "none".to_owned(), nodes: Vec::new() }].into()
}

/// A trial whose answer is already known.
struct Known {
    news: VecDeque<AllocationNews>,
    released: Notify,
}

impl AllocationHandle for Known {
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>> {
        Box::pin(async {
            match self.news.pop_front() {
                Some(news) => news,
                None => {
                    self.released.notified().await;
                    AllocationNews::Ended("nothing was made".to_owned())
                }
            }
        })
    }

    fn release(&mut self) {
        self.news.clear();
        self.released.notify_one();
    }
}

/// The allocation that is such a job.
pub(crate) struct Held {
    allocation: HeldAllocation,
    reported: bool,
    released: Notify,
}

impl Held {
    pub(crate) fn new(allocation: HeldAllocation) -> Held {
        Held { allocation, reported: false, released: Notify::new() }
    }
}

impl AllocationHandle for Held {
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>> {
        Box::pin(async {
            if !std::mem::replace(&mut self.reported, true) {
                let HeldAllocation { id, nodes } = self.allocation.clone();
                return AllocationNews::Granted { id, nodes };
            }
            self.released.notified().await;
            AllocationNews::Ended("the allocation is the user's own".to_owned())
        })
    }

    fn release(&mut self) {
        self.reported = true;
        self.released.notify_one();
    }
}
