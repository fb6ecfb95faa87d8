//! A trial in place of an allocation: asks whether Slurm would grant nodes.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use gateway_tasks::{AllocationHandle, AllocationNews};
use tokio::time::timeout;

use super::salloc::Salloc;
use crate::own::would_grant;

/// Time limit for the batch system's reply.
const LIMIT: Duration = Duration::from_secs(8);

pub(super) struct Trial {
    /// A job for asking Slurm. It is held in the queue, so it never starts.
    salloc: Salloc,
    answered: bool,
    news: VecDeque<AllocationNews>,
}

impl Trial {
    /// A trial with a job that `salloc --hold` puts into the queue. It is cancelled when the trial is released.
    ///
    /// It uses the same request as a run's own job, not `sbatch --test-only`, because a site may treat batch and
    /// interactive jobs differently.
    pub(super) fn held(salloc: Salloc) -> Trial {
        Trial { salloc, answered: false, news: VecDeque::new() }
    }

    async fn next(&mut self) -> AllocationNews {
        loop {
            if let Some(news) = self.news.pop_front() {
                return news;
            }
            let salloc = &mut self.salloc;
            let next = match self.answered {
                true => salloc.news().await,
                false => timeout(LIMIT, salloc.news())
                    .await
                    .unwrap_or_else(|_| ended(&format!("Slurm did not answer within {} s", LIMIT.as_secs()))),
            };
            match next {
                AllocationNews::Ended(_) => return next,
                // Slurm refuses at once or not at all, so a job in the queue means that Slurm accepts it.
                AllocationNews::Waiting(_) | AllocationNews::Granted { .. } if !self.answered => {
                    self.answered = true;
                    let partition = salloc.partition().await;
                    let partition = partition.map_or(String::new(), |name| format!(" in partition {name}"));
                    self.news = would_grant(format!("Slurm accepts jobs{partition}, as a held job showed"));
                }
                AllocationNews::Waiting(_) | AllocationNews::Granted { .. } => {}
            }
        }
    }
}

fn ended(reason: &str) -> AllocationNews {
    AllocationNews::Ended(reason.to_owned())
}

impl AllocationHandle for Trial {
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>> {
        Box::pin(self.next())
    }

    fn release(&mut self) {
        self.news.clear();
        self.salloc.release();
    }
}
