//! A question in place of an allocation: would the batch system give nodes? Nothing is made.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use hooks::{AllocationHandle, AllocationNews};
use tokio::process::Command;
use tokio::time::timeout;

/// How long the batch system may take to answer.
const LIMIT: Duration = Duration::from_secs(8);

pub(super) struct Trial {
    /// Asks, and says yes by ending well.
    command: Option<Command>,
    /// Begins every line it writes.
    prefix: &'static str,
    told: VecDeque<AllocationNews>,
}

impl Trial {
    /// By a command whose last words are the answer, without `prefix`.
    pub(super) fn new(mut command: Command, prefix: &'static str) -> Trial {
        command.kill_on_drop(true);
        Trial { command: Some(command), prefix, told: VecDeque::new() }
    }

    /// Of what is known already.
    pub(super) fn known(answer: &str) -> Trial {
        Trial { command: None, prefix: "", told: granted(answer.to_owned()) }
    }

    async fn next(&mut self) -> AllocationNews {
        loop {
            if let Some(news) = self.told.pop_front() {
                return news;
            }
            let Some(command) = &mut self.command else {
                // Told everything; the end is told when it is given back.
                return std::future::pending().await;
            };
            let output = timeout(LIMIT, command.output()).await;
            self.command = None;
            self.told = match output {
                Err(_) => ended(format!("the batch system did not answer in {} s", LIMIT.as_secs())),
                Ok(Err(error)) => ended(format!("the batch system's commands cannot be run: {error}")),
                Ok(Ok(output)) => {
                    let text = String::from_utf8_lossy(&output.stderr).into_owned();
                    let lines = text.lines().map(|line| line.trim().trim_start_matches(self.prefix));
                    let said = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
                    if output.status.success() { granted(said) } else { ended(said) }
                }
            };
        }
    }
}

fn granted(state: String) -> VecDeque<AllocationNews> {
    [AllocationNews::Waiting(state), AllocationNews::Granted { id: "none".to_owned(), nodes: Vec::new() }].into()
}

fn ended(reason: String) -> VecDeque<AllocationNews> {
    [AllocationNews::Ended(reason)].into()
}

impl AllocationHandle for Trial {
    fn news(&mut self) -> Pin<Box<dyn Future<Output = AllocationNews> + '_>> {
        Box::pin(self.next())
    }

    fn release(&mut self) {
        self.command = None;
        self.told = ended("nothing was made".to_owned());
    }
}
