//! `local`: agents as children of the gateway, for a site whose nodes are the gateway's machine.

use gateway_tasks::{AgentOrder, AgentStarter};
use tokio::process::Command;

use super::process::{AgentProcess, Manner};
use crate::agent_command::{Started, agent_words, order_line};

#[derive(Debug)]
pub(crate) struct LocalStarter;

impl AgentStarter for LocalStarter {
    fn start(&self, order: AgentOrder) -> Started {
        let words = agent_words(None)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(Box::new(AgentProcess::start(command, order_line(order)?, Manner::Child)?))
    }
}
